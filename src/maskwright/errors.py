"""The two ways a command ends badly; the command line maps them to exit codes."""


class InputError(ValueError):
    """The user's input is wrong: one sentence saying what was found, what was expected and what to do (exit 2)."""


class RunError(RuntimeError):
    """Work that started could not be finished (exit 1)."""
