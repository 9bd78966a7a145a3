"""The models that clients open: one of each kind, tiny and trained, with what Maskwright answers."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from journeys.files import NAMES, read_builtin, write_corpora, write_tasks

import maskwright
from maskwright.inference.loading import load_text_encoder
from maskwright.inference.pipeline import pipeline
from maskwright.inference.search.rerank import Reranker
from maskwright.models.roberta import XLMRoBERTa
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.sentence_export import build_embed
from maskwright.text.tokenizer.tokenizer import load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

ENCODERS = {
    "bert": {"model.family": "bert", "tokenizer.type": "wordpiece"},
    "modern": {
        "model.family": "modernbert",
        "tokenizer.type": "byte_level_bpe",
        "model.local_attention": 16,
        "model.global_attn_every_n_layers": 3,
        "model.global_rope_theta": 160_000.0,
        # llama.cpp has no biases in norms, and no lower case before a byte-level BPE.
        "model.norm_bias": False,
        "tokenizer.lowercase": False,
    },
    "xlm": {
        "preset": "domain_adaptation",
        "model.from": "xlm-roberta",
    },  # whose weights are new, with a Unigram tokenizer
}
"""By the name of the run: each with a tokenizer of another kind."""
MAX_LENGTH = 62
"""Of all models; XLM-RoBERTa has as many positions and those up to its padding."""
VOCAB_SIZE = 2000
SHAPE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 128}
SETTINGS = {
    "data.max_length": MAX_LENGTH,
    "optimizer.learning_rate": 3e-3,
    "training.batch_tokens": 2048,
    "training.max_steps": 60,
}
TEXTS_FILE, PAIRS_FILE = "texts.txt", "found.jsonl"
ANSWERS_FILE = "answers.json"
TOP_K = 3
EXACT = {"device": "cpu", "precision": "fp32"}
"""How Maskwright answers, so that only clients in fewer bits differ."""


@dataclass(frozen=True)
class Kind:
    task: str
    """The task of `finetune`; empty: the model is pre-trained."""
    files: tuple[str, str]
    ask: Callable[[Path], list[Any]]
    """What Maskwright answers of a model folder, in the form that programs print."""
    questions: Sequence[Any]
    is_sentences: bool = False
    """Whether the model's own folder is one of sentence-transformers."""


TEXTS = [
    "The function returns a list of the names in the module.",
    "If the file does not exist, an error is raised.",
    "Return the string, Café and naïve text included!",
]
LONG = " ".join(["Return a dictionary of the names and a list of the files."] * 30)
"""More tokens than the models take: programs have to cut it."""
PAIRS = [("The list holds names.", "Return a list."), ("It opens the file.", "The file does not exist.")]
HARD = [
    "Ünïcödé naïve façade, œuvre, Straße",
    "İstanbul, Ελληνικά, Привет!",
    "don't,  isn't -- \t tabs\nand lines",
    "3.14, 1,000,000 (100%) #tag @name a_b C++ ~x $5 `code`",
    "日本語の文。中文字符。",
    "العربية עברית",
    "🙂 — “quotes” … ½ € © zero\u200bwidth",
    "word",
]
"""Texts that tokenizers of other programs might split otherwise. Korean and the vowel signs of Indian scripts are not
among them: where a tokenizer strips accents, llama.cpp drops parts of their letters too (docs/clients.md)."""
QUESTIONS = [
    ("Where is the name?", "The function returns a list of the names in the module."),
    ("What is raised?", "If the file does not exist, an error is raised by the function."),
]


def ask_masks(folder: Path) -> list[Any]:
    ask = pipeline("fill-mask", folder, **EXACT, top_k=TOP_K)
    return [[[one["token_str"], one["score"]] for one in ask(text)] for text in mask(TEXTS)]


def mask(texts: Sequence[str]) -> list[str]:
    """Each text with its fourth word masked; every tokenizer's own mask takes the place of `[MASK]`."""
    return [" ".join([*text.split()[:3], "[MASK]", *text.split()[4:]]) for text in texts]


def ask_classes(folder: Path) -> list[Any]:
    return [[one["label"], one["score"]] for one in pipeline("classify", folder, **EXACT)(TEXTS)]


def ask_pairs(folder: Path) -> list[Any]:
    ask = pipeline("classify", folder, **EXACT)
    answers = ask([{"text": first, "text_pair": second} for first, second in PAIRS])
    return [[one["label"], one["score"]] for one in answers]


