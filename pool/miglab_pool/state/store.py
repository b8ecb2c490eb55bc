"""The state that all of the pool shares: ledger, clock, lock, and facts that only memory has.

Facts that are not in the ledger may be lost at any moment: the last answers of NVML, and which GPUs
rest after a failure.  Decisions are made on a `PoolView`, never on the store.

How much each course and user has used lately is kept here too, in slice-hours, exponentially
decayed.  A lease counts from attach to its end, weighted by its memory slices; use of one half-life
ago counts half (as in Slurm's multifactor priority, PriorityDecayHalfLife).  The ledger is read
once; afterwards each lease that ends is added to a sum, and a sum decays as a whole.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import select

from miglab_pool.gpu.geometry import Geometry, Profile, ProfilePlacement
from miglab_pool.gpu.readings import GpuInfo, Health, Usage, Versions, Xid
from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import AnyRow, Ledger, State, Transaction
from miglab_pool.ledger.rows import LeaseRow, SliceRow
from miglab_pool.refused import Refused
from miglab_pool.settings import PoolSettings
from miglab_pool.state.fair_share import (
    FORGOTTEN_AFTER,
    WEEK_S,
    LeaseUse,
    LeaseUses,
    shifted_to_end_by,
)
from miglab_pool.state.proof_record import UNDER_PROOF
from miglab_pool.state.reservation_times import ReservationTimes
from miglab_pool.state.view import GpuSnapshot, PoolView, placement_on, profile_on
from miglab_pool.state.wait_estimates import WaitEstimates

CLOCK_S = 60.0  # by which a moment may be before the one at which the ledger was read
TABLES = ("slices", "tickets", "leases", "messages")
NEVER = float("-inf")
SECOND_S = 1.0


class LeaseUseReader:
    """Keeps account of what leases used in the last weeks, for fair share and quotas.

    Args:
        ledger: read once; then its state tells which leases began and ended.
        half_life_s: after which time use counts half, seconds.
    """

    def __init__(self, ledger: Ledger, half_life_s: float) -> None:
        self._ledger = ledger
        self._half_life_s = half_life_s
        self._horizon_s = max(WEEK_S, FORGOTTEN_AFTER * half_life_s)
        self._counted_state: State | None = None  # a new one replaces it when a write is undone
        self._uses = LeaseUses(half_life_s, 0.0, {})
        self._rows: tuple[LeaseRow, ...] = ()

    def uses_at(self, now: float) -> LeaseUses:
        """Return what leases have used lately; the same object until their rows change."""
        state, uses = self._ledger.state, self._uses
        age_s = now - uses.summed_at
        if state is not self._counted_state or not -CLOCK_S <= age_s <= self._horizon_s / 2:
            self._counted_state = state
            ended_uses = read_ended_uses(self._ledger, since=now - self._horizon_s)
            over = [shifted_to_end_by(use, now) for use in ended_uses]
            uses = LeaseUses(self._half_life_s, now, {}).with_ended(over)
        else:
            ended = [row for row in state.ended.values() if row.attached_at is not None]
            uses = uses.with_ended(map(self._use_of, ended)) if ended else uses
        state.ended.clear()
        rows = tuple(state.leases.values())
        if uses is not self._uses or rows != self._rows:
            cached = {use.lease: use for use in self._uses.live}
            live = tuple(self._cached_use(cached, row) for row in rows)
            self._uses, self._rows = replace(uses, live=live), rows
        return self._uses

    def invalidate(self) -> None:
        """Sum ended leases anew on the next call, as the sums are by name and a name changed."""
        self._counted_state = None

    def _cached_use(self, cached: Mapping[int, LeaseUse], lease: LeaseRow) -> LeaseUse:
        use = cached.get(lease.id)
        is_same = use and (use.began_at, use.user) == (lease.attached_at, lease.user)
        return use if use and is_same else self._use_of(lease)

    def _use_of(self, lease: LeaseRow) -> LeaseUse:
        slices = (self._ledger.find(SliceRow, number) for number in lease.slices)
        size = sum(row.size for row in slices if row is not None)
        return LeaseUse(
            lease.id,
            lease.user,
            lease.course,
            lease.server,
            size,
            lease.attached_at,
            lease.ended_at,
            lease.shape,
            lease.granted_at,
        )


def read_ended_uses(ledger: Ledger, since: float) -> Iterable[LeaseUse]:
    """The leases that a server held and that ended after a moment; one query."""
    leases = tables.leases.c
    query = (
        select(
            leases.id.label("lease"),
            leases.user,
            leases.course,
            leases.server,
            leases.shape,
            tables.size_of_lease.label("size"),
            leases.attached_at.label("began_at"),
            leases.ended_at,
            leases.granted_at,
        )
        .where(leases.attached_at.is_not(None), leases.ended_at > since)
        .order_by(leases.ended_at)
    )
    return [LeaseUse(**row) for row in ledger.read(query)]


@dataclass(frozen=True, slots=True)
class Wellness:
    """A GPU's last health reading, and when it was taken (seconds since the epoch).

    Attributes:
        xids: the last known Xid faults; a failed reading keeps them.
    """

    at: float
    health: Health
    xids: tuple[Xid, ...] = ()


@dataclass
class Backoff:
    """When something may be tried again; the pause doubles with each failure.

    Attributes:
        first_s: the first pause.
        most_s: the longest.
    """

    first_s: float
    most_s: float
    _failures: dict[object, int] = field(default_factory=dict)
    _until: dict[object, float] = field(default_factory=dict)

    def fail(self, key: object, now: float) -> None:
        """Count a failure, and pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._until[key] = now + min(self.most_s, self.first_s * 2 ** min(failures, 20))

    def pause(self, key: object, until: float) -> None:
        """Not before ``until``, without counting a failure."""
        self._until[key] = until

    def clear(self, key: object) -> None:
        """End the pause, and forget the failures."""
        self._failures.pop(key, None)
        self._until.pop(key, None)

    def move(self, by_s: float) -> None:
        """Move every pause by a step of the clock, so that it lasts as long as before."""
        self._until = {key: until + by_s for key, until in self._until.items()}

    @property
    def pauses(self) -> Mapping[object, float]:
        """When what failed may be tried again, by key."""
        return self._until

    def is_due(self, key: object, now: float) -> bool:
        """Whether it may be tried now."""
        return self._until.get(key, float("-inf")) <= now

    def until(self, key: object) -> float | None:
        """When it may be tried again; None if it never failed."""
        return self._until.get(key)


