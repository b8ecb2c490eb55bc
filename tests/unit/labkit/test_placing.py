"""Placing slices beside those in use: every way is right, and what goes wrong has a name."""

from collections.abc import Callable
from typing import Any

import pytest

from labkit.exercises import check_place
from labkit.exercises.packing import A100, packings, truly_fits
from labkit.exercises.placing import a_way


def _span(name: str, start: int) -> set[int]:
    return set(range(start, start + A100[name].memory))


def first_free(wanted: list[str], taken: list[int]) -> list[int] | None:
    """Greedy: a start is never taken back."""
    used, starts = set(taken), []
    for name in wanted:
        free = [start for start in A100[name].starts if not _span(name, start) & used]
        if not free:
            return None
        starts.append(free[0])
        used |= _span(name, free[0])
    return starts


def last_first(wanted: list[str], taken: list[int]) -> list[int] | None:
    """As right as any other way: from the last start down."""
    if not wanted:
        return []
    for start in reversed(A100[wanted[0]].starts):
        if not _span(wanted[0], start) & set(taken):
            rest = last_first(wanted[1:], [*taken, *_span(wanted[0], start)])
            if rest is not None:
                return [start, *rest]
    return None


def in_place(wanted: list[str], taken: list[int]) -> list[int] | None:
    """Backtracks, and leaves what it tried in `taken`."""
    if not wanted:
        return []
    for start in A100[wanted[0]].starts:
        if not _span(wanted[0], start) & set(taken):
            taken += _span(wanted[0], start)
            rest = in_place(wanted[1:], taken)
            if rest is not None:
                return [start, *rest]
    return None


def anywhere(wanted: list[str], taken: list[int]) -> list[int] | None:
    """Begins wherever there is room."""
    starts: list[int] = []
    for name in wanted:
        free = [start for start in range(8) if not _span(name, start) & set(taken)]
        if not free:
            return None
        starts.append(free[0])
        taken = [*taken, *_span(name, free[0])]
    return starts


@pytest.mark.parametrize("place", [a_way, last_first])
def test_any_way_is_right(place: Callable[..., Any]) -> None:
    """The check asks for a way, not for its own."""
    assert check_place(place).right


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (first_free, "try the next start of the first"),
        (in_place, "changed `taken`"),
        (anywhere, "a 2g.10gb cannot begin at 1, only at 0, 2, 4"),
        (lambda wanted, taken: [0] * len(wanted), "overlaps the 1g.5gb at 0"),
        (lambda wanted, taken: a_way(wanted, []), "overlaps a slice in use"),
        (lambda wanted, taken: None, "write place_slices first"),
        (lambda wanted, taken: [], "one start for each slice"),
        (lambda wanted, taken: 3, "return a list"),
        (lambda wanted, taken: ["0"] * len(wanted), "cannot begin at 0"),
        (lambda wanted, taken: wanted[9], "IndexError"),
        (lambda wanted: [], "TypeError"),
    ],
)
def test_a_typical_mistake_is_called_by_its_name(place: Callable[..., Any], says: str) -> None:
    """Greedy, in place, unaligned, overlapping, and nonsense."""
    verdict = check_place(place)
    assert not verdict.right
    assert says in verdict.why


def test_on_an_empty_gpu_it_finds_what_fits() -> None:
    """The rule of sums and the search agree on every choice of up to five slices."""
    for packing in packings(5):
        wanted = [name for name, count in packing.items() for _ in range(count)]
        assert (a_way(wanted, ()) is not None) == truly_fits(packing)
