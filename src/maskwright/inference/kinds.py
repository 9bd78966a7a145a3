"""The kinds of prediction: what each loads, how it answers, its options, and what `transformers` calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from maskwright.errors import InputError
from maskwright.inference.classify import CLASSIFYING_TASKS, Classify
from maskwright.inference.embed import Embed, Similarity
from maskwright.inference.fill_mask import FillMask
from maskwright.inference.late import EmbedTokens
from maskwright.inference.loading import (
    EncoderSource,
    LoadedEncoder,
    Source,
    find_retriever,
    load_language_model,
    load_task_model,
    load_text_encoder,
)
from maskwright.inference.ner import FindEntities
from maskwright.inference.qa import AnswerQuestions
from maskwright.inference.runner import Kind
from maskwright.inference.sparse import EmbedSparse
from maskwright.inference.zero_shot import ZeroShot
from maskwright.models.files.model_folder import read_config, resolve_folder
from maskwright.models.transformers_model import is_foreign
from maskwright.suggestions import suggest
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.retrieval.colbert import LateRetrieval
from maskwright.tasks.retrieval.splade import SpladeRetrieval
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.task import Task


@dataclass(frozen=True)
class Recipe:
    load: Callable[[Any, Any], tuple[Any, ...]]
    make: Callable[..., Kind[Any, Any]]
    """Of what was loaded, and the options by name."""
    options: Sequence[str]


def _load_encoder(model: EncoderSource, tokenizer: Any) -> tuple[LoadedEncoder]:
    return (load_text_encoder(model, tokenizer),)


def _load_embedder(model: EncoderSource, tokenizer: Any) -> tuple[Any, ...]:
    """An encoder; or the whole of a retriever that gives something else than a vector to a text."""
    if find_retriever(model) is None:
        return _load_encoder(model, tokenizer)
    assert not isinstance(model, LoadedEncoder)
    return load_task_model(model, tokenizer, "embed texts", SpladeRetrieval, LateRetrieval)


def _make_embed(*loaded: Any, **options: Any) -> Kind[Any, Any]:
    if len(loaded) == 1:
        return _make_vectors(*loaded, **options)
    model, tokenizer = loaded
    is_sparse = isinstance(model.task, SpladeRetrieval)
    gives = "weights of tokens" if is_sparse else "a vector to each token"
    for name, value in options.items():
        if name != "role" and value is not None:
            raise InputError(f"{name} is for one vector of a text, and this model gives {gives}; leave it out")
    role = options.get("role") or TEXT_ROLES[1]
    if role not in TEXT_ROLES:
        raise InputError(f"no role '{role}' of a text{suggest(role, TEXT_ROLES)}")
    return (EmbedSparse if is_sparse else EmbedTokens)(model, tokenizer, role)


def _make_vectors(loaded: LoadedEncoder, **options: Any) -> Embed:
    return Embed(loaded.encoder, loaded.tokenizer, loaded.settings.with_options(**options), loaded.find_causal)


def _make_similarity(loaded: LoadedEncoder, **options: Any) -> Similarity:
    return Similarity(_make_vectors(loaded, **options))


def _load_for(purpose: str, *tasks: type[Task]) -> Callable[[Source, Any], tuple[Any, ...]]:
    return lambda model, tokenizer: load_task_model(model, tokenizer, purpose, *tasks)


_QA_OPTIONS = ("top_k", "max_answer_length", "doc_stride", "max_question_length", "handle_impossible_answer")
RECIPES = {
    "fill-mask": Recipe(load_language_model, FillMask, ("top_k", "targets", "max_length")),
    "embed": Recipe(_load_embedder, _make_embed, ("pooling", "normalize", "max_length", "role")),
    "similarity": Recipe(_load_encoder, _make_similarity, ("pooling", "max_length")),
    "classify": Recipe(_load_for("classify texts", *CLASSIFYING_TASKS), Classify, ("top_k", "max_length")),
    "ner": Recipe(_load_for("find entities", TokenClassification), FindEntities, ("aggregation", "max_length")),
    "zero-shot": Recipe(
        _load_for("choose among labels", Classification),
        ZeroShot,
        ("labels", "hypothesis", "multi_label", "max_length"),
    ),
    "qa": Recipe(_load_for("answer questions", QuestionAnswering), AnswerQuestions, (*_QA_OPTIONS, "max_length")),
}
KINDS = tuple(RECIPES)


@dataclass(frozen=True)
class Habit:
    """What a name of `transformers` means: a kind of ours, with its defaults and the shape of its answers."""

    kind: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Any], Any] | None = None
    lists_single: bool = False


def _add_batch_axis(answer: Any) -> Any:
    return answer[None] if answer.ndim > 1 else answer


_FOREIGN_HABITS = {
    "text-classification": Habit("classify", lists_single=True),
    "sentiment-analysis": Habit("classify", lists_single=True),
    "token-classification": Habit("ner", {"aggregation": "none"}),
    "question-answering": Habit("qa", {"max_answer_length": 15}),
    "zero-shot-classification": Habit("zero-shot", {"labels": None}),
    "feature-extraction": Habit("embed", {"pooling": "none"}, _add_batch_axis),
    "sentence-similarity": Habit("similarity"),
}
_WRITES_NO_TEXT = "a pipeline writes no text; maskwright.generate does, with a model of training.mode=diffusion or clm"
_KINDS_INSTEAD = dict.fromkeys(
    ("text-generation", "text2text-generation", "summarization", "translation"), _WRITES_NO_TEXT
)
OPTIONS = {
    "aggregation_strategy": "aggregation",
    "candidate_labels": "labels",
    "hypothesis_template": "hypothesis",
    "max_seq_len": "max_length",
    "max_answer_len": "max_answer_length",
    "max_question_len": "max_question_length",
    "topk": "top_k",
}
"""Options of `transformers` under our names."""
_ON_WINDOWS = "a text longer than the model is read in windows, whose size max_length= sets"
_ON_WEIGHTS = "use precision='bf16' (or fp32, fp16, fp8, int8, auto)"
_OPTIONS_INSTEAD = {
    "batch_size": "inputs are packed; batch_tokens= says how many tokens are read at a time",
    "num_workers": "inputs are tokenized in chunks without worker processes; leave it out",
    "truncation": _ON_WINDOWS,
    "padding": "inputs are packed without padding; leave it out",
    "stride": _ON_WINDOWS,
    "return_all_scores": "use top_k=None for all classes",
    "function_to_apply": "scores are what the model's problem_type asks for: softmax, sigmoid or the measure itself",
    "grouped_entities": "use aggregation_strategy='simple'",
    "ignore_labels": "tokens of class O are left out; leave out others from the answer",
    "return_tensors": "answers are NumPy arrays; torch.from_numpy(answer) makes a tensor of one",
    "align_to_words": "answers begin and end at tokens; leave it out",
    "dtype": _ON_WEIGHTS,
    "torch_dtype": _ON_WEIGHTS,
    "device_map": "use device=",
    "framework": "there is PyTorch alone; leave it out",
    "trust_remote_code": "code of a model folder is never run; leave it out",
    "revision": "download the revision with huggingface_hub.snapshot_download and give its folder as the model",
}
HABITS = {**{kind: Habit(kind) for kind in KINDS}, **_FOREIGN_HABITS}


def resolve_kind(name: str) -> str:
    """Our kind of prediction behind a name, ours or one of `transformers`."""
    return find_habit(name).kind


def find_habit(name: str) -> Habit:
    if name in _KINDS_INSTEAD:
        raise InputError(f"no kind '{name}' of prediction: {_KINDS_INSTEAD[name]}")
    if name not in HABITS:
        raise InputError(f"no kind '{name}' of prediction{suggest(str(name), HABITS)}")
    return HABITS[name]


def read_options(given: Mapping[str, Any], kind: str, recipe: Recipe) -> dict[str, Any]:
    """Options under our names; one that the kind does not have is refused."""
    known = [*recipe.options, *(theirs for theirs, ours in OPTIONS.items() if ours in recipe.options)]
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            advice = _OPTIONS_INSTEAD.get(name)
            raise InputError(f"{kind} has no option '{name}'" + (f": {advice}" if advice else suggest(name, known)))
        ours = OPTIONS.get(name, name)
        if ours in options:
            raise InputError(f"'{name}' is another name of '{ours}', and both are given; keep one of them")
        options[ours] = value
    return options


def outline_kind(name: str, model: str | Path, **options: Any) -> Kind[Any, Any]:
    """A kind of prediction around a named model without its weights: what it asks and how its answers look."""
    habit, folder = find_habit(name), resolve_folder(model)
    recipe = RECIPES[habit.kind]
    # transformers builds those of its own; they are read, and let go of.
    with nullcontext() if is_foreign(read_config(folder)) else torch.device("meta"):
        loaded = recipe.load(folder, None)
    kind = recipe.make(*loaded, **{**habit.defaults, **read_options(options, name, recipe)})
    kind.module.to("meta")
    return kind
