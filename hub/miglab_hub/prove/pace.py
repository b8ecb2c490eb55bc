"""How often and how long each line is tried: three minutes for all with ``--quick``, else ten."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rounds:
    """How often something is done, within a time.

    Attributes:
        count: as often as this.
        limit_s: no round begins later than this after the first, seconds.
    """

    count: int
    limit_s: float

    def __iter__(self) -> Iterator[int]:
        """The number of each round, from 0."""
        started_at = time.monotonic()
        for number in range(self.count):
            if number and time.monotonic() - started_at > self.limit_s:
                return
            yield number


@dataclass(frozen=True)
class Pace:
    """How often each line is tried.

    Attributes:
        lookups: of ``lookup`` and ``lookup-at-once``, for each GPU.
        cycles: of ``create-destroy``.
        cycles_at_once: of ``all-gpus-at-once``, for each GPU.
        read_cycles: of ``read-while-changing``.
        containers: of ``container-start``.
        read_s: between two readings of a slice.
        release_s: how long a slice may stay in use after its container's end.
        program_s: how long a CUDA program may take to start, or to vanish.
        xid_s: how long an Xid event may take.
    """

    lookups: Rounds = Rounds(100, 20)
    cycles: Rounds = Rounds(100, 240)
    cycles_at_once: Rounds = Rounds(20, 90)
    read_cycles: Rounds = Rounds(20, 70)
    containers: Rounds = Rounds(8, 60)
    read_s: float = 1.0
    release_s: float = 30.0
    program_s: float = 40.0
    xid_s: float = 10.0


FULL = Pace()
QUICK = Pace(
    lookups=Rounds(20, 5),
    cycles=Rounds(20, 45),
    cycles_at_once=Rounds(5, 25),
    read_cycles=Rounds(5, 20),
    containers=Rounds(3, 30),
    release_s=15.0,
    program_s=25.0,
    xid_s=5.0,
)
SIMULATED_READ_S = 0.005  # a simulated slice takes no time to make


def choose_pace(*, is_quick: bool, is_simulated: bool) -> Pace:
    """Return the pace of a run."""
    pace = QUICK if is_quick else FULL
    return replace(pace, read_s=SIMULATED_READ_S) if is_simulated else pace


def wait_until(is_so: Callable[[], bool], limit_s: float, pause_s: float = 0.02) -> bool:
    """Poll a condition; return whether it became true in time."""
    end = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(pause_s)
    return True
