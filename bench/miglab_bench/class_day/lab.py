"""The lab of the simulated day: the real pool, its ledger on disk, simulated GPUs, our clock."""

import datetime as dt
import itertools
from collections.abc import Collection
from pathlib import Path

from miglab_api.holders import Liveness
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import Purpose, TicketRequest, TicketState, borrower_of
from miglab_bench.class_day.plan import CLASS, PRACTICAL, Day, Plan
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement, Profile, ProfilePlacement
from miglab_pool.gpu.readings import NoRoom, ProcessReading, SliceReading, Usage
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml  # noqa: TID251 -- nothing hangs here
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import LIVE_TICKETS, LeaseRow
from miglab_pool.pool import Pool
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.settings import Pool as PoolTable
from miglab_pool.worker.holders import HostHolders

MIDNIGHT = 1_795_046_400.0  # of the simulated day, seconds since the epoch
IN_USE, EMPTY = Usage(2000, (ProcessReading(1, 2000),)), Usage(10, ())  # MiB


class DayDriver(Driver):
    """Simulated GPUs, whose slices are kept in memory: a day in which cells borrow makes 15,000.

    They refuse what a GPU refuses: a placement that the profile does not have, or that is taken.

    Attributes:
        busy: the slices on which the day's students run something.
    """

    def __init__(self, machine: Path) -> None:
        super().__init__(SimulatedNvml(machine))
        self.busy: set[str] = set()
        self._slices: dict[str, dict[int, SliceReading]] = {gpu: {} for gpu in self.uuids}
        self._numbers = itertools.count(1)

    def slices(self, gpu_uuid: str) -> list[SliceReading]:
        """Return the slices of a GPU, lowest start first."""
        return sorted(self._slices[gpu_uuid].values(), key=lambda s: s.placement)

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> SliceReading:
        """Make a slice.

        Raises:
            NoRoom: the profile cannot lie there.
        """
        is_taken = any(s.placement.mask & placement.mask for s in self.slices(gpu_uuid))
        if is_taken or placement not in profile.placements:
            raise NoRoom(f"{profile.name} cannot lie at {placement} on {gpu_uuid}")
        number = next(self._numbers)
        slice_ = SliceReading(gpu_uuid, number, 0, f"MIG-{number}", profile, placement)
        self._slices[gpu_uuid][number] = slice_
        return slice_

    def placements(self, gpu_uuid: str) -> list[Placement]:
        """Return where the slices of a GPU lie."""
        return [slice_.placement for slice_ in self.slices(gpu_uuid)]

    def destroy(self, gpu_uuid: str, gi_id: int, expected: ProfilePlacement | None = None) -> None:
        """Destroy a slice; one that is already gone is fine."""
        self._slices[gpu_uuid].pop(gi_id, None)

    def usages(self, gpu_uuid: str, slices: Collection[SliceReading]) -> dict[SliceReading, Usage]:
        """Return the use of each slice by the day's students."""
        return {slice_: IN_USE if slice_.uuid in self.busy else EMPTY for slice_ in slices}


class Servers(HostHolders):
    """The students' servers, as holders whose liveness the pool probes."""

    def __init__(self) -> None:
        super().__init__()
        self.running: set[str] = set()

    def probe(self, holder: str) -> Liveness:
        """Return whether the holder runs."""
        return Liveness.ALIVE if holder in self.running else Liveness.GONE

    def probably_gone(self, holders: Collection[str]) -> set[str]:
        """Return the holders that do not run."""
        return set(holders) - self.running

    def remove(self, holder: str, *, force: bool) -> bool:
        """Return whether the holder is gone."""
        return holder not in self.running


class UnsyncedLedger(Ledger):
    """A ledger that does not wait for the disk: after a power cut the simulation is run again."""

    def begin(self, *, durable: bool) -> None:
        """Begin to write."""
        super().begin(durable=False)


