"""What the names of `transformers` mean here: its pipelines, and their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Habit:
    """What a name of `transformers` means: a kind of ours, with its defaults and the shape of its answers."""

    kind: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    shape: Callable[[Any], Any] | None = None
    lists_single: bool = False


def _add_batch_axis(answer: Any) -> Any:
    return answer[None] if answer.ndim > 1 else answer


FOREIGN_HABITS = {
    "text-classification": Habit("classify", lists_single=True),
    "sentiment-analysis": Habit("classify", lists_single=True),
    "token-classification": Habit("ner", {"aggregation": "none"}),
    "question-answering": Habit("qa", {"max_answer_length": 15}),
    "zero-shot-classification": Habit("zero-shot", {"labels": None}),
    "feature-extraction": Habit("embed", {"pooling": "none"}, _add_batch_axis),
    "sentence-similarity": Habit("similarity"),
}
_WRITES_NO_TEXT = "an encoder writes no text; maskwright.generate continues one with a model of training.mode=clm"
KINDS_INSTEAD = dict.fromkeys(
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
OPTIONS_INSTEAD = {
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
