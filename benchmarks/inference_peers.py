"""Tuned peers for benchmarks/inference.py: texts sorted by length, the fastest batch size, SDPA, the same weights.

Each side answers a text with scores by key: (token, score) of the best candidates for fill-mask, classes for classify,
tokens for ner, the best span for qa; for embed with a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers

CLASSES = {
    "embed": transformers.AutoModel,
    "fill-mask": transformers.AutoModelForMaskedLM,
    "classify": transformers.AutoModelForSequenceClassification,
    "ner": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
}
PIPELINES = {
    "fill-mask": ("fill-mask", {"top_k": 5}),
    "classify": ("text-classification", {"top_k": None}),
    "ner": ("token-classification", {}),
}
"""Of transformers, each with its options here; the one for questions left transformers with version 5."""
READ: dict[str, Callable[[Any], Any]] = {
    "embed": lambda vector: vector,
    "classify": lambda answer: {one["label"]: one["score"] for one in answer},
    "ner": lambda answer: {(one["index"], one["entity"]): one["score"] for one in answer},
    "fill-mask": lambda answer: {one["token"]: one["score"] for one in answer},
    "qa": lambda answer: {(answer["start"], answer["end"]): 1.0},
}
"""Answers of pipelines, ours and theirs, as scores by key."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
BATCH_SIZES = (4, 16, 32, 64, 256)
NUM_TUNED = 128
GPU_BATCH_SIZES = (64, 128, 256)
NUM_TUNED_ON_GPU = 1_024
LONGEST_ANSWER = 30
Run = Callable[[dict[str, Any]], tuple[torch.Tensor, ...]]
Answers = list[Any]


