"""What slices were used for, as a report that travels."""

import datetime as dt
from enum import StrEnum

from miglab_api.base import WireModel


class GroupBy(StrEnum):
    """What the rows of a report are about."""

    COURSE = "course"
    USER = "user"
    SHAPE = "shape"
    WEEK = "week"


class UsageRow(WireModel):
    """What one course, user, shape or week used.

    Attributes:
        key: which one; empty for all together.
        slice_hours: memory slices times hours, held by servers.
        leases: leases whose server began in the period.
        wait_p50_s: half of the waits for a lease granted in it, and of those that go on, were no
            longer; None without any.
        wait_p95_s: nineteen of twenty were no longer.
        idle_share: of the slice time that could be told, the part in which nothing was done; None
            if none could be told.
        known_share: of the slice time, the part that could be told.
        reclaims: leases reclaimed: unused, at their end, at a class's end, by a person.
        refusals: tickets refused.
    """

    key: str
    slice_hours: float
    leases: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    idle_share: float | None
    known_share: float
    reclaims: int
    refusals: int


class UsageReport(WireModel):
    """What was used in a period.

    Attributes:
        since: its first day.
        until: its last day.
        timezone: where its days begin.
        by: what the rows are about.
        rows: one for each, the most used first; weeks in order.
        total: all together; its key is empty.
    """

    since: dt.date
    until: dt.date
    timezone: str
    by: GroupBy
    rows: tuple[UsageRow, ...]
    total: UsageRow
