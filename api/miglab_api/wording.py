"""The few phrases that hub pages, the pool's pages and the command line all use."""

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from miglab_api.tickets import BORROWER, Headcount, TicketView, WaitEstimate


def ordinal(number: int) -> str:
    """A number in words: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def estimated_wait(estimate: WaitEstimate) -> str:
    """A range in words: "about 10–25 minutes"; rounded outwards, so that it still holds."""
    low, high = estimate.low_s / 60, estimate.high_s / 60
    if high < 1:
        return "less than a minute"
    unit, step = "minute", 1.0 if high <= 10 else 5.0
    if high > 90:
        low, high, unit = low / 60, high / 60, "hour"
        step = 0.5 if high <= 4 else 1.0
    least, most = math.floor(low / step) * step, math.ceil(high / step) * step
    plural = "" if most == 1 else "s"
    if least == 0:
        return f"at most {most:g} {unit}{plural}"
    if least == most:
        return f"about {most:g} {unit}{plural}"
    return f"about {least:g}–{most:g} {unit}s"


def duration(duration_s: float) -> str:
    """A duration as people say it: the two largest units, never below a minute."""
    minutes = max(0, round(duration_s / 60))
    if minutes < 1:
        return "less than a minute"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "day"), (hours, "hour"), (minutes, "minute")]
    said = [f"{n} {word}{'s' if n != 1 else ''}" for n, word in parts if n]
    return " ".join(said[:2])


def free_in_words(free: int, total: int | None, shape: str = "") -> str:
    """What people who ask now could have: "14 of 14 free (1g.5gb)"."""
    which = f" ({shape})" if shape else ""
    return f"{free}{'' if total is None else f' of {total}'} free{which}"


def people_in_words(people: Headcount) -> str:
    """Who is served, and who is not yet: "9 hold, 13 wait"."""
    holding, waiting = people.holding, people.waiting
    return f"{holding} hold{'s' * (holding == 1)}, {waiting} wait{'s' * (waiting == 1)}"


def lab_in_words(people: Headcount) -> str:
    """Both."""
    free = [free_in_words(people.free, people.total, people.shape)] if people.shape else []
    return "; ".join([*free, people_in_words(people)])


def clock_time(at: float, zone: str) -> str:
    """A time of day as a clock of that time zone shows it: "10:00 CET"."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%H:%M %Z}"


def day_and_time(at: float, zone: str) -> str:
    """The same with its day: "2026-06-02 at 10:00 CEST"."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%Y-%m-%d at %H:%M %Z}"


def guaranteed(until: float, now: float, zone: str = "UTC") -> str:
    """How long a lease lasts: its guarantee, and what comes after."""
    if until <= now:
        return "open: yours as long as nobody needs it"
    return f"guaranteed until {clock_time(until, zone)}, then as long as nobody needs it"


def queue_position(ticket: TicketView) -> str:
    """Where a ticket that waits stands, in a sentence."""
    which = ordinal(ticket.position or 1)
    return f"You are {which} of {ticket.waiting} in the queue, waiting for {ticket.shape}."


def server_in_words(server: str) -> str:
    """Which of a user's servers: "server “vision”", "borrowed"; empty for the default server."""
    if server == BORROWER:
        return "borrowed"
    if server.startswith(BORROWER):
        return f"borrowed by server “{server.removeprefix(BORROWER)}”"
    return f"server “{server}”" if server else ""


def in_words(names: Iterable[str]) -> str:
    """A cut as `parse` reads it, in the order of first mention; ``nothing`` if it is empty."""
    counts = Counter(names)
    words = (name if count == 1 else f"{count}x{name}" for name, count in counts.items())
    return " + ".join(words) or "nothing"
