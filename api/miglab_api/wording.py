"""The few phrases that hub pages, the pool's pages and the command line all use."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from miglab_api.tickets import BORROWER, Headcount, TicketView, WaitEstimate


def ordinal(number: int) -> str:
    """A number in words: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def estimated_wait(estimate: WaitEstimate) -> str:
    """A range in words: "about 10–25 minutes"; rounded outwards, so that it still holds.

    What is no estimate, but the longest, reads "at most 3 hours 50 minutes, likely sooner".
    """
    if estimate.is_longest:
        tens = math.ceil(estimate.high_s / 600)
        return f"at most {duration(tens * 600)}, likely sooner"
    low, high = estimate.low_s / 60, estimate.high_s / 60
    if high < 1:
        return "less than a minute"
    unit, step = "minute", 1.0 if high <= 10 else 5.0
    if high > 90:
        low, high, unit = low / 60, high / 60, "hour"
        step = 0.5 if high <= 4 else 1.0
    low_mark, high_mark = math.floor(low / step) * step, math.ceil(high / step) * step
    plural = "" if high_mark == 1 else "s"
    if low_mark == 0:
        return f"at most {high_mark:g} {unit}{plural}"
    if low_mark == high_mark:
        return f"about {high_mark:g} {unit}{plural}"
    return f"about {low_mark:g}–{high_mark:g} {unit}s"


def duration(duration_s: float) -> str:
    """A duration as people say it: the two largest units, never below a minute."""
    minutes = max(0, round(duration_s / 60))
    if minutes < 1:
        return "less than a minute"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "day"), (hours, "hour"), (minutes, "minute")]
    phrases = [f"{n} {unit}{'s' if n != 1 else ''}" for n, unit in parts if n]
    return " ".join(phrases[:2])


def free_in_words(free: int, total: int | None, shape: str = "") -> str:
    """What people who ask now could have: "14 of 14 free (1g.5gb)"."""
    suffix = f" ({shape})" if shape else ""
    return f"{free}{'' if total is None else f' of {total}'} free{suffix}"


def people_in_words(people: Headcount) -> str:
    """Who is served, and who is not yet: "9 hold, 1 is offered a slice, 13 wait"."""
    holding, offered, waiting = people.holding, people.offered, people.waiting
    offers = f"{offered} {'is' if offered == 1 else 'are'} offered a slice, " if offered else ""
    return f"{holding} hold{'s' * (holding == 1)}, {offers}{waiting} wait{'s' * (waiting == 1)}"


def lab_in_words(people: Headcount) -> str:
    """How much of the lab is free, and how many people hold and wait: one phrase for pages."""
    free = [free_in_words(people.free, people.total, people.shape)] if people.shape else []
    return "; ".join([*free, people_in_words(people)])


def clock_time(at: float, zone: str) -> str:
    """A time of day as a clock of that time zone shows it: "10:00 CET"."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%H:%M %Z}"


def day_and_time(at: float, zone: str) -> str:
    """A day and time in a time zone: "2026-06-02 at 10:00 CEST"."""
    return f"{datetime.fromtimestamp(at, ZoneInfo(zone)):%Y-%m-%d at %H:%M %Z}"


def guarantee_in_words(until: float, now: float, zone: str = "UTC") -> str:
    """How long a lease lasts: its guarantee, and what comes after."""
    if until <= now:
        return "open: yours as long as nobody needs it"
    return f"guaranteed until {clock_time(until, zone)}, then as long as nobody needs it"


def queue_position(ticket: TicketView) -> str:
    """The position of a waiting ticket, in a sentence."""
    place = ordinal(ticket.position or 1)
    return f"You are {place} of {ticket.waiting} in the queue, waiting for {ticket.shape}."


def server_in_words(server: str) -> str:
    """A server's name in words: "server “vision”", "borrowed"; empty for the default server."""
    if server == BORROWER:
        return "borrowed"
    if server.startswith(BORROWER):
        return f"borrowed by server “{server.removeprefix(BORROWER)}”"
    return f"server “{server}”" if server else ""


def partition_in_words(names: Iterable[str]) -> str:
    """Profiles with their counts, in the order of first mention; ``nothing`` if there are none."""
    counts = Counter(names)
    terms = (name if count == 1 else f"{count}x{name}" for name, count in counts.items())
    return " + ".join(terms) or "nothing"


# -- a shape in words, and as a small picture of a GPU: the same on every page that shows one ------
#
# Both need to know how many compute slices a whole GPU has: seven on most models, four on an A30.
# Where that is not known (0), the words leave the fraction out, and there is no picture.

_PROFILE = re.compile(r"(?:(\d+)x)?(\d+)g\.(\d+)gb")
_WORDS = {1: "small", 2: "medium"}
_WIDTH, _HEIGHT, _GAP = 9, 22, 2


@dataclass(frozen=True)
class _Slices:
    count: int
    compute: int
    memory_gb: int


def shape_title(shape: str, compute_slices: int) -> str:
    """“Small: 1/7 of a GPU, 5 GB” for ``1g.5gb``; the shape itself if it is no profile's name."""
    parts = _parts(shape)
    if not parts:
        return "Whole GPU" if shape == "full" else shape
    return " + ".join(_title(part, compute_slices) for part in parts)


def gpu_picture(shape: str, compute_slices: int) -> str:
    """An SVG picture of a GPU in which the shape's part is filled."""
    parts = _parts(shape)
    if not compute_slices or (not parts and shape not in ("full", "cpu")):
        return ""
    lit = compute_slices if shape == "full" else sum(part.count * part.compute for part in parts)
    cells = "".join(
        f'<rect x="{1 + number * (_WIDTH + _GAP)}" y="1" width="{_WIDTH}" height="{_HEIGHT}" rx="2"'
        f' stroke="currentColor" fill="{"currentColor" if number < lit else "none"}"'
        f' stroke-opacity="{1 if number < lit else 0.45}"/>'
        for number in range(compute_slices)
    )
    width = compute_slices * (_WIDTH + _GAP)
    return (
        f'<svg class="gpu-picture" aria-hidden="true" xmlns="http://www.w3.org/2000/svg"'
        f' width="{width}" height="{_HEIGHT + 2}" viewBox="0 0 {width} {_HEIGHT + 2}">{cells}</svg>'
    )


def _parts(shape: str) -> list[_Slices]:
    return [
        _Slices(int(count or 1), int(compute), int(memory))
        for count, compute, memory in _PROFILE.findall(shape)
    ]


def _title(part: _Slices, compute_slices: int) -> str:
    size = _WORDS.get(part.compute, "large")
    if part.compute == compute_slices:
        size, fractions = "whole GPU", []
    else:
        fractions = [f"{part.compute}/{compute_slices} of a GPU"] if compute_slices else []
    name = f"{part.count} × {size}" if part.count > 1 else size[0].upper() + size[1:]
    return f"{name}: {', '.join([*fractions, f'{part.memory_gb} GB'])}{' each' * (part.count > 1)}"
