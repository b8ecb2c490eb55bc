"""How the pages say things: durations, moments, amounts.  Pure."""

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from miglab_api.tickets import WaitEstimate


def short(duration_s: float) -> str:
    """A duration where there is little room: minutes, hours and minutes, days and hours."""
    minutes = max(0, round(duration_s / 60))
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min" if minutes else "<1 min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {rest:02d}"


def left(at: float, now: float) -> str:
    """How long it is until then."""
    return f"{short(at - now)} left" if at > now else "time is up"


def left_short(at: float, now: float, over: str = "time is up") -> str:
    """The same where it is plain what is meant."""
    return short(at - now) if at > now else over


def since(at: float, now: float) -> str:
    """How long ago it was."""
    return short(now - at)


def wait_short(estimate: WaitEstimate) -> str:
    """The range of a likely wait, in minutes or hours."""
    low, high = estimate.low_s / 60, max(1.0, estimate.high_s / 60)
    unit = "min"
    if high >= 120:
        low, high, unit = low / 60, high / 60, "h"
    first, last = round(low), math.ceil(high)
    if not first:
        return f"≤{last} {unit}"
    return f"{last} {unit}" if first == last else f"{first}–{last} {unit}"


def iso(at: float) -> str:
    """A moment for ``<time datetime>``."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "seconds")


def moment(at: float, zone: ZoneInfo) -> str:
    """A day and a time of day."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M %Z}"


def second(at: float, zone: ZoneInfo) -> str:
    """The same to the second: what follows what."""
    return f"{datetime.fromtimestamp(at, zone):%-d %b %Y, %H:%M:%S}"


def amount(used_mib: int | None, of_mib: int) -> str:
    """Memory used of what there is; "?" where it is not known."""
    used = "?" if used_mib is None else f"{used_mib / 1024:.1f}"
    return f"{used} of {of_mib / 1024:.1f} GiB"
