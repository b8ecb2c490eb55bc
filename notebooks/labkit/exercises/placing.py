"""The exact check of a student's placing of slices beside those that are in use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, judged
from labkit.exercises.packing import A100, find_starts, names_in, packings

IN_USE = ((4,), (2, 4, 5), (0, 1, 2, 3), (0, 3, 6), (6,))
QUEUE = ("1g.5gb", "2g.10gb", "3g.20gb")


def check_place(place: Callable[[list[str], list[int]], Any]) -> CodeVerdict:
    """Whether a function finds a place for every choice of slices that has one.

    Args:
        place: takes the profiles wanted and the memory slices taken; answers the memory slice at
            which each of them begins, or None.
    """
    cases = list(_cases())

    def check() -> str:
        for number, (wanted, taken) in enumerate(cases):
            given = list(taken)
            fault = _fault(place(list(wanted), given), wanted, taken)
            if fault and given != list(taken):
                fault += "; it also changed `taken`, which a start that failed must leave as it was"
            if fault:
                return fault if number else f"{fault} (or write place_slices first)"
        return ""

    right = f"it finds a way wherever there is one, in {len(cases)} cases"
    return judged(right, ("", check))


def _cases() -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Every choice of up to four slices on an empty GPU, small and big first, and GPUs in use."""
    for packing in packings(4):
        wanted = tuple(names_in(packing))
        yield from ((order, ()) for order in dict.fromkeys((wanted, wanted[::-1])))
    yield ("1g.5gb",) * 7, ()
    for taken in IN_USE:
        for length in (1, 2, 3):
            yield from ((wanted, taken) for wanted in itertools.product(QUEUE, repeat=length))


def _fault(said: Any, wanted: tuple[str, ...], taken: tuple[int, ...]) -> str:
    """What is wrong with an answer, in words; empty when nothing is."""
    way, asked = find_starts(wanted, taken), _asked(wanted, taken)
    if said is None:
        return (
            ""
            if way is None
            else f"{asked}: you say None, but {way} is a way{_hint(wanted, taken)}"
        )
    if not isinstance(said, list | tuple) or len(said) != len(wanted):
        return f"{asked}: return a list with one start for each slice, in that order"
    seen = dict.fromkeys(taken, "a slice in use")
    for name, start in zip(wanted, said, strict=True):
        if start not in A100[name].starts:
            allowed = ", ".join(map(str, A100[name].starts))
            return f"{asked}: a {name} cannot begin at {start}, only at {allowed}"
        span = range(start, start + A100[name].memory)
        if over := [seen[number] for number in span if number in seen]:
            return f"{asked}: the {name} at {start} overlaps {over[0]}"
        seen.update(dict.fromkeys(span, f"the {name} at {start}"))
    return ""


def _asked(wanted: tuple[str, ...], taken: tuple[int, ...]) -> str:
    beside = f" beside memory slices {', '.join(map(str, taken))}" if taken else " on an empty GPU"
    return f"{', '.join(wanted)}{beside}"


def _hint(wanted: tuple[str, ...], taken: tuple[int, ...]) -> str:
    """Words for whoever never takes a start back, where that is what fails."""
    used, found = set(taken), True
    for name in wanted:
        free = [s for s in A100[name].starts if not used & set(range(s, s + A100[name].memory))]
        found = found and bool(free)
        used |= set(range(free[0], free[0] + A100[name].memory)) if free else set()
    return "" if found else "; when there is no room for the rest, try the next start of the first"
