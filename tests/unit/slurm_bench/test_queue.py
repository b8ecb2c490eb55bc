"""How positions and ranges are compared with what really happened."""

import pytest

from miglab_slurm_bench.queue import (
    QueueRun,
    Shown,
    comes_true,
    figures,
    is_position_right,
)


def shown_range(job: int, position: int, queue: tuple[int, ...] = (1, 2, 3)) -> Shown:
    """Shown at 100: a wait of 10 to 20 seconds."""
    return Shown(job, 100.0, position, queue, 10.0, 20.0, from_stays=True)


@pytest.mark.parametrize(
    ("started", "is_true"), [(109, True), (120, True), (108, False), (121, False)]
)
def test_a_range_holds_the_start_or_not(started: float, is_true: bool) -> None:
    """Slurm tells whole seconds, so one before is still in it."""
    assert comes_true(shown_range(1, 1), started) is is_true


def test_a_position_is_the_number_of_those_served_before() -> None:
    """Who starts in the same second may have been before or after."""
    started = {1: 110.0, 2: 112.0, 3: 112.0}
    assert [is_position_right(shown_range(job, job), started) for job in (1, 2, 3)] == [True] * 3
    assert is_position_right(shown_range(2, 3), started)
    assert not is_position_right(shown_range(1, 2), started)


def test_figures_are_of_those_who_were_served() -> None:
    """A job that never started counts nowhere; the first range shown counts by itself."""
    run = QueueRun(
        [shown_range(1, 1), shown_range(1, 1), shown_range(2, 2), shown_range(9, 3)],
        {1: 110.0, 2: 130.0},
    )
    run.readings, run.took_s = 10, 10.0
    report = figures(run, 3)
    assert (report["waited"], report["shown"], report["in_range_pct"]) == (2, 3, 50.0)
    assert report["in_range_by_limits_pct"] == 100.0
    assert report["queries_per_s"] == 2.0