def load_peer(name: str, kind: str, folder: Path, arguments: Any) -> Callable[[list[Any], int], Answers]:
    """A function of inputs and a batch size."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if name == "sentence-transformers":
        return load_sentence_transformer(folder, arguments)
    if name == "pipelines":
        return load_pipeline(kind, folder, arguments)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = CLASSES[kind].from_pretrained(str(folder), attn_implementation="sdpa").eval()
    if name == "onnxruntime":
        run = open_onnx(model, tokenizer, kind, arguments.peer_precision)
    else:
        model.to(arguments.device, DTYPES[arguments.peer_precision])
        run = lambda inputs: tuple(model(**inputs).to_tuple()[: 1 + (kind == "qa")])  # noqa: E731
    return SortedBatches(kind, run, tokenizer, model.config, arguments)


def load_sentence_transformer(folder: Path, arguments: Any) -> Callable[[list[Any], int], Answers]:
    from sentence_transformers import SentenceTransformer

    options = {"dtype": DTYPES[arguments.peer_precision], "attn_implementation": "sdpa"}
    model = SentenceTransformer(str(folder), device=arguments.device, model_kwargs=options)
    model.max_seq_length = arguments.length
    return lambda texts, size: list(model.encode(texts, batch_size=size, show_progress_bar=False))


def load_pipeline(kind: str, folder: Path, arguments: Any) -> Callable[[list[Any], int], Answers]:
    task, options = PIPELINES[kind]
    answer = transformers.pipeline(
        task,
        model=str(folder),
        device=arguments.device,
        dtype=DTYPES[arguments.peer_precision],
        model_kwargs={"attn_implementation": "sdpa"},
    )

    def run(texts: list[Any], size: int) -> Answers:
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        found = answer([texts[number] for number in order], batch_size=size, **options)
        answers: Answers = [None] * len(texts)
        for number, one in zip(order, found, strict=True):
            answers[number] = READ[kind](one)
        return answers

    return run


def open_onnx(model: Any, tokenizer: Any, kind: str, precision: str) -> Run:
    """The model's graph with onnxruntime's own fusions for BERT; int8 by its dynamic quantization."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    folder = Path(mkdtemp())
    inputs = dict(tokenizer(["a b c", "d"], padding=True, return_tensors="pt"))
    names = ["logits"] if kind != "qa" else ["start_logits", "end_logits"]
    model.config.return_dict = False
    torch.onnx.export(
        model,
        (),
        str(folder / "model.onnx"),
        kwargs=inputs,
        input_names=list(inputs),
        output_names=names,
        dynamic_shapes={key: {0: "rows", 1: "length"} for key in inputs},
        dynamo=True,
        verbose=False,
    )
    config = model.config
    fused = optimizer.optimize_model(
        str(folder / "model.onnx"),
        "bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=FusionOptions("bert"),
    )
    fused.save_model_to_file(str(folder / "fused.onnx"))
    file = folder / "fused.onnx"
    if precision == "int8":
        quantize_dynamic(file, folder / "int8.onnx", per_channel=True, weight_type=QuantType.QInt8)
        file = folder / "int8.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    print("onnxruntime's fusions:", {name: n for name, n in fused.get_fused_operator_statistics().items() if n})

    def run(inputs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        given = {name: tensor.numpy() for name, tensor in inputs.items()}
        return tuple(torch.from_numpy(one) for one in session.run(names, given))

    return run


class SortedBatches:
    """The usual loop, with the longest texts first."""

    def __init__(self, kind: str, run: Run, tokenizer: Any, config: Any, arguments: Any) -> None:
        self.run, self.tokenizer, self.config = run, tokenizer, config
        self.length, self.device, self.kind = arguments.length, arguments.device, kind
        self.reduce = getattr(self, f"reduce_{kind.replace('-', '_')}")

    def __call__(self, items: list[Any], batch_size: int) -> Answers:
        parts = list(zip(*items, strict=True)) if self.kind == "qa" else [items]
        cut = "only_second" if self.kind == "qa" else True
        encoded = self.tokenizer(
            *[list(part) for part in parts],
            truncation=cut,
            max_length=self.length,
            return_offsets_mapping=self.kind == "qa",
        )
        offsets = encoded.pop("offset_mapping", None)
        lengths = [len(ids) for ids in encoded["input_ids"]]
        order = np.argsort([-length for length in lengths], kind="stable").tolist()
        answers: Answers = [None] * len(items)
        with torch.inference_mode():
            for first in range(0, len(order), batch_size):
                chosen = order[first : first + batch_size]
                rows = {name: [values[number] for number in chosen] for name, values in encoded.items()}
                inputs = dict(self.tokenizer.pad(rows, return_tensors="pt").to(self.device))
                outputs = [output.float() for output in self.run(inputs)]
                places = [offsets[number] for number in chosen] if offsets else None
                segments = [encoded.sequence_ids(number) for number in chosen] if offsets else None
                for number, answer in zip(chosen, self.reduce(inputs, outputs, places, segments), strict=True):
                    answers[number] = answer
        return answers

    def reduce_embed(self, inputs: Any, outputs: Sequence[torch.Tensor], *_: Any) -> Answers:
        weights = inputs["attention_mask"][..., None].float()
        return list(((outputs[0] * weights).sum(1) / weights.sum(1)).cpu().numpy())

    def reduce_classify(self, inputs: Any, outputs: Sequence[torch.Tensor], *_: Any) -> Answers:
        names = self.config.id2label
        return [
            {names[number]: score for number, score in enumerate(scores)} for scores in outputs[0].softmax(-1).tolist()
        ]

    def reduce_ner(self, inputs: Any, outputs: Sequence[torch.Tensor], *_: Any) -> Answers:
        best = outputs[0].softmax(-1).max(-1)
        lengths = inputs["attention_mask"].sum(1).tolist()
        names = self.config.id2label
        return [
            {
                (place, names[number]): score
                for place, (number, score) in enumerate(zip(numbers[:length], scores, strict=False))
                if 0 < place < length - 1 and names[number] != "O"
            }
            for numbers, scores, length in zip(best.indices.tolist(), best.values.tolist(), lengths, strict=True)
        ]

    def reduce_fill_mask(self, inputs: Any, outputs: Sequence[torch.Tensor], *_: Any) -> Answers:
        asked = inputs["input_ids"] == self.tokenizer.mask_token_id
        best = outputs[0][asked].softmax(-1).topk(5)
        return [
            dict(zip(tokens, scores, strict=True))
            for tokens, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def reduce_qa(self, inputs: Any, outputs: Sequence[torch.Tensor], offsets: Any, segments: Any) -> Answers:
        starts, ends = outputs
        answers = []
        for row, (places, parts) in enumerate(zip(offsets, segments, strict=True)):
            inside = torch.tensor([part == 1 for part in parts], device=starts.device)
            length = len(parts)
            first, last = (one[row, :length].masked_fill(~inside, -1e9) for one in (starts, ends))
            scores = (first[:, None] + last).triu().tril(LONGEST_ANSWER - 1)
            scores = torch.where(scores == 0, -1e9, scores)
            place = int(scores.argmax())
            answers.append({(places[place // length][0], places[place % length][1]): 1.0})
        return answers


def tune(
    peer: Callable[[list[Any], int], Answers], items: list[Any], given: int | None, clock: Callable[[], float]
) -> int:
    """The fastest batch size for a part of the inputs."""
    if given is not None:
        return given
    sizes, number = (GPU_BATCH_SIZES, NUM_TUNED_ON_GPU) if torch.cuda.is_available() else (BATCH_SIZES, NUM_TUNED)
    some = items[:: max(1, len(items) // number)]
    seconds: dict[int, float] = {}
    if torch.cuda.is_available():
        peer(some, sizes[-1])  # loads kernels
    for size in sizes:
        if seconds and size // 4 > len(some):
            continue
        begin = clock()
        peer(some, size)
        seconds[size] = clock() - begin
    return min(seconds, key=lambda size: seconds[size])