class DayLab:
    """The simulated lab: what spawners and the hub do with the pool.

    Args:
        folder: empty, for the ledger and the GPUs.
        gpus: how many.
        day: of what kind they are, and what the courses offer.
        table: [pool] of lab.toml.

    Attributes:
        at: seconds since midnight.
        open_tickets: the tickets that wait or have an offer.
    """

    def __init__(self, folder: Path, gpus: int, day: Day, table: PoolTable) -> None:
        self.at = 0.0
        self.open_tickets: set[int] = set()
        self._is_changed = True
        SimulatedMachine.create(folder / "gpus", gpus, day.model, seed="class-day")
        self.driver = DayDriver(folder / "gpus")
        self._servers = Servers()
        self._ledger = UnsyncedLedger(folder / "ledger.sqlite")
        self._numbers = itertools.count(1)
        courses = {
            name: Course(title=name, shapes=day.profiles, lends=day.profiles)
            for name in (CLASS, PRACTICAL)
        }
        settings = PoolSettings(pool=table, courses=courses)
        self.pool = Pool(
            settings, self._ledger, self.driver, self._servers, lambda: MIDNIGHT + self.at
        )
        self.pool.reconcile()

    def reserve(self, day: Day, count: int) -> None:
        """Reserve slices for the practical, before anybody comes."""
        request = ReservationRequest(
            course=PRACTICAL,
            shape=day.profiles[0],
            count=count,
            date=_moment(0.0).date(),
            from_time=f"{_moment(day.practical.from_h):%H:%M}",
            to_time=f"{_moment(day.practical.until_h):%H:%M}",
            tz="UTC",
        )
        self.pool.reservations.make(request, "person:instructor")

    def close(self) -> None:
        """Close ledger and driver after a check of the invariants.

        Raises:
            RuntimeError: an invariant does not hold, and the day's figures mean nothing.
        """
        broken = self.pool.check_invariants()
        self._ledger.close()
        self.driver.close()
        if broken:
            raise RuntimeError("; ".join(broken))

    def work(self, *, is_look: bool) -> None:
        """Let the pool take a turn and do all jobs, if it is due to look or something changed."""
        if not (is_look or self._is_changed):
            return
        self._is_changed = False
        self.pool.turn()
        while (job := self.pool.next_job()) is not None:
            self.pool.perform(job)
            self.pool.turn()

    # -- waiting ------------------------------------------------------------------------------

    def ask(self, plan: Plan, purpose: Purpose) -> int | None:
        """Request a ticket, and return its id; None if the queue is full."""
        request = TicketRequest(
            user=plan.name,
            server=borrower_of("") if purpose is Purpose.BORROW else "",
            course=plan.course,
            shape=plan.profile,
            purpose=purpose,
        )
        try:
            ticket = self.pool.tickets.request(request).id
        except Refused:
            return None
        self.open_tickets.add(ticket)
        self._is_changed = True
        return ticket

    def attend(self, ticket: int) -> bool:
        """Keep the ticket alive; return whether it still is."""
        is_live = self.pool.tickets.attend(ticket).state in LIVE_TICKETS
        if not is_live:
            self.open_tickets.discard(ticket)
        return is_live

    def cancel(self, ticket: int, user: str) -> None:
        """Leave the queue."""
        self.pool.tickets.cancel(ticket, user)
        self.open_tickets.discard(ticket)
        self._is_changed = True

    # -- servers ------------------------------------------------------------------------------

    def start(self, ticket: int) -> LeaseView | None:
        """Take the offer, if there is one, and start a server or a runner on it."""
        row = self.pool.store.state.tickets.get(ticket)
        if row is None or row.state != TicketState.OFFERED:
            return None
        lease = self.pool.tickets.take(ticket)
        self.open_tickets.discard(ticket)
        holder = f"container:{next(self._numbers):064x}"
        self._servers.running.add(holder)
        self.pool.leases.attach(lease.id, lease.generation, holder)
        return self.pool.leases.running(lease.id)

    def is_needed(self, lease: int) -> bool:
        """Return whether somebody waits for the slices of a lease."""
        return bool(self.open_tickets) and self.pool.leases.find(lease).others_wait > 0

    def stop(self, lease: int, reason: str) -> None:
        """Stop the server; its slices are free once the pool has seen that it is gone."""
        row = self.row(lease)
        self._servers.running.discard(row.holder)
        self._is_changed = True
        if row.state is not LeaseState.RELEASING:
            self.pool.leases.release(lease, "hub", reason)

    def row(self, lease: int) -> LeaseRow:
        """Return a live lease from the ledger."""
        return self.pool.store.state.leases[lease]

    def keepalive(self, lease: int, user: str) -> bool:
        """Say "I am still here"; return whether the pool accepts it."""
        try:
            self.pool.leases.keepalive(lease, user)
        except Refused:
            return False
        return True


def _moment(hours: float) -> dt.datetime:
    """Return the time of the simulated day, rounded to the minute."""
    return dt.datetime.fromtimestamp(MIDNIGHT + 60 * round(60 * hours), dt.UTC)
