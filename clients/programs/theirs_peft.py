"""peft: a classifier with new LoRA weights, which change nothing until they are trained, merged again."""

from importlib.metadata import version

import torch
from asking import answer_all
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def ask(model):
    if model["kind"] not in ("classify", "pairs"):
        return None
    tokenizer = AutoTokenizer.from_pretrained(model["hf"])
    opened = AutoModelForSequenceClassification.from_pretrained(model["hf"])
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules="all-linear")
    merged = get_peft_model(opened, config).merge_and_unload().eval()
    answers = []
    for question in model["questions"]:
        texts = [question] if isinstance(question, str) else question
        with torch.no_grad():
            scores = merged(**tokenizer(*texts, return_tensors="pt")).logits[0].softmax(-1)
        answers.append([merged.config.id2label[int(scores.argmax())], float(scores.max())])
    return answers


answer_all(ask, version("peft"))