def ask_entities(folder: Path) -> list[Any]:
    answers = pipeline("ner", folder, **EXACT)(TEXTS)
    return [[[one["entity_group"], one["start"], one["end"], one["score"]] for one in each] for each in answers]


def ask_answers(folder: Path) -> list[Any]:
    ask = pipeline("qa", folder, **EXACT)
    answers = [ask(question=question, context=context) for question, context in QUESTIONS]
    return [[one["answer"], one["score"]] for one in answers]


def ask_vectors(folder: Path) -> list[Any]:
    """Of texts that are cut, as programs do; our pipeline reads long texts in windows."""
    loaded = load_text_encoder(folder)
    rows = [loaded.tokenizer.encode(text) for text in [*TEXTS, LONG]]
    room = loaded.settings.max_length or MAX_LENGTH
    return build_embed(loaded)([row if len(row) <= room else [*row[: room - 1], row[-1]] for row in rows]).tolist()


def ask_hard(folder: Path) -> dict[str, Any]:
    """Ids and vectors of texts in other scripts, with accents and signs."""
    loaded = load_text_encoder(folder)
    ids = [loaded.tokenizer.encode(text) for text in HARD]
    room = loaded.settings.max_length or MAX_LENGTH
    assert max(map(len, ids)) <= room
    return {"hard": HARD, "hard_ids": ids, "hard_vectors": build_embed(loaded)(ids).tolist(), "room": room}


@torch.no_grad()
def average_inner_states(folder: Path) -> list[Any]:
    """The mean hidden state of the tokens between those around a text."""
    loaded = load_text_encoder(folder)
    rows = [torch.tensor([loaded.tokenizer.encode(text)]) for text in TEXTS]
    return [loaded.encoder.eval()(input_ids=row).last_hidden_state[0, 1:-1].mean(0).tolist() for row in rows]


def ask_reranker(folder: Path) -> list[Any]:
    queries, documents = zip(*PAIRS, strict=True)
    return [[None, *scores] for scores in Reranker(str(folder), "fp32").score(queries, [[one] for one in documents])]


def ask_sparse(folder: Path) -> list[Any]:
    """Weights of documents, by the numbers of their tokens."""
    answers = pipeline("embed", folder, **EXACT)(TEXTS)
    vocab_size = load_tokenizer(folder).vocab_size
    return [np.bincount(one.tokens, one.weights, vocab_size).tolist() for one in answers]


def ask_late(folder: Path) -> list[Any]:
    """The vectors of documents' tokens, one after another."""
    return [vectors.ravel().tolist() for vectors in pipeline("embed", folder, **EXACT)(TEXTS)]


KINDS = {
    "fill-mask": Kind("", ("corpus.txt", ""), ask_masks, mask(TEXTS)),
    "classify": Kind("classification", ("train.tsv", "dev.tsv"), ask_classes, TEXTS),
    "pairs": Kind("pairs", ("snli_train.jsonl", "snli_dev.jsonl"), ask_pairs, PAIRS),
    "ner": Kind("ner", ("train.conll", "dev.conll"), ask_entities, TEXTS),
    "qa": Kind("qa", ("train-v2.0.json", "dev-v2.0.json"), ask_answers, QUESTIONS),
    "embed": Kind("similarity", ("nli.jsonl", "sts-dev.csv"), ask_vectors, [*TEXTS, LONG], True),
    "rerank": Kind("rerank", (PAIRS_FILE, ""), ask_reranker, PAIRS, True),
    "splade": Kind("retrieval", (PAIRS_FILE, ""), ask_sparse, TEXTS, True),
    "colbert": Kind("retrieval", (PAIRS_FILE, ""), ask_late, TEXTS, True),
}
MODELS = [
    *[("bert", kind) for kind in KINDS],
    *[("modern", kind) for kind in ("fill-mask", "ner", "embed", "splade")],
    *[("xlm", kind) for kind in ("fill-mask", "classify", "embed")],
]
"""(encoder, kind)"""


