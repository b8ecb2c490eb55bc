"""Reading a timeline: what is right, and typical wrong answers told by name."""

import pytest

from labkit.exercises.busy_check import check_busy_share
from labkit.machine.spans import busy_ms


def whole(spans):
    return max(ended for *_, ended in spans)


def own(spans, lane):
    return [span for span in spans if span[0] == lane]


def forgets_the_long_one(spans, lane):
    busy = covered = 0.0
    for _, _, begun, ended in own(spans, lane):
        busy += max(0.0, ended - max(begun, covered))
        covered = ended
    return busy / whole(spans)


def extent(spans, lane):
    found = own(spans, lane)
    return max(span[3] for span in found) - min(span[2] for span in found)


def test_the_true_share_is_right():
    """Overlapping operations count once, an empty lane is never busy."""
    assert check_busy_share(lambda spans, lane: busy_ms(spans, lane) / whole(spans)).right


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda spans, lane: None, "write busy_share first"),
        (lambda spans, lane: busy_ms(spans, lane), "divide by the time of the whole step"),
        (lambda spans, lane: 100 * busy_ms(spans, lane) / whole(spans), "in percent"),
        (lambda spans, lane: busy_ms(spans, lane) / extent(spans, lane), "not of the lane's own"),
        (lambda spans, lane: extent(spans, lane) / whole(spans), "gaps"),
        (
            lambda spans, lane: (
                busy_ms(spans, "operators", "launches", "GPU kernels") / whole(spans)
            ),
            "other lanes",
        ),
        (
            lambda spans, lane: sum(span[3] - span[2] for span in own(spans, lane)) / whole(spans),
            "counted twice",
        ),
        (forgets_the_long_one, "the latest end so far"),
        (lambda spans, lane: 0.123, "you say 0.123"),
        (lambda spans, lane: 1 / 0, "division by zero"),
    ],
)
def test_a_wrong_share_is_told_by_its_mistake(wrong, says):
    """Each typical mistake gives another number, and its sentence."""
    verdict = check_busy_share(wrong)
    assert not verdict.right
    assert says in verdict.why
