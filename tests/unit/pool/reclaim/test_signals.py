"""What servers say: aged by one clock, unknown where unknown, bounded in number."""

import pytest

from miglab_api.leases import KernelSignal, Signals
from miglab_pool.leases.views import ActivitySpan
from miglab_pool.reclaim.activity import (
    HAND_OVER_S,
    NEVER,
    Activity,
    ActivityTotals,
    ServerActivity,
    SignalBoard,
)

QUIET = Signals(
    kernels=(KernelSignal(busy=False, last_execution_age_s=100.0),),
    terminals=0,
    browsers=1,
    browser_age_s=50.0,
    unsaved=0,
    cpu_s=10.0,
)


class Clock:
    """A clock that never jumps, moved by the test."""

    at = 5000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> SignalBoard:
    return SignalBoard(cpu_busy_pct=10.0, clock=clock)


def signals_of(board: SignalBoard, lease: int = 1) -> ServerActivity:
    signals = board.activity_of(lease)
    assert signals is not None
    return signals


@pytest.mark.parametrize(
    ("kernels", "busy", "age_s"),
    [
        (None, None, None),
        ((), False, NEVER),
        ((KernelSignal(busy=True),), True, 0.0),
        ((KernelSignal(busy=None, last_execution_age_s=9.0),), None, None),
        ((KernelSignal(busy=False),), False, None),
        ((KernelSignal(busy=False, last_execution_age_s=9.0), KernelSignal()), None, None),
        ((KernelSignal(), KernelSignal(busy=True)), True, 0.0),
        (
            (
                KernelSignal(busy=False, last_execution_age_s=9.0),
                KernelSignal(busy=False, last_execution_age_s=4.0),
            ),
            False,
            4.0,
        ),
    ],
)
def test_kernels(
    board: SignalBoard,
    kernels: tuple[KernelSignal, ...] | None,
    busy: bool | None,
    age_s: float | None,
) -> None:
    """One busy kernel is enough; one of which something is unknown makes the rest unknown."""
    board.take(1, Signals(kernels=kernels))
    assert (signals_of(board).busy, signals_of(board).execution_age_s) == (busy, age_s)


@pytest.mark.parametrize(
    ("count", "age_s", "expected"),
    [(None, None, None), (0, None, NEVER), (2, None, None), (0, 7.0, 7.0)],
)
def test_terminals(
    board: SignalBoard, count: int | None, age_s: float | None, expected: float | None
) -> None:
    """No terminal has no age; one whose age is not told is unknown, not idle."""
    board.take(1, Signals(terminals=count, terminal_age_s=age_s))
    assert signals_of(board).terminal_age_s == expected


def test_cpu_needs_two_reports(board: SignalBoard, clock: Clock) -> None:
    """CPU is a difference: unknown at first, then a share of one core, with its own age."""
    board.take(1, QUIET)
    assert signals_of(board).cpu_age_s is None
    clock.at += 10
    board.take(1, QUIET.model_copy(update={"cpu_s": 10.5}))
    assert signals_of(board).cpu_pct == pytest.approx(5.0)
    assert signals_of(board).cpu_age_s == NEVER
    clock.at += 10
    board.take(1, QUIET.model_copy(update={"cpu_s": 15.5}))
    clock.at += 40
    assert signals_of(board).cpu_age_s == 40
    board.take(1, QUIET.model_copy(update={"cpu_s": 1.0}))
    assert signals_of(board).cpu_pct is None


def test_what_was_seen_is_handed_over_once_a_minute(clock: Clock) -> None:
    """Each second is counted once; between two hand-overs nothing is due."""
    tally = ActivityTotals(clock)
    for activity in (Activity.ACTIVE, Activity.IDLE_FREE, Activity.IDLE_HOLDING, Activity.UNKNOWN):
        tally.add(1, activity, 10.0)
    assert tally.take_due() == []
    clock.at += HAND_OVER_S
    assert tally.take_due() == [ActivitySpan(1, active_s=10.0, idle_s=20.0, unknown_s=10.0)]
    clock.at += HAND_OVER_S
    assert tally.take_due() == []
