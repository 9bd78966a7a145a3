"""Inference beside its peers, with the same weights on the same texts, by turns in one process.

Texts are documents of the built-in corpus, cut to --length tokens, or with --lengths log-normal runs of its words of
log-normal length; mixed has nine of those to each text of --length, long has texts of at least three quarters of it.
With --peer transformers (SDPA), sentence-transformers or onnxruntime (its fusions; int8 by its dynamic quantization)
the peer gets its texts sorted by length, the batch size that is fastest for it, and the same precision; both sides'
distance to our fp32 is printed. --sts FILE (rows of the STS benchmark) prints the rank correlation of cosines with
people's scores, in fp32 and in --precision.

Without --peer it is `transformers.pipeline` in batches of 32, as it pads them: fill-mask with five
candidates, and feature-extraction with tensors as its answers, each averaged over the text's own tokens; with --kind
classify text-classification. Both sides are timed from texts to answers, by turns; weights are random unless a folder
is given. The answers are compared, and the smaller ratio is the headline.

--peer transformers is a loop that reads scores off the logits and no more; --peer pipelines has transformers' own
pipelines give whole answers as ours do. --peer tuned is sentence-transformers for embed and that loop for the other
kinds. --kind takes several, --layouts
compares how our texts are laid out on a GPU: flat rows (the default), the same compiled, and rows with padding.

    python benchmarks/inference.py
    python benchmarks/inference.py --device cuda --peer tuned --kind embed classify ner fill-mask qa
    python benchmarks/inference.py --peer sentence-transformers --kind embed --model FOLDER --lengths mixed
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import inference_peers
import numpy as np
import torch
import transformers

import maskwright as mw
from maskwright.inference.pipeline import pipeline
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.sources import read_python_documentation
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
"""A pipeline of transformers switches threads of the tokenizer off for all that comes after it in the process."""
TOP_K = 5
NUM_CLASSES = 4
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
SENTENCES_PER_DOCUMENT = 9
QUESTION = "what does this function return"
NUM_STS_COLUMNS = 7
NUM_COMPARED = 2_000
"""Texts whose answers are compared with those of fp32."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_model(folder: Path, kind: str, tokenizer: Tokenizer, arguments: argparse.Namespace) -> None:
    """A model with random weights, in a folder that both sides read."""
    encoder = mw.BERT.from_variant(arguments.variant, vocab_size=arguments.vocab_size, initializer_range=0.1)
    if kind in ("classify", "ner", "qa"):
        build_task_model(kind, encoder).save_pretrained(folder, tokenizer)
        return
    model = mw.MaskedLanguageModel(
        encoder,
        arguments.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        layer_norm_eps=encoder.norm_eps,
    )
    model.save_pretrained(folder, tokenizer)


def build_task_model(kind: str, encoder: mw.BERT) -> TaskModel:
    if kind == "ner":
        return TaskModel(encoder, build_token_head(encoder, len(TAGS), {}), TokenClassification(TAGS))
    if kind == "qa":
        return TaskModel(encoder, build_span_head(encoder, 2, {}), QuestionAnswering())
    task = Classification([f"class {number}" for number in range(NUM_CLASSES)])
    return TaskModel(encoder, build_sequence_head(encoder, NUM_CLASSES, {}), task)


def cut_texts(tokenizer: Tokenizer, arguments: argparse.Namespace) -> list[str]:
    """As many texts as asked for, none longer than the model or empty."""
    random = np.random.default_rng(0)
    longest = arguments.length - 2
    documents = [document.split() for document in read_python_documentation()]
    if arguments.lengths == "documents":
        chosen = [documents[number] for number in random.permutation(len(documents))[: arguments.texts]]
        return [cut_words(tokenizer, words, longest) for words in chosen]
    lengths = np.exp(random.normal(np.log(0.3 * min(arguments.length, 128)), 0.6, arguments.texts))
    if arguments.lengths == "mixed":
        lengths[:: SENTENCES_PER_DOCUMENT + 1] = longest
    words = [word for document in documents for word in document]
    if arguments.lengths == "long":
        lengths = random.uniform(0.75 * longest, longest, arguments.texts)
    starts = random.integers(0, len(words) - arguments.length, arguments.texts).tolist()
    return [
        cut_words(tokenizer, words[start : start + longest], int(length))
        for start, length in zip(starts, np.clip(lengths, 3, longest), strict=True)
    ]


