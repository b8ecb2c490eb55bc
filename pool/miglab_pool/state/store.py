"""What every room of the pool shares: ledger, clock, lock, and what only memory knows.

What is here and not in the ledger may be forgotten at any moment: what NVML answered last, and
which GPUs rest after a failure.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from miglab_api.gpus import SliceState
from miglab_pool.gpu.geometry import Geometry, Placed, Placement, Profile
from miglab_pool.gpu.readings import GpuInfo, Usage, Versions
from miglab_pool.ledger.ledger import Ledger, State, Transaction
from miglab_pool.ledger.usage_history import Uses
from miglab_pool.model.backoff import Backoff
from miglab_pool.model.gpu import SOON, GpuState, Ground, Stay
from miglab_pool.model.memory import Memo, Past, Wellness
from miglab_pool.model.queue import Forecast
from miglab_pool.model.rows import GPU_OK, GpuRow, SliceRow
from miglab_pool.rules.layout_plan import Change, Kind, Lying, arrange, change, is_possible, only
from miglab_pool.rules.layout_times import InForce
from miglab_pool.rules.lease_length import stay_of
from miglab_pool.settings import PoolSettings


def _nobody(*_what: object) -> None:
    """Tell nobody."""


class Store:
    """The pool's shared state.  Every method expects the caller to hold ``lock``."""

    def __init__(
        self,
        settings: PoolSettings,
        ledger: Ledger,
        now: Callable[[], float],
        *,
        simulated: bool = True,
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.now = now
        self.simulated = simulated
        self.lock = threading.RLock()
        self.version = 1
        self.started_at = now()
        self.infos: dict[str, GpuInfo] = {}
        self.possible: dict[tuple[str, str], bool] = {}  # by shape and course, of this cut
        self.sizes: dict[tuple[str, ...], int] = {}  # memory slices, by profiles; as possible
        self.usage: dict[int, Usage] = {}
        self.samples = 0  # how often usage was read: who sees it stand still knows that it is old
        self.gpu_usage: dict[str, Usage] = {}
        self.places: tuple[int, dict[int, int]] = (0, {})  # of a version; see tickets.places
        self.uses = Uses(ledger, settings.pool.fair_half_life_s)
        self.kept: Memo | None = None  # for reservations; see reserved.py
        self.laid: dict[str, InForce] = {}  # the layout on each GPU; see laying.py
        self.cut_done: dict[str, Ground] = {}  # as it was seen last with nothing left to cut
        self.past: Past | None = None  # reservations that are over; see handover.py
        self.forecast = Forecast()
        self.wellness: dict[str, Wellness] = {}  # by GPU, as it said last
        self.versions = Versions()
        self.unserved: Callable[[str, str], None] = _nobody  # told a ticket's last state and reason
        self.cut_backoff = Backoff(
            settings.tuning.retry_s, settings.tuning.retry_max_s
        )  # see reserved.cut
        self.grant_backoff = Backoff(
            settings.tuning.retry_s, settings.tuning.retry_max_s
        )  # see pause_grants
        self._grounds: dict[str, Ground | None] = {}
        self._pausing: set[str] = set()
        self._stale: set[str] = set(ledger.state.gpus)

    @property
    def state(self) -> State:
        return self.ledger.state

    @property
    def paused(self) -> str:
        """Why nothing is granted; empty: it is granted."""
        return self.state.paused

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Transaction]:
        """A ledger transaction under the lock; see `Ledger.write`."""
        with self.lock, self.ledger.write(self.now(), durable=durable) as transaction:
            yield transaction
            if transaction.has_begun:
                self.version += 1

    # -- GPUs ---------------------------------------------------------------------------------

    def geometry(self, gpu: str) -> Geometry | None:
        """How a GPU can be cut, if it ever answered."""
        info = self.infos.get(gpu)
        return info.geometry if info else None

    def is_cut(self, row: GpuRow) -> bool:
        """Whether the GPU is one that is cut on demand."""
        return row.mig is True and self.geometry(row.uuid) is not None

    def is_whole(self, row: GpuRow) -> bool:
        """Whether the GPU is one that is leased whole."""
        info = self.infos.get(row.uuid)
        return info is not None and (row.mig is False or not info.geometry.profiles)

    def profile(self, row: SliceRow) -> Profile:
        """The profile of a slice, by its GPU's geometry or, that unknown, as the ledger has it."""
        geometry = self.geometry(row.gpu)
        known = geometry.by_name.get(row.profile) if geometry else None
        return known or Profile(
            row.profile, -1, -1, 0, row.size, row.sm_count, row.memory_mib, 1, (row.start,)
        )

    def placed(self, row: SliceRow) -> Placed:
        """The slice as placement sees it."""
        return Placed(self.profile(row), Placement(row.start, row.size))

    def grounds(self) -> list[Ground]:
        """Every GPU that can be cut, as a decision sees it."""
        self._drain()
        self._end_pauses()
        found = []
        for row in self.state.gpus.values():
            if row.uuid not in self._grounds:
                self._grounds[row.uuid] = self._ground(row)
            ground = self._grounds[row.uuid]
            if ground is not None:
                found.append(ground)
        return found

    def stale_views(self) -> set[str]:
        """The GPUs whose views must be drawn again; asked for once."""
        self._drain()
        stale, self._stale = self._stale, set()
        return stale

    def redraw(self, gpus: Collection[str]) -> None:
        """What memory alone knows of these GPUs has changed."""
        self._stale.update(gpus)
        for gpu in gpus:
            self._grounds.pop(gpu, None)
        self.version += 1

    def _drain(self) -> None:
        for gpu in self.state.touched:
            self._grounds.pop(gpu, None)
            self._stale.add(gpu)
        self.state.touched.clear()

    def _end_pauses(self) -> None:
        over = {gpu for gpu in self._pausing if self.grant_backoff.is_due(gpu, self.now())}
        if over:
            self._pausing -= over
            self.redraw(over)

    def _ground(self, row: GpuRow) -> Ground | None:
        geometry = self._usable_geometry(row)
        if geometry is None:
            return None
        on_gpu = self.state.on_gpu[row.uuid].values()
        warm = tuple(self.placed(item) for item in on_gpu if item.is_open)
        live = tuple(self.placed(item) for item in on_gpu if not item.is_open)
        fixed = tuple(self.placed(item) for item in on_gpu if item.is_fixed)
        usable = self._is_open(row) and not self.has_lost(row.uuid)
        stays = {((1 << item.size) - 1) << item.start: self._stay(item) for item in on_gpu}
        state = GpuState(row.uuid, geometry, live, warm, usable)
        return Ground(state, fixed, stays, self.course_of(row))

    def _stay(self, row: SliceRow) -> Stay:
        lease = self.state.leases.get(row.lease or 0)
        return SOON if lease is None else stay_of(self.settings, lease)

    def _usable_geometry(self, row: GpuRow) -> Geometry | None:
        """How the GPU may be cut now: anyhow, or on the seats of the layout in force there."""
        if not self.is_cut(row):
            return None
        return self.geometry_under(row.uuid, self.laid_on(row.uuid), self.lying(row.uuid))

    def geometry_under(
        self, gpu: str, laid: InForce | None, lying: Sequence[Lying]
    ) -> Geometry | None:
        """How a GPU can be cut under a layout, around what lies there then; without one: anyhow."""
        geometry = self.geometry(gpu)
        if geometry is None or laid is None:
            return geometry
        return only(geometry, arrange(geometry, laid.cut, lying))

    # -- layouts ------------------------------------------------------------------------------

    def laid_on(self, gpu: str) -> InForce | None:
        """The layout in force on a GPU that can (still) be cut so; None: it is cut on demand."""
        return self.possible_on(gpu, self.laid.get(gpu))

    def possible_on(self, gpu: str, laid: InForce | None) -> InForce | None:
        """A layout if the GPU can be cut so; else None."""
        geometry = self.geometry(gpu)
        if laid is None or geometry is None or not self.is_cut(self.state.gpus[gpu]):
            return None
        has_all = all(name in geometry.by_name for name in laid.cut)
        return laid if has_all and is_possible(laid.cut, geometry) else None

    def course_of(self, row: GpuRow) -> str:
        """The only course that gets leases on a GPU now; empty: every course."""
        return self.course_under(row, self.laid_on(row.uuid))

    def course_under(self, row: GpuRow, laid: InForce | None) -> str:
        """The only course that does so under a layout: its own, else the one it is assigned to."""
        assigned = self.settings.assigned_course(row.uuid, row.idx)
        return (laid.course if laid else "") or assigned

    def lying(self, gpu: str) -> tuple[Lying, ...]:
        """What lies on a GPU, as a layout sees it."""
        rows = self.state.on_gpu[gpu].values()
        return tuple(Lying(row.id, self.placed(row), _kind(row)) for row in rows)

    def change(self, gpu: str, cut: Sequence[str] | None = None) -> Change:
        """What is to be done to a GPU; without ``cut`` for the layout in force there."""
        geometry = self.geometry(gpu)
        assert geometry is not None
        return change(geometry, self.laid[gpu].cut if cut is None else cut, self.lying(gpu))

    def has_lost(self, gpu: str) -> bool:
        """Whether a server may still live whose slice on this GPU is gone.

        NVML's UUIDs repeat: what is made now could get the very UUID that server was given, so
        nothing is made or granted here until it is gone.
        """
        return any(row.lost for row in self.state.on_gpu[gpu].values())

    def pause_grants(self, gpu: str, at: float) -> None:
        """What was granted here could not be made: nothing is, for a while that grows each time.

        Looking at the GPU may find nothing wrong with it, so that alone does not end the pause.
        """
        self.grant_backoff.fail(gpu, at)
        self._pausing.add(gpu)
        self.redraw([gpu])

    def _is_open(self, row: GpuRow) -> bool:
        """Whether the GPU takes new leases, by how it is and what was done with it."""
        is_due = self.grant_backoff.is_due(row.uuid, self.now())
        return row.state == GPU_OK and not row.draining and is_due

    def mark_gpu(
        self, tx: Transaction, gpu: str, state: str, why: str = "", by: str = "pool"
    ) -> None:
        """Note how a GPU is; what is so already costs nothing."""
        row = self.state.gpus.get(gpu)
        if row is not None and (row.state, row.why) != (state, why):
            tx.put(replace(row, state=state, why=why), by, why)

    def whole_gpu(self, row: GpuRow) -> bool:
        """Whether a GPU with MIG off could be leased whole now, by what was read last."""
        if not self._is_open(row) or not self.is_whole(row) or self.state.on_gpu[row.uuid]:
            return False
        usage = self.gpu_usage.get(row.uuid)
        return usage is not None and usage.processes == ()


def _kind(row: SliceRow) -> Kind:
    if row.state == SliceState.MAKING:
        return Kind.COMING if row.lease is None else Kind.GRANTED
    if row.state == SliceState.FREE and row.draining:
        return Kind.FIXED
    return _KINDS[SliceState(row.state)]


_KINDS = {
    SliceState.FREE: Kind.FREE,
    SliceState.LEASED: Kind.HELD,
    SliceState.SCRUBBING: Kind.GOING,
    SliceState.QUARANTINED: Kind.FIXED,
    SliceState.FOREIGN: Kind.FIXED,
}
