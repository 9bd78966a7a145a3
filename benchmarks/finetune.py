"""Fine-tuning beside `transformers.Trainer`: the same encoder, examples, batch size and epochs, each a whole command.

Ours is `maskwright finetune`; the peer is benchmarks/peers/trainer_finetune.py: batches of similar lengths padded to
the longest, SDPA, autocast, fused AdamW, workers that collate, and torch.compile with --peer-compile. Each is a process
of its own, from the start of Python to the saved score. Steps per second are those of the second half of the training,
after what is done once (kernels loaded, graphs captured); seconds of the training are all of it.

The encoder is a BERT with random weights, and the examples are made of words of the built-in corpus, with lengths as in
SST-2, CoNLL 2003 or SQuAD, unless files are given with --train and --validation (JSON lines with text and label, CoNLL
columns, SQuAD). `ratio` is that of the steps per second.

    python benchmarks/finetune.py --task classification --variant tiny
    python benchmarks/finetune.py --device cuda --task qa
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import maskwright as mw
from maskwright.text.sources import read_python_documentation

PEER = Path(__file__).parent / "peers" / "trainer_finetune.py"
VOCAB_SIZE = {"tiny": 4_096, "base": 30_522}
LENGTHS = {"classification": 128, "ner": 128, "qa": 384}
NUM_EXAMPLES = {"cpu": 320, "cuda": 16_000}
NUM_WORDS = {"classification": (2.1, 0.6, 45), "ner": (2.5, 0.6, 60), "qa": (4.9, 0.4, 500)}
"""Mean and deviation of the logarithm of a text's words, and the most."""
SCORES = {"classification": "accuracy", "ner": "f1", "qa": "window_exact"}
HINTS = {"good": ["returns", "accepts"], "bad": ["raises", "ignores"]}
NAMES = {"PER": ["Guido", "Ada", "Grace", "Alan"], "LOC": ["Amsterdam", "London", "Boston", "Delft"]}
SHARE_OF_NAMES = 0.15


def write_examples(task: str, file: Path, num_examples: int, seed: int) -> Path:
    generator = random.Random(seed)
    words = [word for text in read_python_documentation() for word in text.split()]
    taken = {word for hints in HINTS.values() for word in hints} | {name for names in NAMES.values() for name in names}
    words = [word for word in words if word not in taken]
    mean, deviation, most = NUM_WORDS[task]
    texts = []
    for _ in range(num_examples):
        start, size = generator.randrange(len(words) - most), int(generator.lognormvariate(mean, deviation))
        texts.append(words[start : start + min(max(size, 2), most)])
    write = {"classification": format_texts, "ner": format_sentences, "qa": format_questions}[task]
    file.write_text(write(texts, generator), encoding="utf-8")
    return file


def format_texts(texts: list[list[str]], generator: random.Random) -> str:
    """One word tells the label."""
    lines = []
    for text in texts:
        label = generator.choice(list(HINTS))
        text[generator.randrange(len(text))] = generator.choice(HINTS[label])
        lines.append(json.dumps({"text": " ".join(text), "label": label}))
    return "\n".join(lines) + "\n"


def format_sentences(texts: list[list[str]], generator: random.Random) -> str:
    blocks = []
    for text in texts:
        tags = ["O"] * len(text)
        for place in range(len(text)):
            if generator.random() < SHARE_OF_NAMES:
                kind = generator.choice(list(NAMES))
                text[place], tags[place] = generator.choice(NAMES[kind]), f"B-{kind}"
        blocks.append("\n".join(f"{word}\t{tag}" for word, tag in zip(text, tags, strict=True)))
    return "\n\n".join(blocks) + "\n"


def format_questions(texts: list[list[str]], generator: random.Random) -> str:
    """The one name among the words is the answer."""
    paragraphs = []
    for number, text in enumerate(texts):
        place, name = generator.randrange(len(text)), generator.choice(NAMES["PER"])
        text[place] = name
        start = len(" ".join([*text[:place], ""]))
        answers = [{"text": name, "answer_start": start}]
        question = {"id": f"q{number}", "question": "who is named here", "answers": answers, "is_impossible": False}
        paragraphs.append({"context": " ".join(text), "qas": [question]})
    return json.dumps({"version": "v2.0", "data": [{"title": "words", "paragraphs": paragraphs}]})


def build_encoder(folder: Path, variant: str) -> None:
    torch.manual_seed(0)
    vocab_size = VOCAB_SIZE[variant]
    tokenizer = mw.train_tokenizer(read_python_documentation(), vocab_size=vocab_size)
    encoder = mw.BERT.from_variant(variant, vocab_size=vocab_size)
    model = mw.MaskedLanguageModel(
        encoder,
        vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        layer_norm_eps=encoder.norm_eps,
    )
    model.save_pretrained(folder, tokenizer)


