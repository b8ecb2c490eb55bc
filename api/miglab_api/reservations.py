"""Slices reserved for a class at its hour: what is asked, and what the pool holds."""

import datetime as dt
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from miglab_api.base import (
    RESERVED_MAX,
    Course,
    ReasonText,
    ShapeText,
    WallTime,
    Weekday,
    WireModel,
    ZoneName,
)

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class ReservationState(StrEnum):
    """planned → reserved → open → planned … → over; all three → cancelled; refused.

    planned: ahead.  reserved: its slots are kept free.  open: the class is on, and what was not
    claimed in time is free for all, its students first.
    """

    PLANNED = "planned"
    RESERVED = "reserved"
    OPEN = "open"
    OVER = "over"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class ReservationRequest(WireModel):
    """Reserve slices for a course, every week or once.

    Attributes:
        shape: what a student asks for, as in a `TicketRequest`.
        count: how many students may hold it.
        weekdays: the days of every week; empty for once.
        date: the day of a single time, or the first day from which the weekly ones count.
        until: the last day that a weekly one may take place; None for no end.
        from_time: ``HH:MM``, local.
        to_time: ``HH:MM``, local, later on the same day.
        tz: the time zone's IANA name, such as ``Europe/Berlin``.
        grace_s: how long after the start unclaimed slots stay reserved.
        reason: what it is for; staff read it.
    """

    course: Course
    shape: ShapeText
    count: Annotated[int, Field(ge=1, le=RESERVED_MAX)]
    weekdays: Annotated[tuple[Weekday, ...], Field(max_length=7)] = ()
    date: dt.date | None = None
    until: dt.date | None = None
    from_time: WallTime
    to_time: WallTime
    tz: ZoneName
    grace_s: Annotated[float, Field(ge=0, le=24 * 3600)] = 900.0
    reason: ReasonText = ""


class ReservationView(WireModel):
    """A reservation, and its time in force or next.

    Attributes:
        date: the day of a single time, or the first day that counts.
        starts_at: when the time in force, or else the next, begins; None if there is none.
        ends_at: when it ends.
        reserved_from: from when on its slots are reserved.
        reserved_until: until when unclaimed slots stay reserved.
        in_use: how many of its ``count`` leases are in use now.
        certain: how many of ``count`` are certain when it begins.
        all_from: from when on all are, if that is known and later.
        outlook: the same in words, with the reason; empty: all of them are certain.
        made_by: who made it; for staff only.
        reason: for one that was cancelled or refused, a word; else empty.
        message: what it is for, or why it was cancelled or refused; for staff only.
    """

    id: int
    course: str
    shape: str
    count: int
    weekdays: tuple[Weekday, ...]
    date: dt.date
    until: dt.date | None
    from_time: str
    to_time: str
    tz: str
    grace_s: float
    state: ReservationState
    starts_at: float | None = None
    ends_at: float | None = None
    reserved_from: float | None = None
    reserved_until: float | None = None
    in_use: int = 0
    certain: int = 0
    all_from: float | None = None
    outlook: str = ""
    made_by: str | None = None
    made_at: float
    reason: str = ""
    message: str = ""
