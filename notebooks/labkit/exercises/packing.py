"""How slices fit on one A100, every choice of them, and the exact check of a student's placing.

A slice takes compute slices (of 7) and memory slices (of 8), and may only begin at certain memory
slices (NVIDIA's MIG guide, A100). Pure; the table is for teaching, the pool reads the driver's.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.exercises.code_checks import CodeVerdict, verdict_of

COMPUTE, MEMORY, SMS_OF_SEVEN = 7, 8, 98
DRAWN = 40  # cases besides those that are always tried
IN_USE = ((4,), (2, 4, 5), (0, 1, 2, 3), (0, 3, 6), (6,))
QUEUE = ("1g.5gb", "2g.10gb", "3g.20gb")


@dataclass(frozen=True)
class PackingProfile:
    """A kind of slice; `starts` are the memory slices it may begin at."""

    name: str
    compute: int
    memory: int
    sms: int
    gib: float
    starts: tuple[int, ...]


A100 = {
    profile.name: profile
    for profile in (
        PackingProfile("1g.5gb", 1, 1, 14, 4.75, (0, 1, 2, 3, 4, 5, 6)),
        PackingProfile("2g.10gb", 2, 2, 28, 9.75, (0, 2, 4)),
        PackingProfile("3g.20gb", 3, 4, 42, 19.62, (0, 4)),
        PackingProfile("4g.20gb", 4, 4, 56, 19.62, (0,)),
        PackingProfile("7g.40gb", 7, 8, 98, 39.5, (0,)),
    )
}
Packing = Mapping[str, int]


@public
def truly_fits(packing: Packing) -> bool:
    """Whether these slices can be placed on one empty A100, by trying every placement."""
    largest_first = sorted(_names_in(packing), key=lambda name: -A100[name].memory)
    return find_starts(largest_first, ()) is not None


def _names_in(packing: Packing) -> list[str]:
    """The profile of each slice, one by one."""
    return [profile.name for profile, count in _slices(packing) for _ in range(count)]


def _slices(packing: Packing) -> Iterator[tuple[PackingProfile, int]]:
    for name, count in packing.items():
        if name not in A100:
            raise WrongArgument(f"An A100 has no profile `{name}`; it has {', '.join(A100)}.")
        yield A100[name], count


def find_starts(profiles: Sequence[str], in_use: Collection[int]) -> list[int] | None:
    """Find a start for each slice, so that none overlaps; None where there is no way.

    Args:
        profiles: the slices' profiles; the answer keeps their order.
        in_use: the memory slices in use.
    """
    if not profiles:
        return []
    first = A100[profiles[0]]
    for start in first.starts:
        span = range(start, start + first.memory)
        if not set(span) & set(in_use):
            later_starts = find_starts(profiles[1:], {*in_use, *span})
            if later_starts is not None:
                return [start, *later_starts]
    return None


@public
def packings(max_slices: int = COMPUTE) -> Iterator[dict[str, int]]:
    """Every choice of up to seven slices, whether it fits or not."""
    for size in range(1, max_slices + 1):
        for profiles in itertools.combinations_with_replacement(A100, size):
            yield {name: profiles.count(name) for name in dict.fromkeys(profiles)}


@public
def used_sms(packing: Packing) -> int:
    """How many SMs the slices of a packing have together."""
    return sum(profile.sms * count for profile, count in _slices(packing))


@public
def used_gib(packing: Packing) -> float:
    """How much memory the slices of a packing have together, in GiB."""
    return sum(profile.gib * count for profile, count in _slices(packing))


@public
def share_of(profile: PackingProfile) -> float:
    """A slice's share of a GPU: of its compute or its memory slices, whichever is larger."""
    return max(profile.compute / COMPUTE, profile.memory / MEMORY)


@public
def in_words(packing: Packing) -> str:
    """A packing as people write it, "2x1g.5gb + 1x3g.20gb"."""
    return " + ".join(f"{count}x{name}" for name, count in packing.items())


def check_place(place: Callable[[list[str], list[int]], Any]) -> CodeVerdict:
    """Whether a function finds a place for every choice of slices that has one.

    Args:
        place: takes the profiles wanted and the memory slices taken; answers the memory slice at
            which each of them begins, or None.
    """
    cases = list(_cases())

    def check() -> str:
        for number, (profiles, in_use) in enumerate(cases):
            in_use_copy = list(in_use)
            fault = _fault(place(list(profiles), in_use_copy), profiles, in_use)
            if fault and in_use_copy != list(in_use):
                fault += "; it also changed `taken`, which a start that failed must leave as it was"
            if fault:
                return fault if number else f"{fault} (or write place_slices first)"
        return ""

    right = f"it finds a way wherever there is one, in {len(cases)} cases"
    return verdict_of(right, ("", check))


def _cases() -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """The cases: up to four slices on an empty GPU, in two orders, and GPUs partly in use."""
    for packing in packings(4):
        profiles = tuple(_names_in(packing))
        yield from ((order, ()) for order in dict.fromkeys((profiles, profiles[::-1])))
    yield ("1g.5gb",) * 7, ()
    for in_use in IN_USE:
        for length in (1, 2, 3):
            yield from ((profiles, in_use) for profiles in itertools.product(QUEUE, repeat=length))
    luck = random.SystemRandom()
    for _ in range(DRAWN):
        occupied = tuple(sorted(luck.sample(range(MEMORY), luck.randrange(4))))
        yield tuple(luck.choices(list(A100)[:4], k=luck.randrange(1, 5))), occupied


def _fault(answer: Any, profiles: tuple[str, ...], in_use: tuple[int, ...]) -> str:
    """Describe what is wrong with an answer; empty when nothing is."""
    way, question = find_starts(profiles, in_use), _question_in_words(profiles, in_use)
    if answer is None:
        hint = "when there is no room for the rest, try the next start of the first"
        return "" if way is None else f"{question}: you say None, but {way} is a way; {hint}"
    if not isinstance(answer, list | tuple) or len(answer) != len(profiles):
        return f"{question}: return a list with one start for each slice, in that order"
    faults = misplaced(zip(profiles, answer, strict=True), in_use)
    return next((f"{question}: {fault}" for fault in faults), "")


def misplaced(slices: Iterable[tuple[str, int]], in_use: Collection[int] = ()) -> Iterator[str]:
    """Describe each slice, a profile and its start, that overlaps or cannot begin there."""
    occupants = dict.fromkeys(in_use, "a slice in use")
    for name, start in slices:
        if start not in A100[name].starts:
            allowed = ", ".join(map(str, A100[name].starts))
            yield f"a {name} cannot begin at {start}, only at {allowed}"
        span = range(start, start + A100[name].memory)
        if over := [occupants[number] for number in span if number in occupants]:
            yield f"the {name} at {start} overlaps {over[0]}"
        occupants.update(dict.fromkeys(span, f"the {name} at {start}"))


def _question_in_words(profiles: tuple[str, ...], in_use: tuple[int, ...]) -> str:
    beside = (
        f" beside memory slices {', '.join(map(str, in_use))}" if in_use else " on an empty GPU"
    )
    return f"{', '.join(profiles)}{beside}"
