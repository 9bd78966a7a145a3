"""Fine-tuning with `transformers.Trainer` as a careful user sets it up; the peer of benchmarks/finetune.py.

Examples are tokenized ahead in one call and padded to the longest of a batch of similar lengths; SDPA, autocast, fused
AdamW, workers that collate. The result, with the seconds of the training loop, is written as JSON.

python benchmarks/peers/trainer_finetune.py classification MODEL TRAIN VALIDATION RESULT.json --device cuda
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, Trainer, TrainerCallback, TrainingArguments

IGNORED = -100
STRIDE = 128
CLASSES = {
    "classification": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
}
Items = list[dict[str, Any]]


class Clock(TrainerCallback):
    """When the training begins and each step has been handed to the device."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
        if torch.cuda.is_available() and state.global_step in (state.max_steps // 2, state.max_steps):
            torch.cuda.synchronize()
        self.steps.append(time.perf_counter() - self.begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=CLASSES)
    for name in ("model", "train", "validation", "result"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.model))
    read = {"classification": read_texts, "ner": read_sentences, "qa": read_questions}[arguments.task]
    labels: list[str] = []
    train, held_out = (
        read(file, tokenizer, arguments.length, labels) for file in (arguments.train, arguments.validation)
    )
    options = {"num_labels": len(labels)} if labels else {}
    model = CLASSES[arguments.task].from_pretrained(str(arguments.model), attn_implementation="sdpa", **options)
    clock = Clock()
    trainer = Trainer(
        model,
        build_settings(arguments),
        train_dataset=train,
        data_collator=build_collator(arguments.task, tokenizer),
        callbacks=[clock],
    )
    trainer.train()
    score = measure(arguments.task, trainer, held_out, labels)
    half = len(clock.steps) // 2
    found = {
        "steps": len(clock.steps),
        "train_s": clock.steps[-1],
        "steps_per_s": (len(clock.steps) - half) / (clock.steps[-1] - clock.steps[half - 1]),
        "score": score,
    }
    arguments.result.write_text(json.dumps(found))


def build_settings(arguments: argparse.Namespace) -> TrainingArguments:
    known = {one.name for one in dataclasses.fields(TrainingArguments)}
    grouping = (
        {"group_by_length": True} if "group_by_length" in known else {"train_sampling_strategy": "group_by_length"}
    )
    return TrainingArguments(
        output_dir=str(arguments.result.with_suffix("")),
        per_device_train_batch_size=arguments.batch_size,
        per_device_eval_batch_size=4 * arguments.batch_size,
        num_train_epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        optim="adamw_torch_fused",
        weight_decay=0.01,
        bf16=arguments.precision == "bf16",
        tf32=arguments.device != "cpu",
        use_cpu=arguments.device == "cpu",
        dataloader_num_workers=4 if arguments.device != "cpu" else 0,
        torch_compile=arguments.compile,
        logging_steps=50,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **grouping,
    )


def build_collator(task: str, tokenizer: Any) -> Any:
    if task == "ner":
        return transformers.DataCollatorForTokenClassification(tokenizer)
    return transformers.DataCollatorWithPadding(tokenizer)


def read_texts(file: Path, tokenizer: Any, length: int, labels: list[str]) -> Items:
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    labels[:] = labels or sorted({str(record["label"]) for record in records})
    ids = tokenizer([record["text"] for record in records], truncation=True, max_length=length)["input_ids"]
    return [
        {"input_ids": one, "labels": labels.index(str(record["label"]))}
        for one, record in zip(ids, records, strict=True)
    ]


def read_sentences(file: Path, tokenizer: Any, length: int, labels: list[str]) -> Items:
    blocks = [block.splitlines() for block in file.read_text(encoding="utf-8").split("\n\n") if block.strip()]
    sentences = [[line.split("\t") for line in block] for block in blocks]
    labels[:] = labels or sorted({tag for sentence in sentences for _, tag in sentence})
    words = [[word for word, _ in sentence] for sentence in sentences]
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length)
    items = []
    for number, sentence in enumerate(sentences):
        places, before, tags = encoded.word_ids(number), None, []
        for place in places:
            is_first = place is not None and place != before
            tags.append(labels.index(sentence[place][1]) if is_first else IGNORED)
            before = place
        items.append({"input_ids": encoded["input_ids"][number], "labels": tags})
    return items


def read_questions(file: Path, tokenizer: Any, length: int, labels: list[str]) -> Items:
    data = json.loads(file.read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in data for paragraph in article["paragraphs"]]
    asked = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
    encoded = tokenizer(
        [question["question"] for _, question in asked],
        [context for context, _ in asked],
        truncation="only_second",
        max_length=length,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    items = []
    for number, source in enumerate(encoded["overflow_to_sample_mapping"]):
        first, last = find_answer(asked[source][1], encoded["offset_mapping"][number], encoded.sequence_ids(number))
        types = [int(part == 1) for part in encoded.sequence_ids(number)]
        items.append(
            {"input_ids": encoded["input_ids"][number], "token_type_ids": types}
            | {"start_positions": first, "end_positions": last}
        )
    return items


def find_answer(question: Any, offsets: Any, parts: Any) -> tuple[int, int]:
    """The first and the last token; 0 where the window does not hold the answer."""
    if not question["answers"]:
        return 0, 0
    start = question["answers"][0]["answer_start"]
    stop = start + len(question["answers"][0]["text"])
    inside = [
        place
        for place, (part, (begin, end)) in enumerate(zip(parts, offsets, strict=True))
        if part == 1 and begin < stop and end > start
    ]
    is_whole = inside and offsets[inside[0]][0] <= start and offsets[inside[-1]][1] >= stop
    return (inside[0], inside[-1]) if is_whole else (0, 0)


def measure(task: str, trainer: Trainer, held_out: Items, labels: list[str]) -> float:
    """Accuracy, F1 of entities, or the share of windows whose answer is exact."""
    output = trainer.predict(held_out)
    if task == "classification":
        return float((output.predictions.argmax(-1) == output.label_ids).mean())
    if task == "qa":
        (starts, ends), (first, last) = output.predictions[:2], output.label_ids
        return float(((starts.argmax(-1) == first) & (ends.argmax(-1) == last)).mean())
    found, wanted = (
        [[labels[tag] for tag, known in zip(row, truth, strict=True) if known != IGNORED] for row, truth in pairs]
        for pairs in (
            list(zip(output.predictions.argmax(-1), output.label_ids, strict=True)),
            list(zip(output.label_ids, output.label_ids, strict=True)),
        )
    )
    return score_entities([find_entities(row) for row in found], [find_entities(row) for row in wanted])


def find_entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """Start, stop and type of entities in BIO; an I- that follows nothing begins one."""
    entities, start, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            entities.add((start, place, kind))
            kind = ""
        if prefix in ("B", "I") and not kind:
            start, kind = place, name
    return entities


def score_entities(found: list[set[Any]], wanted: list[set[Any]]) -> float:
    hits = sum(len(one & other) for one, other in zip(found, wanted, strict=True))
    total = sum(map(len, found)) + sum(map(len, wanted))
    return float(np.divide(2 * hits, total)) if total else 0.0


if __name__ == "__main__":
    main()