def cut_words(tokenizer: Tokenizer, words: list[str], length: int) -> str:
    """The first words, up to so many tokens; one at least."""
    sizes = [len(ids) for ids in tokenizer.encode_batch(words[:length])]
    num_words = int((np.cumsum(sizes) <= length).sum())
    return " ".join(words[: max(num_words, 1)])


def mask_one_word(texts: list[str], mask_token: str) -> list[str]:
    random = np.random.default_rng(1)
    masked = []
    for text in texts:
        words = text.split()
        words[random.integers(len(words))] = mask_token
        masked.append(" ".join(words))
    return masked


def load_theirs(task: str, folder: Path, arguments: argparse.Namespace) -> Callable[..., Any]:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options = {"device": arguments.device, "dtype": DTYPES[arguments.precision], "batch_size": arguments.batch_size}
    return transformers.pipeline(task, model=str(folder), tokenizer=str(folder), **options)


def ask_ours(
    kind: str, folder: Path, precision: str, arguments: argparse.Namespace, layout: str | None = None
) -> Callable[[list[Any]], list[Any]]:
    """Answers in the form of the peers'."""
    options: dict[str, dict[str, Any]] = {
        "classify": {"top_k": None},
        "ner": {"aggregation": "none"},
        "fill-mask": {"top_k": TOP_K},
    }
    options.setdefault(kind, {})["max_length"] = arguments.length
    options[kind] |= {"compile": layout == "compiled"} if layout is not None else {}
    ours = pipeline(kind, str(folder), device=arguments.device, precision=precision, **options[kind])
    if layout == "rows":
        ours.kind.encoder.adds_scores = True  # which flat rows have no kernel for
    return lambda items: [inference_peers.READ[kind](answer) for answer in ours(items)]


def compare_answers(kind: str, found: list[Any], expected: list[Any]) -> tuple[str, float]:
    """In words, and the figure in them: the least cosine, or the share of texts with the same decision."""
    if kind == "embed":
        cosines = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(found, expected, strict=True)]
        return f"cosine {min(cosines):.6f} at least", min(cosines)
    same = float(np.mean([_decide(kind, a) == _decide(kind, b) for a, b in zip(found, expected, strict=True)]))
    pairs = [abs(a[key] - b[key]) for a, b in zip(found, expected, strict=True) for key in a.keys() & b.keys()]
    return f"{same:.1%} decide alike, scores differ by up to {max(pairs, default=0.0):.1e}", same


def _decide(kind: str, answer: dict[Any, float]) -> Any:
    return sorted(answer) if kind == "ner" else max(answer, key=lambda key: answer[key])