def make_models(folder: Path) -> Path:
    """Train and export what is not there, and write ANSWERS_FILE, which programs read."""
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        if not Path("corpus.txt").is_file():
            material = read_builtin()
            write_tasks(material, Path())
            write_corpora(material, Path())
        Path(TEXTS_FILE).write_text("\n".join([*TEXTS, *(f"It is a {name} of the module." for name in NAMES)]))
        _write_pairs(Path(PAIRS_FILE))
        if not Path("xlm-roberta").is_dir():
            _write_xlm_roberta(Path("xlm-roberta"))
        models = [_make(encoder, kind) for encoder, kind in MODELS]
        Path(ANSWERS_FILE).write_text(json.dumps(models, indent=2), encoding="utf-8")
    finally:
        os.chdir(before)
    return folder / ANSWERS_FILE


def _write_pairs(file: Path) -> None:
    """Questions with a document that answers them and one that does not."""
    names = [*NAMES, *(f"{name} of {other}" for name, other in itertools.pairwise(NAMES))]
    rows = [
        {
            "query": f"What is the {name}?",
            "positive": f"It is a {name} of the module.",
            "negative": f"Return a {other}.",
        }
        for name, other in zip(names, reversed(names), strict=True)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _write_xlm_roberta(folder: Path) -> None:
    tokenizer = train_tokenizer("corpus.txt", "unigram", VOCAB_SIZE)
    encoder = XLMRoBERTa.from_variant(
        "tiny",
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_token_id,  # transformers counts positions by the tokens that are not this one
        max_position_embeddings=MAX_LENGTH + 1 + tokenizer.pad_token_id,
        hidden_act="gelu",
        **SHAPE,
    )
    model = MaskedLanguageModel(encoder, tokenizer=tokenizer, layer_norm_eps=encoder.norm_eps)
    model.save_pretrained(folder, tokenizer)


def _make(encoder: str, kind: str) -> dict[str, Any]:
    run = Path("runs") / encoder
    if not (run / "final.json").is_file():
        settings = {**SETTINGS, **ENCODERS[encoder], "data.train": "corpus.txt", "run.name": encoder}
        if "model.from" not in settings:
            settings |= {"model.variant": "tiny", "model.hidden_act": "gelu", "tokenizer.vocab_size": VOCAB_SIZE}
            settings |= {f"model.{name}": value for name, value in SHAPE.items()}
        maskwright.train(settings=[f"{key}={value}" for key, value in settings.items()], overwrite=True)
    model = run / "model"
    if KINDS[kind].task:
        model = _finetune(encoder, kind) / "model"
    exports = {to: Path("exports") / f"{encoder}-{kind}-{to}" for to in ("hf", "onnx")}
    if KINDS[kind].is_sentences:
        exports["hf"] = model  # which is a folder of sentence-transformers as it is
    if kind == "embed" and encoder != "xlm":  # llama.cpp has no Unigram tokenizer like ours
        exports["gguf"] = Path("exports") / f"{encoder}-{kind}-gguf"
    for to, out in exports.items():
        if not out.is_dir():
            halves = {"int8": True, "fp16": True} if to in ("onnx", "gguf") else {}
            maskwright.export(model.parent, to, out=out, text=TEXTS_FILE, **halves)
    return {
        "model": f"{encoder}-{kind}",
        "kind": kind,
        **{to: str(out.resolve()) for to, out in exports.items()},
        "questions": KINDS[kind].questions,
        "answers": KINDS[kind].ask(model),
        **({"inner": average_inner_states(model), **ask_hard(model)} if kind == "embed" else {}),
    }


def _finetune(encoder: str, kind: str) -> Path:
    task, (train, validation) = KINDS[kind].task, KINDS[kind].files
    out = Path("runs") / f"{encoder}-{kind}"
    if not (out / "final.json").is_file():
        options = {"learning_rate": 1e-3, "epochs": 3, "max_length": MAX_LENGTH}
        if kind == "qa":
            options |= {"doc_stride": 16, "max_question_length": 24}
        if task == "retrieval":
            options |= {"kind": kind}
        files = {"train": _shorten(train), "validation": validation or None}
        maskwright.finetune(task, out, model=f"runs/{encoder}", overwrite=True, **files, **options)
    return out


_MOST_ROWS = 400


def _shorten(file: str) -> str:
    """The first examples of a table, or all of a file in another form."""
    path = Path(file)
    if path.suffix not in (".tsv", ".jsonl"):
        return file
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    short = path.with_name(f"few-{path.name}")
    short.write_text("".join(lines[: _MOST_ROWS + 1]), encoding="utf-8")
    return str(short)
