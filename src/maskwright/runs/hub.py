"""Push a finished folder to the Hugging Face hub, with the login and the settings of huggingface_hub."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.errors import InputError, RunError
from maskwright.runs.adapt import Adapted
from maskwright.runs.export import export_model
from maskwright.runs.export_options import HUGGING_FACE, SENTENCE_TRANSFORMERS, ExportOptions
from maskwright.runs.finetune.finetune import FinishedTask
from maskwright.runs.texts import Say
from maskwright.suggestions import name_option
from maskwright.terminal import CleanConsole
from maskwright.terminal import say as say_on
from maskwright.training.distributed.world import is_main_process

_PUSH = name_option("push_to_hub")
_REASONS = {
    401: "the hub does not accept the token; run hf auth login, or set HF_TOKEN",
    403: "the token may not write there; take one with the right to write, or another name",
}
"""Of answers that the hub gives in words of its own, by their status."""


class PushError(RunError):
    """What was finished is saved and stays, but it is not on the hub; `result` is what the call would have returned."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


def check_login(repo: str) -> None:
    """Refuse a push that could not succeed, before the work is done; nothing is asked over the network."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined,unused-ignore]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise InputError(f"{_PUSH} is '{repo}'; expected a name on the hub such as user/model ({error})") from error
    if constants.HF_HUB_OFFLINE:
        raise InputError(f"{_PUSH} needs the hub, and HF_HUB_OFFLINE is set; unset it, or leave the option out")
    if get_token() is None:
        raise InputError(f"{_PUSH} needs a login; run hf auth login, or set HF_TOKEN")


def push_folder(folder: Path, repo: str, private: bool, say: Say, result: Any) -> None:
    """Make the repository if it is not there, and commit the folder to it."""
    from huggingface_hub import HfApi

    say(f"pushing {folder} to {repo}")
    api = HfApi()
    try:
        place = api.create_repo(repo, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=place.repo_id, folder_path=folder, commit_message="Upload with Maskwright")
    except Exception as error:  # the hub's client raises those of several network libraries
        status = _find_status(error)
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reason = first if status is None or status not in _REASONS else f"{_REASONS[status]} ({first})"
        retry = shlex.join(["hf", "upload", repo, str(folder), "."]) + (" --private" if private else "")
        problem = f"{folder} is finished, but not on the hub: {reason}; push it later: {retry}"
        raise PushError(problem, result) from error
    say(f"{place}  the model on the hub")


def _find_status(error: BaseException | None) -> int | None:
    """Of the hub's answer that caused an error."""
    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def push_adapted(adapted: Adapted, repo: str, private: bool, say: Say) -> None:
    if not is_main_process():
        return
    if adapted.exported is None:
        problem = f"{adapted.run.folder.path} is finished, but could not be exported, and so not pushed to {repo}"
        raise PushError(problem, adapted)
    push_folder(adapted.exported, repo, private, say, adapted)


def push_task(finished: FinishedTask, repo: str, private: bool, console: Console | None) -> None:
    """The export of the best seed's model, with its card."""
    run, shown = finished.best_run, console or CleanConsole()
    if not is_main_process():
        return
    if finished.trouble is not None:
        raise PushError(f"nothing is pushed: {finished.trouble}", finished)

    def say(line: str) -> None:
        say_on(shown, line)

    if len(finished.runs) > 1:
        say(f"the model of {run.path.name} is pushed, the best of {len(finished.runs)} by {finished.metric}")
    try:
        has_head = finished.model.task_head.output is not None
        target = HUGGING_FACE if has_head else SENTENCE_TRANSFORMERS
        folder = export_model(str(run.path), ExportOptions(target, overwrite=True), say)
    except (InputError, RunError, OSError) as error:
        raise PushError(f"{run.model} is finished, but could not be prepared for the hub: {error}", finished) from error
    push_folder(folder, repo, private, say, finished)
