"""Errors and warnings of commands; the command line maps errors to exit codes."""

import re
from typing import Any

_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|STATUS_ALLOC_FAILED|std::bad_alloc|could not create a (primitive|memory)$"
)
"""The last is what oneDNN says on CPUs."""
_MOST_CHARS = 1200
_LAST_CHARS = 400


class InputError(ValueError):
    """The user's input is wrong: one sentence saying what was found, what was expected and what to do (exit 2).

    What was found may be of any length, so a long sentence loses its middle.
    """

    def __init__(self, message: str) -> None:
        if len(message) > _MOST_CHARS:
            message = f"{message[: _MOST_CHARS - _LAST_CHARS]} [...] {message[-_LAST_CHARS:]}"
        super().__init__(message)


class NewerFormatError(InputError):
    """A later version of this program wrote it; unlike damage, it is not passed over for something older."""


class RunError(RuntimeError):
    """Work that started could not be finished (exit 1)."""


class BadStepsError(RunError):
    """Too many steps in a row whose loss or gradient was not finite."""

    def __init__(self, problem: str, advice: str = "begin again from weights of before") -> None:
        super().__init__(
            f"{problem}; {advice}, with a lower optimizer.learning_rate, a lower optimizer.gradient_clipping_by_norm or"
            " training.precision=fp32"
        )
        self.problem = problem


class FollowerError(RunError):
    """A process ends because the main process failed; that one reports the reason."""


class LostProcessError(RunError):
    """One of the processes that train together died; launchers then end the others, which is not the cause."""


class RunInterruptedError(RunError):
    """A run was asked to end by a signal and saved its work; it exits as shells expect of that signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InputWarning(UserWarning):
    """Something in the user's input is ignored and the work continues: one sentence says what."""


def describe_shortage(error: BaseException) -> str | None:
    """Advice if the system has no more threads or memory; None for other errors."""
    is_refused = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if is_refused or isinstance(error, BlockingIOError):
        return (
            "the system starts no more threads or processes for this command; end others, or raise the limit"
            " (ulimit -u; of a container its pids limit)"
        )
    if is_out_of_memory(error):
        return (
            f"out of memory ({describe_briefly(error)}); end other programs that use it, or take a smaller model or"
            " batch"
        )
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; by its message, as not all libraries have a class for it."""
    if isinstance(error, RunError):
        return False
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error))))


def describe_briefly(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def cut_message(error: object, most_chars: int = 300) -> str:
    """The message of an error on one line; a long one ends at a word."""
    text = " ".join(str(error).split())
    if len(text) <= most_chars:
        return text
    return f"{text[: most_chars + 1].rpartition(' ')[0] or text[:most_chars]} ..."


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse a value that is not an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; expected a whole number")
    if value < least:
        raise InputError(f"{name} is {value}; it must be at least {least}")
