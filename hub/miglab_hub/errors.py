"""The error that every command turns into one message and exit status 2."""


class StartError(Exception):
    """The lab, or a command, cannot start as things are: what is wrong, and what to do."""