def compare_with_peer(kind: str, folder: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    tokenizer = load_tokenizer(folder)
    items: list[Any] = mask_one_word(texts, tokenizer.mask_token) if kind == "fill-mask" else texts
    items = [(QUESTION, text) for text in texts] if kind == "qa" else items
    num_tokens = sum(len(ids) + 2 for ids in tokenizer.encode_batch(texts))
    ours = ask_ours(kind, folder, arguments.precision, arguments, arguments.layouts[0])
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    name = arguments.peer
    if name == "tuned":
        name = "sentence-transformers" if kind == "embed" else "transformers"
    peer = inference_peers.load_peer(name, kind, folder, arguments)
    size = inference_peers.tune(peer, items, arguments.batch_size, clock)
    ours_s, theirs_s = measure(lambda: ours(items), lambda: peer(items, size), arguments.repeats, clock)
    exact = ask_ours(kind, folder, "fp32", arguments)(items[:NUM_COMPARED])
    figures = {"batch_size": float(size), "tokens": float(num_tokens)}
    mine = f"maskwright {arguments.layouts[0] or ''}".strip()
    sides = [("", mine, ours_s, ours), ("peer_", f"{name}, {size}", theirs_s, lambda some: peer(some, size))]
    for layout in arguments.layouts[1:]:
        other = ask_ours(kind, folder, arguments.precision, arguments, layout)
        other_s, _ = measure(partial(other, items), lambda: None, arguments.repeats, clock)
        sides.append((f"{layout}_", f"maskwright {layout}", other_s, other))
    for prefix, name, seconds, answer in sides:
        words, figure = compare_answers(kind, answer(items[:NUM_COMPARED]), exact)
        figures |= {
            f"{prefix}texts_per_s": len(texts) / seconds,
            f"{prefix}tokens_per_s": num_tokens / seconds,
            f"{prefix}agreement": figure,
        }
        speed = f"{len(texts) / seconds:9.1f} texts/s {num_tokens / seconds:9.0f} tokens/s"
        print(f"{kind:<9} {name:<22} {speed}; against fp32: {words}")
    return figures


def correlate_sts(folder: Path, file: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Spearman's rank correlation of cosines with the scores that people gave."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if len(row) >= NUM_STS_COLUMNS and row[5].strip() and row[6].strip()]
    scores, pairs = [float(row[4]) for row in rows], [(row[5], row[6]) for row in rows]
    found = {}
    for precision in dict.fromkeys(("fp32", arguments.precision)):
        compare = pipeline("similarity", str(folder), device=arguments.device, precision=precision)
        cosines = [answer["score"] for answer in compare(pairs)]
        found[precision] = float(np.corrcoef(rank(cosines), rank(scores))[0, 1])
        print(f"STS benchmark, {len(pairs)} pairs, {precision}: Spearman {found[precision]:.4f}")
    return found


def rank(values: list[float]) -> Any:
    """Ranks; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def load_ours(kind: str, folder: Path, arguments: argparse.Namespace, **options: Any) -> Callable[..., Any]:
    return pipeline(kind, str(folder), device=arguments.device, precision=arguments.precision, **options)


def measure(
    ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Median seconds of each, by turns, after one run that is not counted."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(2 * (repeats + 1)):
        begin = clock()
        (ours if turn % 2 == 0 else theirs)()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds[turn % 2].append(clock() - begin)
    return float(np.median(seconds[0][1:])), float(np.median(seconds[1][1:]))


def compare_fill_mask(folder: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    ours = load_ours("fill-mask", folder, arguments, top_k=TOP_K)
    theirs = load_theirs("fill-mask", folder, arguments)
    masked = mask_one_word(texts, load_tokenizer(folder).mask_token)
    ours_s, theirs_s = measure(lambda: ours(masked), lambda: theirs(masked, top_k=TOP_K), arguments.repeats)
    pairs = zip(ours(masked[:32]), theirs(masked[:32], top_k=TOP_K), strict=True)
    difference = max(abs(a["score"] - b["score"]) for mine, other in pairs for a, b in zip(mine, other, strict=True))
    return {"texts_per_s": len(texts) / ours_s, "peer_texts_per_s": len(texts) / theirs_s, "difference": difference}


def compare_embed(folder: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    ours = load_ours("embed", folder, arguments)
    theirs = load_theirs("feature-extraction", folder, arguments)
    lengths = [len(ids) + 2 for ids in load_tokenizer(folder).encode_batch(texts)]

    def pool_theirs() -> list[np.ndarray[Any, Any]]:
        states = theirs(texts, return_tensors=True)
        return [state[0, :length].float().mean(dim=0).numpy() for state, length in zip(states, lengths, strict=True)]

    ours_s, theirs_s = measure(lambda: ours(texts), pool_theirs, arguments.repeats)
    difference = max(float(abs(a - b).max()) for a, b in zip(ours(texts), pool_theirs(), strict=True))
    return {"texts_per_s": len(texts) / ours_s, "peer_texts_per_s": len(texts) / theirs_s, "difference": difference}


def compare_classify(folder: Path, texts: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    ours = load_ours("classify", folder, arguments, top_k=None)
    theirs = load_theirs("text-classification", folder, arguments)
    ours_s, theirs_s = measure(lambda: ours(texts), lambda: theirs(texts, top_k=None), arguments.repeats)
    scores = [
        [{one["label"]: one["score"] for one in answer} for answer in answers]
        for answers in (ours(texts), theirs(texts, top_k=None))
    ]
    difference = max(abs(mine[label] - other[label]) for mine, other in zip(*scores, strict=True) for label in mine)
    return {"texts_per_s": len(texts) / ours_s, "peer_texts_per_s": len(texts) / theirs_s, "difference": difference}


COMPARISONS = {"fill-mask": compare_fill_mask, "embed": compare_embed, "classify": compare_classify}
LANGUAGE_KINDS = ("fill-mask", "embed")
PEERS = ("tuned", "transformers", "pipelines", "sentence-transformers", "onnxruntime")
LAYOUTS = ("flat", "compiled", "rows")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse what would compare nothing, and take what no peer leaves open."""
    if arguments.peer is None:
        arguments.batch_size = arguments.batch_size or 32
        if unmatched := [kind for kind in arguments.kind if kind not in COMPARISONS]:
            parser.error(f"--kind {unmatched[0]} needs a --peer")
        if arguments.precision not in DTYPES:
            parser.error(f"--precision {arguments.precision} needs a --peer")
    if arguments.peer == "sentence-transformers" and arguments.kind != ["embed"]:
        parser.error("sentence-transformers embeds; add --kind embed")
    if arguments.peer == "pipelines" and (others := set(arguments.kind) - set(inference_peers.PIPELINES)):
        parser.error(f"transformers has no such pipeline for --kind {' '.join(sorted(others))}; use --peer tuned")
    if arguments.model is not None and len({kind in LANGUAGE_KINDS for kind in arguments.kind}) > 1:
        parser.error("--model has one head; give the kinds of one")
    arguments.peer_precision = "bf16" if arguments.precision == "auto" else arguments.precision
    if arguments.precision == "int8" and arguments.peer != "onnxruntime":
        arguments.peer_precision = "fp32"  # what such a user has


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", nargs="+", choices=list(inference_peers.CLASSES), default=list(LANGUAGE_KINDS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=[None], help="ours; the first is compared")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="seconds after which no kind begins")
    parser.add_argument("--peer", choices=PEERS, help="default: the pipelines of transformers as they come")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; default: random weights of --variant")
    parser.add_argument("--variant", choices=list(mw.BERT.variants), help="default: tiny, on a GPU base")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--lengths", choices=["documents", "log-normal", "mixed", "long"], default="documents")
    parser.add_argument("--length", type=int, help="tokens of the longest text; default: 512, log-normal 128")
    parser.add_argument("--texts", type=int, help="default: 256, on a GPU 7680")
    parser.add_argument("--batch-size", type=int, help="of the peer; default: 32, with --peer the fastest")
    parser.add_argument("--sts", type=Path, help="a file of the STS benchmark, for embed")
    parser.add_argument(
        "--cpu-time", action="store_true", help="with --peer: count the process's time, where others compute too"
    )
    parser.add_argument("--threads", type=int, help="of torch and onnxruntime; default: all")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16", "fp8", "int8", "auto"], default="fp32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    is_gpu = arguments.device.startswith("cuda")
    arguments.variant = arguments.variant or ("base" if is_gpu else "tiny")
    arguments.texts = arguments.texts or (7_680 if is_gpu else 256)
    arguments.length = arguments.length or (128 if arguments.lengths == "log-normal" else 512)
    check(parser, arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    results = {}
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.model or Path(temporary)
        if arguments.model is None:
            tokenizer = mw.train_tokenizer(read_python_documentation(), vocab_size=arguments.vocab_size)
            build_model(folder, arguments.kind[0], tokenizer, arguments)
        texts = cut_texts(load_tokenizer(folder), arguments)
        place = f"{arguments.device}, {arguments.precision}"
        print(f"{len(texts)} texts of up to {arguments.length} tokens ({arguments.lengths}), {place}")
        for kind in arguments.kind:
            if results and time.monotonic() - begun_s > arguments.time_limit:
                print(f"{kind:<9} left out: the time is up")
                continue
            if arguments.model is None and kind != arguments.kind[0]:
                folder = Path(temporary) / kind
                build_model(folder, kind, tokenizer, arguments)
            figures = (
                COMPARISONS[kind](folder, texts, arguments)
                if arguments.peer is None
                else compare_with_peer(kind, folder, texts, arguments)
            )
            figures["ratio"] = figures["texts_per_s"] / figures["peer_texts_per_s"]
            results[kind] = figures
            if arguments.peer is not None:
                print(f"{kind:<9} {figures['ratio']:.2f}x")
                continue
            print(
                f"{kind:<10} {figures['texts_per_s']:9.1f} texts/s, transformers {figures['peer_texts_per_s']:9.1f},"
                f" {figures['ratio']:.2f}x; answers differ by at most {figures['difference']:.1e}"
            )
        if arguments.sts:
            results["sts"] = correlate_sts(folder, arguments.sts, arguments)
    ratio = min(figures["ratio"] for figures in results.values() if "ratio" in figures)
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
