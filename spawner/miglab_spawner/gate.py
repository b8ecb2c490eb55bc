"""A process that becomes another one when it is told to: ``gate.py COMMAND ARGUMENT…``.

Waits for the line ``go`` on standard input, then *becomes* the command: same pid, same start time,
so that who was attached to the lease is who runs.  If the input ends first (the hub died, or the
pool refused), it exits and no student code has run.

Started as a plain file with Python's ``-I -S``: the standard library only, and no import of ours.
"""

import os
import sys

GO = b"go\n"
NOT_TOLD = 75  # EX_TEMPFAIL
CANNOT_RUN = 127


def main(command: list[str]) -> int:
    """Wait, then become ``command``; returns only if that fails."""
    line = b""
    while len(line) < len(GO):
        received = os.read(0, len(GO) - len(line))
        if not received:
            return NOT_TOLD
        line += received
    if line != GO:
        return NOT_TOLD
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the hub's own command, no shell
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
