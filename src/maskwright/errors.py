"""The ways a command ends badly; the command line maps them to exit codes."""

from typing import Any


class InputError(ValueError):
    """The user's input is wrong: one sentence saying what was found, what was expected and what to do (exit 2)."""


class RunError(RuntimeError):
    """Work that started could not be finished (exit 1)."""


class FollowerError(RunError):
    """A process ends because the main one did, which says why."""


class LostProcessError(RunError):
    """One of the processes that train together died; launchers then ask the others to end, which is not the reason."""


class RunInterruptedError(RunError):
    """A run was asked to end by a signal and saved its work; it exits as shells expect of that signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InputWarning(UserWarning):
    """Something in the user's input is set aside and the work goes on: one sentence saying what."""


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} is {value!r}; expected a whole number")
    if value < least:
        raise InputError(f"{name} is {value}; it must be at least {least}")