def _ignore_unserved(*_args: object) -> None:
    """Ignore a ticket that ended unserved."""


def _is_within_second(view: PoolView, at: float) -> bool:
    """Whether a view is less than a second old at a moment."""
    return 0 <= at - view.at < SECOND_S


class Store:
    """The pool's shared state.

    Every method but `current` and `write` expects the caller to hold ``lock``.

    Attributes:
        published: the pool as the last transaction left it, at that moment.
    """

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
        self.slice_usage: dict[int, Usage] = {}
        self.samples = 0  # how often usage was read: who sees it stand still knows that it is old
        self.gpu_usage: dict[str, Usage] = {}
        self.lease_use_reader = LeaseUseReader(ledger, settings.pool.fair_half_life_s)
        self.estimates = WaitEstimates()
        self.suspects: set[int] = set()  # leases whose holders may well be gone: ask at once
        self.abandoned: frozenset[int] = frozenset()  # releasing, and their servers not the hub's
        self.disk_full = ""  # why nothing is granted while the ledger's disk is full
        self.under_proof: frozenset[str] = frozenset()  # GPUs that are lent to `miglab prove`
        self.wellness: dict[str, Wellness] = {}  # by GPU, as it said last
        self.versions = Versions()
        self.unserved: Callable[[str, str], None] = (
            _ignore_unserved  # told a ticket's last state and reason
        )
        pauses_s = settings.tuning.retry_s, settings.tuning.retry_max_s
        self.creation_backoff = Backoff(*pauses_s)  # of what nobody asked
        self.grant_backoff = Backoff(*pauses_s)  # see pause_grants
        self.placement_backoffs = defaultdict[str, Backoff](lambda: Backoff(*pauses_s))
        self._snapshots: dict[str, GpuSnapshot] = {}
        self._tables: dict[str, Mapping[int, Any]] = {}
        self._reservations = ReservationTimes(ledger.state.reservations)
        self._stale: set[str] = set(ledger.state.gpus)
        self._is_writing = False
        self._view_version: tuple[int, int] | None = None
        self._view = self.published = self.view()
        self._current_cache = self.published, self.published

    @property
    def state(self) -> State:
        return self.ledger.state

    def restart_graces(self, step_s: float) -> None:
        """Restart every grace now, as after a restart; pauses move with the clock.

        Args:
            step_s: by how much the clock was set.
        """
        self.started_at = self.now()
        self.creation_backoff.move(step_s)
        self.grant_backoff.move(step_s)
        for backoff in self.placement_backoffs.values():
            backoff.move(step_s)
        self.publish_change(self.state.gpus)

    @contextmanager
    def write(self, *, durable: bool = False) -> Iterator[Transaction]:
        """A ledger transaction under the lock, and a new view once it is on disk."""
        with self.lock:
            self._is_writing = True
            try:
                with self.ledger.write(self.now(), durable=durable) as transaction:
                    yield transaction
                if transaction.has_begun:
                    self.version += 1
            finally:
                self._is_writing = False
                if self.published.version != self.version:
                    self.published = self.view()

    # -- views --------------------------------------------------------------------------------

    def view(self, at: float | None = None) -> PoolView:
        """The pool at a moment, now if none is named; inside a transaction with what it has put.

        The same object while nothing has changed and the second is the same.
        """
        at = self.now() if at is None else at
        made_for = (self.version, self.state.writes)
        if made_for != self._view_version or not _is_within_second(self._view, at):
            self._view, self._view_version = self._build_view(at), made_for
        return self._view

    @property
    def current(self) -> PoolView:
        """The pool as the last transaction left it, for any thread, without the lock.

        The same object while nothing has changed and the second is the same.
        """
        view, now = self.published, self.now()
        if _is_within_second(view, now):
            return view
        base, later = self._current_cache
        if base is not view or not _is_within_second(later, now):
            later = replace(view, at=now)
            self._current_cache = view, later
        return later

    def publish_change(self, gpus: Collection[str] = (), *, is_news: bool = True) -> None:
        """Publish a change of facts that only memory has.

        Args:
            gpus: the GPUs that it concerns, whose snapshots are built anew.
            is_news: whether those who wait for news are woken.
        """
        self._stale.update(gpus)
        self._view_version = None
        self.version += is_news
        if is_news and not self._is_writing:
            self.published = self.view()
        elif not self._is_writing:  # of the same moment: what time changes is news of its own
            self.published = self._build_view(self.published.at)

    def _build_view(self, at: float) -> PoolView:
        state = self.state
        for name in TABLES:
            if name in state.changed or name not in self._tables:
                self._tables[name] = dict(getattr(state, name))
        if "reservations" in state.changed:
            self._reservations = ReservationTimes(state.reservations)
        state.changed.clear()
        self._refresh_snapshots()
        return PoolView(
            version=self.version,
            at=at,
            settings=self.settings,
            ledger=self.ledger.identity,
            simulated=self.simulated,
            started_at=self.started_at,
            paused=state.paused or self.disk_full,
            unpaused_gpus=self._snapshots,
            lease_uses=self.lease_use_reader.uses_at(at),
            estimates=self.estimates,
            wasted=dict(state.wasted),
            reservations=self._reservations,
            **self._tables,
        )

    def _refresh_snapshots(self) -> None:
        """Build the snapshots of all touched GPUs anew."""
        stale = self._stale | self.state.touched
        self._stale = set()
        self.state.touched.clear()
        if stale or self._snapshots.keys() != self.state.gpus.keys():
            snapshots = self._snapshots
            outdated = stale | (self.state.gpus.keys() - snapshots.keys())
            self._snapshots = {
                gpu: self._snapshot_of(gpu) if gpu in outdated else snapshots[gpu]
                for gpu in self.state.gpus
            }

    def _snapshot_of(self, gpu: str) -> GpuSnapshot:
        state, slices = self.state, tuple(self.state.on_gpu[gpu].values())
        leases = (state.leases.get(row.lease or 0) for row in slices)
        readings = ((row.id, self.slice_usage.get(row.id)) for row in slices)
        snapshot = GpuSnapshot(
            row=state.gpus[gpu],
            info=self.infos.get(gpu),
            slices=slices,
            leases={lease.id: lease for lease in leases if lease is not None},
            slice_usage={n: reading for n, reading in readings if reading is not None},
            gpu_usage=self.gpu_usage.get(gpu),
            rests_until=self.grant_backoff.until(gpu) or NEVER,
            unprepared_until=self.creation_backoff.until(gpu) or NEVER,
            closed_until=dict(self.placement_backoffs[gpu].pauses),
            settings=self.settings,
        )
        return snapshot.under_proof(UNDER_PROOF) if gpu in self.under_proof else snapshot

    # -- rows ---------------------------------------------------------------------------------

    def find(self, kind: type[AnyRow], number: int) -> AnyRow:
        """A row, live or over.

        Raises:
            Refused: ``unknown-ticket``, ``-lease`` or ``-reservation``: there never was one.
        """
        row = self.ledger.find(kind, number)
        if row is None:
            raise Refused(f"unknown-{kind.kind}", f"There is no {kind.kind} {number}.", 404)
        return row

    # -- GPUs ---------------------------------------------------------------------------------

    def geometry(self, gpu: str) -> Geometry | None:
        """How a GPU can be cut, if it ever answered."""
        info = self.infos.get(gpu)
        return info.geometry if info else None

    def profile(self, row: SliceRow) -> Profile:
        """The profile of a slice, by its GPU's geometry or, that unknown, as the ledger has it."""
        return profile_on(self.geometry(row.gpu), row)

    def placement_of(self, row: SliceRow) -> ProfilePlacement:
        """The slice as placement sees it."""
        return placement_on(self.geometry(row.gpu), row)

    def has_lost(self, gpu: str) -> bool:
        """Whether a server may still live whose slice on this GPU is gone."""
        return any(row.lost for row in self.state.on_gpu[gpu].values())

    def note_gpu_usage(self, gpu: str, usage: Usage) -> None:
        """Note the usage of a whole GPU, which decides whether it may be leased."""
        if self.gpu_usage.get(gpu) != usage:
            self.gpu_usage[gpu] = usage
            self.publish_change([gpu])

    def pause_grants(self, gpu: str, at: float) -> None:
        """Pause grants on a GPU where a granted slice could not be created, longer each time.

        An inspection may find nothing wrong with the GPU, so it alone does not end the pause.
        """
        self.grant_backoff.fail(gpu, at)
        self.publish_change([gpu])

    def close_placement(self, row: SliceRow, at: float) -> None:
        """Close a slice's placement, at which NVML found no room, for longer each time.

        Other profiles and other placements of the GPU stay open.
        """
        self.placement_backoffs[row.gpu].fail((row.profile, row.start), at)
        self.publish_change([row.gpu])

    def mark_gpu(self, tx: Transaction, gpu: str, state: str, reason: str = "") -> None:
        """Set a GPU's state and reason; writes nothing if they are the same."""
        row = self.state.gpus.get(gpu)
        if row is not None and (row.state, row.reason) != (state, reason):
            tx.put(replace(row, state=state, reason=reason), reason=reason)


class Subject:
    """The base of the pool's subjects, such as `Leases`: each method is a transaction.

    Any thread may call it; it answers with a wire model, and raises what it refuses (`Refused`).
    """

    def __init__(self, store: Store) -> None:
        self.store = store


AnySubject = TypeVar("AnySubject", bound=Subject)
P = ParamSpec("P")
T = TypeVar("T")


def locked(
    transaction: Callable[Concatenate[AnySubject, P], T],
) -> Callable[Concatenate[AnySubject, P], T]:
    """Run a subject's method under the pool's lock, until its answer is built."""

    @wraps(transaction)
    def run(part: AnySubject, /, *args: P.args, **options: P.kwargs) -> T:
        with part.store.lock:
            return transaction(part, *args, **options)

    return run
