"""Pipeline schedules: their picture, their ideal, and each stage's order."""

import pytest

from labkit.exercises.schedule import bubble, check_order, kept, order_of, ticks_of

TWO_BY_THREE = [[(0, 0)], [(0, 1), (1, 0)], [(0, 2), (1, 1)], [(1, 2)]]


def test_each_stage_keeps_the_order_of_the_ticks():
    """What a rank runs is read off the ticks."""
    assert order_of(TWO_BY_THREE, 1) == [0, 1, 2]
    assert order_of(TWO_BY_THREE, 2) == []


@pytest.mark.parametrize(("stages", "batches", "share"), [(1, 4, 0), (2, 1, 1 / 2), (4, 12, 1 / 5)])
def test_the_bubble_is_the_formula(stages, batches, share):
    """(p - 1) / (m + p - 1) of the time is spent waiting."""
    assert bubble(stages, batches) == pytest.approx(share)


def one_f_one_b(stage, stages, batches):
    warm = min(batches, stages - stage)
    return "F" * warm + "BF" * (batches - warm) + "B" * warm


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda *_: "", "first"),
        (lambda *_: None, "returns a string"),
        (lambda _, __, batches: "F" * batches, "forward and backward once"),
        (lambda _, __, batches: "B" * batches + "F" * batches, "runs backward before"),
        (lambda _, __, batches: "F" * batches + "B" * batches, "1F1B keeps 1"),
        (lambda _, __, batches: "FB" * batches, "are enough"),
    ],
)
def test_a_wrong_order_is_named(wrong, said):
    """GPipe keeps too much, one at a time is too slow; the right one passes."""
    assert check_order(one_f_one_b).right
    verdict = check_order(wrong)
    assert not verdict.right
    assert said in verdict.why


def test_stages_that_wait_for_one_another_need_no_ticks_but_a_sentence():
    """The last stage goes first, which nobody fed."""
    assert ticks_of(["FFBB", "FBFB"]) == 6
    assert ticks_of(["B", "F"]) is None
    assert kept("FFBFBB") == [1, 2, 1, 2, 1, 0]
