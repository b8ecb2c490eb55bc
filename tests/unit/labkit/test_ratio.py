"""A ratio that is asked for, and where its cross is drawn."""

import pytest

from labkit.evidence.evidence import Point
from labkit.notebook.catalogue import EXPERIMENTS


@pytest.mark.parametrize(
    ("key", "label", "base", "ratio"),
    [("T-3", "own", "labkit", 1.5), ("MX-9", "AMP", "fp32", 150), ("MP-7", "GPipe", "1F1B", 1.5)],
)
def test_the_right_ratio_is_drawn_at_its_point(key, label, base, ratio):
    """Whichever of the two is measured first; with only one of them there is no answer yet."""
    experiment = EXPERIMENTS[key]
    both = (Point(0, label, 3.0), Point(1, base, 2.0))
    for points in (both, both[::-1]):
        answer = experiment.answer(points, is_whole=True)
        assert answer is not None and answer.value == pytest.approx(ratio)
        assert experiment.place_of(answer, points) == label
        assert experiment.height(points, ratio) == pytest.approx(3.0)
    assert all(experiment.answer((one,), is_whole=True) is None for one in both)
