"""A full lab: seven GPUs of seven slices, every state among them, and 200 who wait."""

import time
from pathlib import Path
from typing import Any

from tests.unit.pool.conftest import World

from miglab_api.gpus import GpuView, PoolSnapshot, ReservedSlot, SliceState, SliceView
from miglab_api.leases import LeaseView, LeaseWarning, WarningKind
from miglab_api.tickets import Headcount, TicketView, WaitEstimate
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import Activity

from .fakes import gpu_view, lease_view, slice_view, ticket_view

GPUS, SLICES, WAITING = 7, 7, 200
NAMES = ("ada", "bartholomew", "carla", "dmitri", "eva-marie", "fatima", "hui", "maximilian.k")
COURSES = ("vision", "deep-learning", "ml")
STATES = {
    10: SliceState.MAKING, 11: SliceState.SCRUBBING, 12: SliceState.QUARANTINED,
    13: SliceState.FOREIGN, 14: SliceState.FREE, 15: SliceState.FREE, 16: SliceState.FREE,
}  # fmt: skip
IDLE, WARNED = range(20, 24), range(24, 26)


class BigPool(Pool):
    """A pool that shows more than it holds: see the module."""

    def __init__(self, folder: Path) -> None:
        world = World(folder)
        super().__init__(world.settings, world.ledger, world.driver, world.holders)
        self.drawn_at = time.time()
        lease_by_id = {lease.id: lease for lease in map(self._lease, range(GPUS * SLICES)) if lease}
        leases: Any = self.leases
        leases.find = lease_by_id.__getitem__
        leases.live = lambda user=None: [
            lease for lease in lease_by_id.values() if user in (None, lease.user)
        ]
        leases.brief_views, leases.warned = leases.live, lambda: frozenset(WARNED)
        self.lease_by_id = lease_by_id
        self.drawn_gpus = tuple(map(self._gpu, range(GPUS)))
        self.queued = tuple(map(self._ticket, range(WAITING)))

    def snapshot(self) -> PoolSnapshot:
        slots = tuple(
            ReservedSlot(reservation=1, course="vision", gpu="GPU-2", start=n, size=1)
            for n in (0, 1)
        )
        return PoolSnapshot(
            at=self.drawn_at,
            simulated=True,
            gpus=self.drawn_gpus,
            waiting=self.queued,
            reserved_slots=slots,
            people=Headcount(
                shape="1g.5gb",
                total=GPUS * SLICES,
                free=sum(
                    slice_.state is SliceState.FREE
                    for gpu in self.drawn_gpus
                    for slice_ in gpu.slices
                ),
                holding=len({lease.user for lease in self.lease_by_id.values()}),
                waiting=WAITING,
            ),
        )

    def _lease(self, number: int) -> LeaseView | None:
        if number in STATES:
            return None
        warning = LeaseWarning(
            at=self.drawn_at, reclaim_at=self.drawn_at + 300, reason="unused", kind=WarningKind.IDLE
        )
        return lease_view(
            number,
            NAMES[number % len(NAMES)],
            course=COURSES[number % len(COURSES)],
            granted_at=self.drawn_at - 5000,
            guaranteed_until=self.drawn_at + 100 * number if number % 5 else None,
            warning=warning if number in WARNED else None,
        )

    def _slice(self, number: int, start: int) -> SliceView:
        lease = self.lease_by_id.get(number)
        if lease is None:
            return slice_view(number, start, state=STATES[number], gpu=number // SLICES)
        return slice_view(
            number, start, lease.user, gpu=number // SLICES, course=lease.course,
            guaranteed_until=lease.guaranteed_until, memory_used_mib=97 * number,
        )  # fmt: skip

    def _gpu(self, index: int) -> GpuView:
        slices = tuple(self._slice(index * SLICES + n, n) for n in range(SLICES))
        return gpu_view(
            *slices,
            index=index,
            name="A100-SXM4-40GB",
            state="unknown" if index == 6 else "ok",
            reason="an NVML call is stuck" if index == 6 else "",
            draining="a new fan" if index == 5 else "",
        )

    def _ticket(self, number: int) -> TicketView:
        wait = WaitEstimate(
            low_s=60 * number,
            likely_s=90 * number,
            high_s=200 * number + 60,
            basis="from 50 leases",
        )
        return ticket_view(
            number + 1,
            f"{NAMES[number % len(NAMES)]}{number}",
            course=COURSES[number % len(COURSES)],
            shape="2x1g.5gb" if number % 9 == 0 else "1g.5gb",
            waiting=WAITING,
            created_at=self.drawn_at - 20 * number,
            estimate=wait if number % 4 else None,
        )


class Idlers:
    """A reclaimer that thinks some leases idle."""

    def activities(self) -> dict[int, Activity]:
        return dict.fromkeys(IDLE, Activity.IDLE_FREE)

    def explain(self, pool: object, user: str | None = None) -> list[object]:
        return []
