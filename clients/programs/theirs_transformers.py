"""transformers: its Auto classes and pipelines on Hugging Face folders."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from asking import TOP_K, answer_all, find_span, put_mask
from transformers import AutoModel, AutoModelForQuestionAnswering, AutoTokenizer, pipeline


def ask(model: dict[str, Any]) -> list[Any] | None:
    folder, questions = model["hf"], model["questions"]
    match model["kind"]:
        case "fill-mask":
            fill = pipeline("fill-mask", model=folder, top_k=TOP_K, device="cpu")
            answers = [fill(put_mask(text, fill.tokenizer.mask_token)) for text in questions]
            return [[[one["token_str"], one["score"]] for one in each] for each in answers]
        case "classify":
            return [[one["label"], one["score"]] for one in pipeline("text-classification", model=folder)(questions)]
        case "pairs":
            classify = pipeline("text-classification", model=folder)
            answers = [classify({"text": first, "text_pair": second}) for first, second in questions]
            return [[one["label"], one["score"]] for one in answers]
        case "ner":
            answers = pipeline("token-classification", model=folder, aggregation_strategy="first")(questions)
            return [
                [[one["entity_group"], one["start"], one["end"], float(one["score"])] for one in each]
                for each in answers
            ]
        case "qa":
            return [_answer(folder, question, context) for question, context in questions]
        case "embed":
            return _embed(folder, questions)
        case _:
            return None


@torch.no_grad()
def _answer(folder: str, question: str, context: str) -> list[Any]:
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForQuestionAnswering.from_pretrained(folder)
    inputs = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    places = inputs.pop("offset_mapping")[0].tolist()
    output = model(**inputs)
    is_context = [part == 1 for part in inputs.sequence_ids(0)]
    start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
    first, last, score = find_span(start, end, is_context)
    return [context[places[first][0] : places[last][1]], score]


@torch.no_grad()
def _embed(folder: str, texts: list[str]) -> list[Any]:
    """The mean of all tokens, cut where the tokenizer's settings say."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    weights = inputs["attention_mask"][..., None]
    return ((model(**inputs).last_hidden_state * weights).sum(1) / weights.sum(1)).tolist()


answer_all(ask, transformers.__version__)
