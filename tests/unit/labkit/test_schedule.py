"""Pipeline schedules: their picture, their ideal, and each stage's order."""

import pytest

from labkit.exercises.schedule import bubble, gantt, order_of

TWO_BY_THREE = [[(0, 0)], [(0, 1), (1, 0)], [(0, 2), (1, 1)], [(1, 2)]]


def test_the_picture_shows_who_waits():
    """A row per stage, a column per tick, a dot where a stage waits."""
    assert gantt(TWO_BY_THREE, 2).splitlines() == ["stage 0  0 1 2 .", "stage 1  . 0 1 2"]


def test_each_stage_keeps_the_order_of_the_ticks():
    """What a rank runs is read off the ticks."""
    assert order_of(TWO_BY_THREE, 1) == [0, 1, 2]
    assert order_of(TWO_BY_THREE, 2) == []


@pytest.mark.parametrize(("stages", "batches", "share"), [(1, 4, 0), (2, 1, 1 / 2), (4, 12, 1 / 5)])
def test_the_bubble_is_the_formula(stages, batches, share):
    """(p - 1) / (m + p - 1) of the time is spent waiting."""
    assert bubble(stages, batches) == pytest.approx(share)
