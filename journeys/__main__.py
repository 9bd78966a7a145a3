"""Run every command of README and docs and every recipe's first steps, one line each.

python -m journeys                      # all, on whatever this machine has
python -m journeys --only finetune      # those in whose command or page the word is found, and what they need
python -m journeys --list               # what would be run, and what not and why
python -m journeys --prepare-data DIR   # write the files they use, for --data DIR on another machine
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch

from journeys.documents import list_documented
from journeys.files import REPOSITORY, read_builtin, read_shared, write_files
from journeys.plan import LEARNING_SECONDS, Journey, build_plan, select
from journeys.running import Outcome, Workshop

PUBLISHED = REPOSITORY.parent / "shared/data"


def main() -> int:
    options = parse_options()
    if options.prepare_data:
        prepare_files(options.prepare_data, options.source)
        return 0
    device = "gpu" if torch.cuda.is_available() else "cpu"
    journeys = build_plan(list_documented(REPOSITORY), device, options.budget)
    if options.only:
        journeys = select(journeys, options.only)
    if options.list:
        for journey in journeys:
            print_line(Outcome("skipped", figure=journey.skip) if journey.skip else Outcome("run"), journey)
        return 0
    folder = options.work or Path(tempfile.mkdtemp(prefix="journeys-"))
    try:
        files = options.data or folder / "files"
        if not files.is_dir():
            prepare_files(files, options.source)
        threads = None if options.jobs == 1 else max(1, (os.cpu_count() or 1) // options.jobs)
        workshop = Workshop(folder, files, options.timeout, threads)
        start = time.monotonic()
        outcomes = run_all(journeys, workshop, options.jobs, keep=options.work is not None)
        return report(journeys, outcomes, time.monotonic() - start, device, options.json)
    finally:
        if options.work is None:
            shutil.rmtree(folder, ignore_errors=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m journeys", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PATTERN", help="a regular expression for commands or pages")
    parser.add_argument("--list", action="store_true", help="show what would be run, and what not and why")
    parser.add_argument("--data", type=Path, metavar="DIR", help="files of --prepare-data; unset: they are made")
    parser.add_argument("--prepare-data", type=Path, metavar="DIR", help="write those files and end")
    parser.add_argument(
        "--source", type=Path, default=PUBLISHED, help="published data; absent: the built-in corpus takes its place"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=LEARNING_SECONDS,
        metavar="SECONDS",
        help=f"of each training; with less than {LEARNING_SECONDS} none has to be better than its baseline",
    )
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="of each journey")
    parser.add_argument("--jobs", type=int, default=1, help="journeys at a time")
    parser.add_argument("--work", type=Path, metavar="DIR", help="a folder to keep; finished journeys are not repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    return parser.parse_args()


def prepare_files(folder: Path, source: Path) -> None:
    write_files(read_shared(source) if source.is_dir() else read_builtin(), folder)


def run_all(journeys: list[Journey], workshop: Workshop, jobs: int, keep: bool) -> list[Outcome]:
    """Outcomes in the order of `journeys`, in which those who are needed come first: no worker waits forever."""
    futures: dict[str, Future[Outcome]] = {}
    folders = {journey.key: workshop.find_folder(journey) for journey in journeys}
    needed = {key for journey in journeys for key, _ in journey.needs.values()}
    printing = threading.Lock()

    def run(journey: Journey) -> Outcome:
        outcome = run_one(journey)
        if not keep and journey.key not in needed:
            shutil.rmtree(folders[journey.key], ignore_errors=True)
        with printing:
            print_line(outcome, journey)
        return outcome

    def run_one(journey: Journey) -> Outcome:
        if journey.skip:
            return Outcome("skipped", figure=journey.skip)
        if package := journey.find_missing_package():
            return Outcome("skipped", figure=f"needs {package}")
        for name, (key, _) in journey.needs.items():
            if (other := futures[key].result()).status != "ok":
                return Outcome("skipped", figure=f"needs {name}, which {other.status.lower()}")
        links = {name: folders[key] / path for name, (key, path) in journey.needs.items()}
        record = folders[journey.key] / "outcome.json"
        if keep and record.is_file():
            return Outcome(**json.loads(record.read_text(encoding="utf-8")))
        outcome = workshop.run(journey, folders[journey.key], links)
        if outcome.status == "ok":
            record.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        for journey in journeys:
            futures[journey.key] = pool.submit(run, journey)
        return [futures[journey.key].result() for journey in journeys]


def print_line(outcome: Outcome, journey: Journey) -> None:
    seconds = f"{outcome.seconds:.1f} s" if outcome.seconds else ""
    place = journey.places[0] + (f" +{len(journey.places) - 1}" if len(journey.places) > 1 else "")
    print(f"{outcome.status:8}{seconds:>8}  {outcome.figure[:60]:60}  {journey.shown}  [{place}]", flush=True)
    if outcome.tail:
        print("\n".join(f"    | {line}" for line in outcome.tail.splitlines()), flush=True)


def report(journeys: list[Journey], outcomes: list[Outcome], seconds: float, device: str, file: Path | None) -> int:
    counts = {status: sum(one.status == status for one in outcomes) for status in ("ok", "FAILED", "skipped")}
    print(f"{', '.join(f'{count} {status}' for status, count in counts.items())} in {seconds:.0f} s on a {device}")
    if file is not None:
        rows = [
            {"command": journey.shown, "places": journey.places, **asdict(outcome)}
            for journey, outcome in zip(journeys, outcomes, strict=True)
        ]
        file.write_text(json.dumps({"device": device, "seconds": seconds, "journeys": rows}, indent=2) + "\n")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
