"""optimum-onnx: ORTModel classes in the pipelines of transformers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from asking import TOP_K, answer_all, put_mask
from optimum.onnxruntime import (
    ORTModelForFeatureExtraction,
    ORTModelForMaskedLM,
    ORTModelForQuestionAnswering,
    ORTModelForSequenceClassification,
    ORTModelForTokenClassification,
)
from transformers import AutoTokenizer, pipeline

CLASSES = {
    "fill-mask": ORTModelForMaskedLM,
    "classify": ORTModelForSequenceClassification,
    "pairs": ORTModelForSequenceClassification,
    "ner": ORTModelForTokenClassification,
    "qa": ORTModelForQuestionAnswering,
    "embed": ORTModelForFeatureExtraction,
}
FILES = {"fp32": "model.onnx", "fp16": "model_fp16.onnx", "q8": "model_int8.onnx"}


def ask(model: dict[str, Any], file: str) -> list[Any] | None:
    kind, questions = model["kind"], model["questions"]
    if kind not in CLASSES:
        return None
    tokenizer = AutoTokenizer.from_pretrained(model["onnx"])
    opened = CLASSES[kind].from_pretrained(model["onnx"], file_name=file)
    if kind == "embed":
        inputs = tokenizer(questions, padding=True, truncation=True, return_tensors="pt")
        weights = inputs["attention_mask"][..., None]
        hidden = opened(**inputs).last_hidden_state
        return ((hidden * weights).sum(1) / weights.sum(1)).tolist()
    options = {"model": opened, "tokenizer": tokenizer}
    if kind == "fill-mask":
        fill = pipeline("fill-mask", **options, top_k=TOP_K)
        answers = [fill(put_mask(text, tokenizer.mask_token)) for text in questions]
        return [[[one["token_str"], one["score"]] for one in each] for each in answers]
    if kind == "qa":
        read = pipeline("question-answering", **options)
        answers = [read(question=question, context=context) for question, context in questions]
        return [[one["answer"], one["score"]] for one in answers]
    if kind == "ner":
        answers = pipeline("token-classification", **options, aggregation_strategy="first")(questions)
        return [[[one["entity_group"], one["start"], one["end"], float(one["score"])] for one in e] for e in answers]
    classify = pipeline("text-classification", **options)
    texts = [{"text": first, "text_pair": second} for first, second in questions] if kind == "pairs" else questions
    answers = [classify(text) for text in texts]
    return [[one["label"], one["score"]] for one in (each[0] if isinstance(each, list) else each for each in answers)]


for variant, file in FILES.items():
    answer_all(lambda model, file=file: ask(model, file), version("optimum-onnx"), variant)
