"""Fill-mask, embeddings and classes beside the pipelines of transformers, with the same weights on the same texts.

Texts are documents of the built-in corpus, cut to --length tokens, or with --lengths log-normal runs of its words of
log-normal length. The peer is `transformers.pipeline` in batches of 32, as it pads them: fill-mask with five
candidates, and feature-extraction with tensors as its answers, each averaged over the text's own tokens; with --kind
classify text-classification. Both sides are timed from texts to answers, by turns; weights are random unless a folder
is given. The answers are compared, and the smaller ratio is the headline.

    python benchmarks/inference.py
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import maskwright as mw
from maskwright.inference.pipeline import pipeline
from maskwright.tasks.heads import build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.sources import read_python_documentation
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

TOP_K = 5
NUM_CLASSES = 4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def build_model(folder: Path, arguments: argparse.Namespace) -> None:
    """A model with random weights, in a folder that both sides read."""
    tokenizer = mw.train_tokenizer(read_python_documentation(), vocab_size=arguments.vocab_size)
    encoder = mw.BERT.from_variant(arguments.variant, vocab_size=arguments.vocab_size, initializer_range=0.1)
    if arguments.kind == "classify":
        task = Classification([f"class {number}" for number in range(NUM_CLASSES)])
        TaskModel(encoder, build_sequence_head(encoder, NUM_CLASSES, {}), task).save_pretrained(folder, tokenizer)
        return
    model = mw.MaskedLanguageModel(
        encoder,
        arguments.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        layer_norm_eps=encoder.norm_eps,
    )
    model.save_pretrained(folder, tokenizer)


def cut_texts(tokenizer: Tokenizer, arguments: argparse.Namespace) -> list[str]:
    """As many texts as asked for, none longer than the model or empty."""
    random = np.random.default_rng(0)
    longest = arguments.length - 2
    documents = [document.split() for document in read_python_documentation()]
    if arguments.lengths == "documents":
        chosen = [documents[number] for number in random.permutation(len(documents))[: arguments.texts]]
        return [cut_words(tokenizer, words, longest) for words in chosen]
    lengths = np.exp(random.normal(np.log(0.3 * arguments.length), 0.6, arguments.texts))
    words = [word for document in documents for word in document]
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


def load_ours(kind: str, folder: Path, arguments: argparse.Namespace, **options: Any) -> Callable[..., Any]:
    ours = pipeline(kind, str(folder), device=arguments.device, **options)
    ours.kind.module.to(DTYPES[arguments.precision])
    return ours


def measure(ours: Callable[[], Any], theirs: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median seconds of each, by turns, after one run that is not counted."""
    seconds: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(2 * (repeats + 1)):
        begin = time.perf_counter()
        (ours if turn % 2 == 0 else theirs)()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds[turn % 2].append(time.perf_counter() - begin)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", choices=list(COMPARISONS), help="default: fill-mask and embed")
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; default: random weights of --variant")
    parser.add_argument("--variant", choices=list(mw.BERT.variants), help="default: tiny, on a GPU base")
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--lengths", choices=["documents", "log-normal"], default="documents")
    parser.add_argument("--length", type=int, help="tokens of the longest text; default: 512, log-normal 128")
    parser.add_argument("--texts", type=int, help="default: 256, on a GPU 7680")
    parser.add_argument("--batch-size", type=int, default=32, help="of the peer")
    parser.add_argument("--precision", choices=list(DTYPES), default="fp32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    is_gpu = arguments.device.startswith("cuda")
    arguments.variant = arguments.variant or ("base" if is_gpu else "tiny")
    arguments.texts = arguments.texts or (7_680 if is_gpu else 256)
    arguments.length = arguments.length or (512 if arguments.lengths == "documents" else 128)
    torch.manual_seed(0)
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.model or Path(temporary)
        if arguments.model is None:
            build_model(folder, arguments)
        texts = cut_texts(load_tokenizer(folder), arguments)
        place = f"{arguments.device}, {arguments.precision}"
        print(f"{len(texts)} texts of up to {arguments.length} tokens ({arguments.lengths}), {place}")
        for kind in [arguments.kind] if arguments.kind else LANGUAGE_KINDS:
            figures = COMPARISONS[kind](folder, texts, arguments)
            figures["ratio"] = figures["texts_per_s"] / figures["peer_texts_per_s"]
            results[kind] = figures
            print(
                f"{kind:<10} {figures['texts_per_s']:9.1f} texts/s, transformers {figures['peer_texts_per_s']:9.1f},"
                f" {figures['ratio']:.2f}x; answers differ by at most {figures['difference']:.1e}"
            )
    ratio = min(figures["ratio"] for figures in results.values())
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