def run_ours(folder: Path, train: Path, held_out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    out = folder / "ours"
    words = ["-m", "maskwright", "finetune", arguments.task, "--model", str(folder / "encoder"), "--out", str(out)]
    words += ["--train", str(train), "--validation", str(held_out), "--epochs", str(arguments.epochs)]
    words += ["--batch-size", str(arguments.batch_size), "--learning-rate", str(arguments.learning_rate)]
    words += ["--max-length", str(arguments.length), f"training.device={arguments.device}", *arguments.settings]
    words += [] if arguments.precision == "auto" else [f"training.precision={arguments.precision}"]
    seconds = run(words)
    final = json.loads((out / "final.json").read_text(encoding="utf-8"))
    return {
        "steps": final["steps"],
        "train_s": final["seconds"],
        "steps_per_s": measure_second_half(out / "metrics.jsonl", final["steps"]),
        "score": final[SCORES[arguments.task]],
        "command_s": seconds,
    }


def measure_second_half(file: Path, num_steps: int) -> float:
    """From the first line of the log in the second half to the last."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    places = [(line["step"], line["elapsed_s"]) for line in lines if "elapsed_s" in line and "lr" in line]
    later = [place for place in places if place[0] >= num_steps // 2]
    (first_step, first_s), (last_step, last_s) = later[0], later[-1]
    if last_step == first_step:
        raise SystemExit(f"{num_steps} steps are too few to time; raise --examples")
    return float((last_step - first_step) / (last_s - first_s))


def run_peer(folder: Path, train: Path, held_out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    result = folder / "peer.json"
    words = [str(PEER), arguments.task, str(folder / "encoder"), str(train), str(held_out), str(result)]
    words += ["--device", arguments.device, "--batch-size", str(arguments.batch_size)]
    words += ["--length", str(arguments.length), "--epochs", str(arguments.epochs)]
    words += ["--learning-rate", str(arguments.learning_rate)]
    is_bf16 = arguments.precision == "bf16" or (arguments.precision == "auto" and arguments.device != "cpu")
    words += ["--precision", "bf16" if is_bf16 else "fp32", *(["--compile"] if arguments.peer_compile else [])]
    seconds = run(words)
    return {**json.loads(result.read_text(encoding="utf-8")), "command_s": seconds}


def run(words: list[str]) -> float:
    """Seconds of a whole process; what it printed is shown if it fails."""
    begun = time.perf_counter()
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(LENGTHS), default="classification")
    parser.add_argument("--variant", choices=list(VOCAB_SIZE), help="tiny on a CPU, else base")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--validation", type=Path)
    parser.add_argument("--examples", type=int, help="320 on a CPU, else 16,000; a quarter as many questions")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, help="32; 8 on a CPU")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--length", type=int, help="128; windows of questions 384")
    parser.add_argument("--peer-compile", action="store_true", help="the peer with torch_compile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="of our run, such as training.compile=true")
    arguments = parser.parse_args()
    if (arguments.train is None) != (arguments.validation is None):
        parser.error("--train and --validation go together")
    is_gpu = arguments.device != "cpu"
    arguments.variant = arguments.variant or ("base" if is_gpu else "tiny")
    arguments.length = arguments.length or LENGTHS[arguments.task]
    arguments.batch_size = arguments.batch_size or (32 if is_gpu else 8)
    share = 4 if arguments.task == "qa" else 1
    num_examples = arguments.examples or NUM_EXAMPLES["cuda" if is_gpu else "cpu"] // share
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build_encoder(folder / "encoder", arguments.variant)
        suffix = {"classification": ".jsonl", "ner": ".conll", "qa": ".json"}[arguments.task]
        train = arguments.train or write_examples(arguments.task, folder / f"train{suffix}", num_examples, 0)
        held_out = arguments.validation or write_examples(
            arguments.task, folder / f"held-out{suffix}", max(num_examples // 16, 32), 1
        )
        sides = {
            "transformers": run_peer(folder, train, held_out, arguments),
            "maskwright": run_ours(folder, train, held_out, arguments),
        }
    report(sides, arguments)


def report(sides: dict[str, dict[str, Any]], arguments: argparse.Namespace) -> None:
    place = f"{arguments.device}, {arguments.precision}"
    print(f"{arguments.task}, BERT {arguments.variant}, batches of {arguments.batch_size}, {place}")
    print(
        f"{'':<14}{'steps':>7}{'steps/s':>9}{'ms/step':>9}{'training s':>12}{'command s':>11}  {SCORES[arguments.task]}"
    )
    for name, side in sides.items():
        print(
            f"{name:<14}{side['steps']:>7}{side['steps_per_s']:>9.1f}{1e3 / side['steps_per_s']:>9.2f}"
            f"{side['train_s']:>12.1f}{side['command_s']:>11.1f}  {side['score']:.4f}"
        )
    ours, peer = sides["maskwright"], sides["transformers"]
    ratios = {
        "ratio": ours["steps_per_s"] / peer["steps_per_s"],
        "training_ratio": peer["train_s"] / ours["train_s"],
        "command_ratio": peer["command_s"] / ours["command_s"],
    }
    print(f"the whole training {ratios['training_ratio']:.2f}x, the whole command {ratios['command_ratio']:.2f}x")
    if arguments.json:
        arguments.json.write_text(json.dumps({**sides, **ratios}, indent=2) + "\n", encoding="utf-8")
    print(f"ratio {ratios['ratio']:.2f}x")


if __name__ == "__main__":
    main()
