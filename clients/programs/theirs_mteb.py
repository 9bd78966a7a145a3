"""mteb: a model as its benchmarks encode with it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import mteb
from asking import answer_all
from datasets import Dataset
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader


def ask(model: dict[str, Any]) -> list[Any] | None:
    if model["kind"] != "embed":
        return None
    opened = SentenceTransformerEncoderWrapper(SentenceTransformer(model["hf"], device="cpu"))
    texts = DataLoader(Dataset.from_dict({"text": model["questions"]}), batch_size=4)
    metadata = mteb.get_task("STSBenchmark").metadata
    return opened.encode(texts, task_metadata=metadata, hf_split="test", hf_subset="default").tolist()


answer_all(ask, version("mteb"))
