"""Open a model of each kind in the programs that read exports, and compare their answers with ours, one line each.

python -m clients                       # all; environments and models are made where they are not there
python -m clients --only transformers   # clients in whose name the word is found
python -m clients --work DIR            # where environments and models are kept
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from clients.comparing import TOLERANCES, DifferenceError, compare
from clients.environments import LLAMA, NODE, NODE_ENVIRONMENTS, prepare
from clients.models import make_models

PROGRAMS = Path(__file__).parent / "programs"
WORK = Path(__file__).parents[1] / ".clients"
TIMEOUT_S = 900


@dataclass(frozen=True)
class Client:
    name: str
    environment: str
    program: str


CLIENTS = [
    Client("transformers", "modern", "theirs_transformers.py"),
    Client("transformers 4", "older", "theirs_transformers.py"),
    Client("sentence-transformers", "modern", "theirs_sentence_transformers.py"),
    Client("optimum-onnx", "older", "theirs_optimum.py"),
    Client("fastembed", "fastembed", "theirs_fastembed.py"),
    Client("Transformers.js", NODE, "theirs_transformers_js.mjs"),
    Client("llama.cpp", LLAMA, "theirs_llama_cpp.mjs"),
    Client("Flair", "flair", "theirs_flair.py"),
    Client("spacy-transformers", "spacy", "theirs_spacy_transformers.py"),
    Client("spacy-curated-transformers", "curated", "theirs_spacy_curated.py"),
    Client("setfit", "setfit", "theirs_setfit.py"),
    Client("peft", "modern", "theirs_peft.py"),
    Client("mteb", "modern", "theirs_mteb.py"),
    Client("LangChain", "modern", "theirs_langchain.py"),
]


@dataclass(frozen=True)
class Line:
    client: str
    version: str
    model: str
    variant: str
    difference: float | None
    problem: str = ""

    def __str__(self) -> str:
        what = "" if self.difference is None else f"{self.difference:.1e}"
        name = f"{self.client} {self.version}"
        return f"{name:<36}{self.model:<18}{self.variant:<6}{what:>9}  {self.problem or 'ok'}"


def main() -> int:
    options = parse_options()
    chosen = [one for one in CLIENTS if re.search(options.only, one.name, re.IGNORECASE)]
    answers = make_models(options.work / "models")
    models = {one["model"]: one for one in json.loads(answers.read_text(encoding="utf-8"))}
    lines: list[Line] = []
    for client in chosen:
        for line in open_all(client, options.work, answers, models):
            print(line, flush=True)
            lines.append(line)
    failed = sum(bool(line.problem) for line in lines)
    tolerances = ", ".join(f"{variant} {value:g}" for variant, value in TOLERANCES.items())
    print(f"{len(lines) - failed} ok, {failed} FAILED; tolerances: {tolerances}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(line) for line in lines], indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression for names of clients")
    parser.add_argument("--work", type=Path, default=WORK, metavar="DIR", help="a folder that is kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines here")
    return parser.parse_args()


def open_all(client: Client, work: Path, answers: Path, models: dict[str, dict]) -> Iterator[Line]:
    """A line for each answer of a client's program; one for what kept it from answering."""
    try:
        interpreter = prepare(client.environment, work / "environments")
    except RuntimeError as error:
        yield Line(client.name, "", "", "", None, f"cannot be installed: {error}")
        return
    words = [str(interpreter), str(PROGRAMS / client.program), str(answers.resolve())]
    if client.environment in NODE_ENVIRONMENTS:
        words.append(str((work / "environments" / client.environment).resolve()))
    log = work / f"{client.name.replace(' ', '-')}.log"
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "TOKENIZERS_PARALLELISM": "false"},
        )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for one in found:
        yield judge(client, one, models[one["model"]])
    if done.returncode or not found:
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:]
        yield Line(client.name, "", "", "", None, f"exit code {done.returncode}: {' '.join(last)} (see {log})")


def judge(client: Client, found: dict, model: dict) -> Line:
    difference, problem = None, found.get("error", "")
    if not problem:
        try:
            difference = compare(model["kind"], model[found["of"]], found["answers"])
            if not difference <= TOLERANCES[found["variant"]] or math.isnan(difference):
                problem = "too far from ours"
        except DifferenceError as error:
            problem = str(error)
    return Line(client.name, found["version"], model["model"], found["variant"], difference, problem)


if __name__ == "__main__":
    sys.exit(main())
