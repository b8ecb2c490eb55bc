"""What can go wrong while measuring, each as one sentence a student can act on.

IPython asks an exception for `_render_traceback_`; answering it keeps a notebook free of stack
traces that show our code instead of the student's. Nothing here imports torch or a widget.
"""

from __future__ import annotations

from typing import Any


class LabError(Exception):
    """A failure said in words for the student.

    Attributes:
        kept: what was measured before the failure (a record), or None when nothing was.
        details: the whole traceback or output, for those who want it.
    """

    def __init__(self, message: str, *, kept: Any = None, details: str = "") -> None:
        super().__init__(message)
        self.kept = kept
        self.details = details

    def _render_traceback_(self) -> list[str]:
        lines = [str(self)]
        if self.kept is not None:
            lines.append("What was measured until then is kept: see the exception's `kept`.")
        return lines


class WrongArgument(LabError, TypeError):
    """A call of labkit was given something it cannot use; the sentence says what it takes."""


class NoRealSlice(LabError):
    """The lease names a real slice and torch sees none; the CPU's figures would be a lie."""


class Unsendable(LabError):
    """A function or value cannot be sent to a child process."""


class StudentError(LabError):
    """The student's own code raised in the child; the message begins with their line."""


class ChildKilled(LabError):
    """The child process died without a word: killed, or out of the container's memory."""


class ChildTimeout(LabError):
    """The child was still busy (or hanging) when its time was over, and was ended."""


class OutOfMemory(LabError):
    """The device (or the container) has too little memory for what was asked."""


class LeaseGone(LabError):
    """The pool took the slice back while it was being measured."""


class NotBorrowed(LabError):
    """The slice that a measurement wanted to borrow did not come, or went."""


class TooFewRanks(LabError):
    """The experiment needs more ranks or devices than there are."""


class NotAPrediction(LabError):
    """What was typed cannot be read as a prediction."""


class EvidenceDamaged(LabError):
    """An evidence file was edited, cut short or written by another version."""


class NotMeasured(LabError):
    """A later step asks for something that has not been measured yet."""
