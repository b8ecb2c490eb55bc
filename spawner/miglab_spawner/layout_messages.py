"""What staff and pool service say to each other of layouts.  The wire format only.

A layout file travels as its text, so that what is wrong in it can be told with its line.
"""

from typing import Annotated

from pydantic import Field

from .messages import GpuLayout, LayoutName, Layouts, Message, ReasonText

TEXT_MAX = 32 * 1024
WARNING_MAX_S = 3600.0


class LayoutText(Message):
    """A layout file.

    Attributes:
        text: what is in it.
        file: its name, for what is wrong in it.
        names: only these of its layouts; empty: all.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
    file: Annotated[str, Field(min_length=1, max_length=200)] = "layout"
    names: Annotated[tuple[LayoutName, ...], Field(max_length=32)] = ()


class ApplyRequest(LayoutText):
    """Apply the layouts of a file.

    Attributes:
        reason: why; staff read it, and with ``now`` whoever is asked to leave.
        now: ask back the leases that are in the way of what is in force, instead of waiting for
            their end; those of courses that are not the asker's run on.
        warning_s: how long before they are taken back their holders are warned.
    """

    reason: ReasonText = ""
    now: bool = False
    warning_s: Annotated[float, Field(ge=0, le=WARNING_MAX_S)] = 300.0


class Applied(Layouts):
    """What is applied now; ``asked_back`` are the leases that were warned for it."""

    asked_back: tuple[int, ...] = ()


class AssertRequest(Message):
    """Does it conform: the layouts of a file or, without one, what is in force?

    Attributes:
        text: a layout file; None: what was applied.
        names: these of its layouts, whatever the time; empty: those that would be in force now.
    """

    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX)] | None = None
    file: Annotated[str, Field(min_length=1, max_length=200)] = "layout"
    names: Annotated[tuple[LayoutName, ...], Field(max_length=32)] = ()


class Asserted(Message):
    """Whether each GPU that a layout is about has exactly its slices."""

    conforms: bool
    gpus: tuple[GpuLayout, ...]
