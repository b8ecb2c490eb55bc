"""What fits on an A100, and placing slices beside those in use: typical mistakes by name."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.maximal_layouts import maximal_layouts

from labkit.exercises import check_fits, check_place
from labkit.exercises.packing import A100, find_starts, packings, truly_fits
from miglab_pool.gpu.simulated.models import model_named


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


@pytest.mark.parametrize("place", [find_starts, last_first])
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
        (lambda wanted, taken: find_starts(wanted, []), "overlaps a slice in use"),
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


def test_what_fits_is_what_the_pool_can_place() -> None:
    """Every choice of up to seven slices: it fits if it is part of a layout of the pool's A100."""
    layouts = maximal_layouts(model_named("A100-40GB").geometry, A100)
    whole = [Counter(placed.profile.name for placed in layout) for layout in layouts]
    for packing in packings():
        assert truly_fits(packing) == any(Counter(packing) <= one for one in whole), packing


@pytest.mark.parametrize(
    ("fits", "says"),
    [
        (lambda packing: sum(packing.values()) <= 7, "you say True"),
        (lambda packing: sum(A100[n].compute * c for n, c in packing.items()) <= 7, "3g.20gb"),
        (lambda packing: packing["7g.40gb"] == 1, "KeyError"),
        (lambda packing: None, "write fits first"),
    ],
)
def test_a_rule_that_fails_is_told_where(fits: Callable[..., Any], says: str) -> None:
    """By count, by compute slices alone, and one that raises."""
    verdict = check_fits(fits)
    assert not verdict.right
    assert says in verdict.why
