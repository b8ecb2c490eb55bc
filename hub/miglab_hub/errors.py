"""The errors that every command turns into one message and its exit status."""


class StartError(Exception):
    """The lab, or a command, cannot start as things are: what is wrong, and what to do."""

    exit_status = 2


class SettingsError(StartError):
    """lab.toml cannot be used: the message names file, key, what is wrong and what is allowed."""


class RefusedError(StartError):
    """The pool service refuses: its sentence, its word for programs, and the HTTP status."""

    exit_status = 3

    def __init__(self, message: str, reason: str, status: int = 0) -> None:
        super().__init__(message)
        self.reason, self.status = reason, status


class SilentError(StartError):
    """The pool service does not answer, or what answers is not one."""

    exit_status = 4
