"""A class that does everything at once, and what must hold whatever happens.

The truth is kept apart from the pool: which servers were really started, on which UUIDs, and which
slices miglab did not make.  `verify` compares it with raw NVML and the ledger after every step.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import Purpose, TicketState, borrower_of
from miglab_pool.gpu.readings import GpuError
from miglab_pool.gpu.simulated.machine import Break
from miglab_pool.ledger.rows import LIVE_LEASES
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import feasible, is_usable, start_times

from .conftest import Crash, World
from .layout_drafts import draft

USERS = ("ada", "bob", "cy", "dee", "eve", "fay", "gus", "hal", "ida")
ASKED = ("1g.5gb", "1g.5gb", "1g.5gb", "2x1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
LAYOUTS = ("7g.40gb", "2x3g.20gb", "4g.20gb + 3x1g.5gb", "7x1g.5gb", "2g.10gb")
AHEAD_S = 6 * 3600.0
FAULTS = (
    ("nvmlDeviceCreateGpuInstance", pynvml.NVML_ERROR_UNKNOWN),
    ("nvmlDeviceCreateGpuInstance", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
    ("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_UNKNOWN),
    ("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
    ("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_NOT_FOUND),
    ("nvmlGpuInstanceDestroy", pynvml.NVML_SUCCESS),  # and does nothing
    ("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE),
    ("nvmlComputeInstanceDestroy", pynvml.NVML_ERROR_IN_USE),
    ("nvmlDeviceGetGpuInstances", pynvml.NVML_ERROR_UNKNOWN),
)


@dataclass
class StartedServer:
    """A server that was really started: what it can reach until it ends."""

    lease: LeaseView
    has_slices: bool = True


class ClassRoom(World):
    """The world, with actions that a test picks by chance."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.running: dict[str, StartedServer] = {}
        self.lease_of_holder: dict[str, LeaseView] = {}
        self.foreign: set[tuple[str, str, int]] = set()
        self.drained: dict[int, int | None] = {}
        self.kills = 0
        super().__init__(folder, gpus=gpus)

    # -- dying --------------------------------------------------------------------------------

    def step(
        self, action: Callable[[], object], die_at: int | None, again: int | None = None
    ) -> bool:
        """Do something, perhaps die in the middle, start again, and check everything.

        Args:
            action: what to do.
            die_at: at which point of it to die; None = not.
            again: at which point of the restart to die once more.

        Returns:
            Whether it died.
        """
        self.fuse.points_left = die_at
        is_dead = False
        drained, layouts, counts = (
            self._leases_on_drained(),
            self._layouts(),
            self._feasible_counts(),
        )
        try:
            action()
        except Crash:
            is_dead = True
        except (Refused, GpuError):
            pass
        self.fuse.points_left = again if is_dead else None
        while is_dead:
            self.kills += 1
            try:
                self.crash()
                break
            except Crash:
                self.fuse.points_left = None
        self.fuse.points_left = None
        self.verify()
        self._verify_drained(drained)
        self._verify_layouts(layouts)
        self._verify_reservations(counts)
        return is_dead

    def _feasible_counts(self) -> tuple[object, set[int], dict[tuple[float, int], int]]:
        """What reservations count on, who holds, and what of each is feasible at its starts."""
        view = self.pool.view
        ground = {
            (gpu.uuid, is_usable(gpu), gpu.row.partition, row.id)
            for gpu in view.gpus.values()
            for row in gpu.slices
            if row.is_fixed
        } | {(gpu.uuid, is_usable(gpu), gpu.row.partition, 0) for gpu in view.gpus.values()}
        feasible_counts = {
            (start, number): count
            for start in start_times(view, view.at, view.at + AHEAD_S)
            for number, count in feasible(view, start).counts.items()
        }
        staying = {row.id for row in view.leases.values() if row.state != LeaseState.RELEASING}
        return (ground, dict(view.reservations)), staying, feasible_counts

    def _verify_reservations(
        self, before: tuple[object, set[int], dict[tuple[float, int], int]]
    ) -> None:
        """While GPUs and reservations are the same no grant and no extension takes from one.

        Where somebody who draws on one leaves, and the GPU is not usable, it has fewer.
        """
        (ground, stayed, counts_before), (now, stay, counts_now) = before, self._feasible_counts()
        for key, count in counts_before.items() if ground == now and stayed <= stay else ():
            assert counts_now.get(key, count) >= count, "a reservation has fewer of its slices"

    def _layouts(self) -> dict[str, tuple[tuple[str, ...], frozenset[int]]]:
        """The layout of each GPU, and the slices there."""
        on_gpu = self.ledger.state.on_gpu
        return {
            uuid: (gpu.partition, frozenset(on_gpu[uuid]))
            for uuid, gpu in self.pool.view.unpaused_gpus.items()
            if gpu.partition
        }

    def _verify_layouts(self, before: dict[str, tuple[tuple[str, ...], frozenset[int]]]) -> None:
        """Where the layout is what it was nothing was made but its shapes."""
        for gpu, (partition, _) in self._layouts().items():
            was, slices = before.get(gpu, ((), frozenset()))
            for row in self.ledger.state.on_gpu[gpu].values():
                is_new = was == partition and row.id not in slices
                if is_new and row.state != "foreign" and not row.draining:
                    assert row.profile in partition, "made against the layout"

    def _leases_on_drained(self) -> dict[str, frozenset[int]]:
        """What leases there are on drained GPUs and slices."""
        state = self.ledger.state
        gpus_of_lease = {
            number: {
                state.slices[slice_id].gpu for slice_id in lease.slices if slice_id in state.slices
            }
            for number, lease in state.leases.items()
        }
        return {
            gpu: frozenset(number for number, on in gpus_of_lease.items() if gpu in on)
            for gpu, row in state.gpus.items()
            if row.draining
        }

    def _verify_drained(self, before: dict[str, frozenset[int]]) -> None:
        """What was drained before and is drained now got no new lease in between."""
        for gpu, leases in self._leases_on_drained().items():
            assert gpu not in before or leases <= before[gpu], "a drained GPU got a new lease"
        for row in self.ledger.state.slices.values():
            lease = self.ledger.state.leases.get(row.lease or 0)
            if row.draining and lease is not None and row.id in self.drained:
                assert lease.id == self.drained[row.id], "a drained slice got a new lease"
        self.drained = {
            row.id: row.lease for row in self.ledger.state.slices.values() if row.draining
        }

    # -- what people do -----------------------------------------------------------------------

    def someone_asks(self, user: str, shape: str, only_if_free: bool = False) -> None:
        if not any(server.lease.user == user for server in self.running.values()):
            self.ask(user, shape, only_if_free=only_if_free)

    def someone_starts(self, user: str, shape: str) -> None:
        """The spawner asks, and has the lease at once if the pool grants it."""
        if not any(server.lease.user == user for server in self.running.values()):
            self.ask_for_lease(user, shape)

    def someone_borrows(self, user: str, shape: str) -> None:
        self.ask(user, shape, server=borrower_of(""), purpose=Purpose.BORROW)

    def some_work(self, jobs: int) -> None:
        self.pool.turn()
        for _ in range(jobs):
            job = self.pool.next_job()
            if job is None:
                return
            self.pool.perform(job)
            self.pool.turn()

    def spawn(self, user: str, is_started: bool = True) -> None:
        """The spawner's part: take, create, attach, start; it may fail at any point."""
        for ticket in list(self.ledger.state.tickets.values()):
            if ticket.user == user and ticket.state in (TicketState.OFFERED, TicketState.TAKEN):
                lease = self.pool.tickets.take(ticket.id)
                holder = next(
                    (h for h, m in self.lease_of_holder.items() if m.id == lease.id), None
                )
                holder = holder or self.new_holder()
                self.lease_of_holder[holder] = lease
                self.label(holder, lease)
                if not is_started:
                    return
                lease = self.pool.leases.attach(lease.id, lease.generation, holder)
                if holder in self.holders.present:
                    self._start(holder, lease)
                    self.pool.leases.running(lease.id)

    def _start(self, holder: str, lease: LeaseView) -> None:
        """Docker's hook refuses a UUID that does not exist."""
        present_uuids = {slice_["uuid"] for _, slice_ in self.on_gpus()}
        if set(lease.uuids) <= present_uuids:
            self.running[holder] = StartedServer(lease)

    def late_attach(self) -> None:
        """A spawner that slept: it attaches whatever it once was given, and starts if it may."""
        for holder, lease in list(self.lease_of_holder.items()):
            if holder in self.running or holder not in self.holders.present:
                continue
            lease = self.pool.leases.attach(lease.id, lease.generation, holder)
            self._start(holder, lease)

    def server_ends(self, user: str, is_said: bool) -> None:
        for holder, server in list(self.running.items()):
            if server.lease.user == user:
                self.holders.present.discard(holder)
                del self.running[holder]
                if is_said:
                    self.pool.leases.release(server.lease.id, "hub", "stopped")

    def release_early(self, user: str) -> None:
        """Asked back while the server still runs."""
        for lease in self.pool.leases.live(user):
            self.pool.leases.release(lease.id, user, "asked")

    def reserve(self, course: str, shape: str, count: int, in_minutes: int) -> None:
        """Somebody reserves an hour, soon."""
        begins = datetime.fromtimestamp(self.at, UTC) + timedelta(minutes=in_minutes)
        ends = begins + timedelta(hours=1)
        request = ReservationRequest(
            course=course,
            shape=shape,
            count=count,
            date=begins.date(),
            from_time=begins.strftime("%H:%M"),
            to_time=ends.strftime("%H:%M"),
            tz="UTC",
        )
        self.pool.reservations.make(request, "ina")

    def unreserve_all(self) -> None:
        for number in list(self.ledger.state.reservations):
            self.pool.reservations.cancel(number, "ina")

    def warn(self, user: str, kind: WarningKind) -> None:
        """The reclaimer warns about whatever this user has in use."""
        for lease in self.pool.leases.live(user):
            self.pool.leases.warn(lease.id, kind, "unused", self.at + 60)

    def warning_ends(self, user: str, ending: str) -> None:
        """By activity, by the holder, put off, or with a reclaim."""
        for lease in self.pool.leases.live(user):
            if ending == "stay":
                self.pool.leases.keepalive(lease.id, user)
            elif ending == "late":
                self.pool.leases.move_end(lease.id, self.at + 600, "restarted")
            elif ending == "sooner":
                self.pool.leases.move_end(lease.id, self.at + 60, "The class ends.")
            elif ending == "reclaim" and lease.warning is not None:
                self.pool.leases.release(lease.id, "reclaimer", lease.warning.reason)
            else:
                self.pool.leases.end_warning(lease.id, "reclaimer", "in use")

    def cancel_all(self, user: str) -> None:
        for ticket in list(self.ledger.state.tickets.values()):
            if ticket.user == user:
                self.pool.tickets.cancel(ticket.id, user)

    # -- what staff do ------------------------------------------------------------------------

    def drain(self, number: int, is_gpu: bool) -> None:
        """Drain a GPU or a slice, or end that."""
        staff, state = self.pool.staff, self.ledger.state
        if is_gpu:
            gpu = list(state.gpus.values())[number % len(state.gpus)]
            action = staff.undrain if gpu.draining else staff.drain
            action(gpu.uuid, "fan", "person:ina")
        elif state.slices:
            slice_ = list(state.slices.values())[number % len(state.slices)]
            job = staff.undrain if slice_.draining else staff.drain
            job(slice_.id, "fan", "person:ina")

    def quarantine(self, number: int) -> None:
        """Set a slice aside, or try one again."""
        slices = list(self.ledger.state.slices.values())
        if slices:
            slice_, staff = slices[number % len(slices)], self.pool.staff
            action = staff.clear if slice_.state == "quarantined" else staff.quarantine
            action(slice_.id, "person:ina", "errors")

    def staff_reclaim(self, user: str, warning_s: float) -> None:
        """Take back what a user holds, or what staff had asked back."""
        self.pool.staff.release_reclaimed()
        for lease in self.pool.leases.live(user):
            self.pool.staff.reclaim(lease.id, "exam", "person:ina", warning_s)

    def staff_help(self, user: str) -> None:
        """Let a user keep what is asked back, and put them in front."""
        for lease in self.pool.leases.live(user):
            self.pool.staff.extend(lease.id, 60.0, "person:ina", "presents")
        for ticket in list(self.ledger.state.tickets.values()):
            if ticket.user == user:
                self.pool.staff.put_in_front(ticket.id, "presents", "person:ina")

    def apply_layout(self, partition: str, number: int) -> None:
        """Somebody says how one GPU is to be cut, or all."""
        gpus = [gpu.index for gpu in self.pool.layouts.partitionable()]
        indices = [gpus[number % len(gpus)]] if gpus and number % 3 else []
        request = draft(partition, *indices, name=str(number % 2))
        self.pool.layouts.apply(request, "person:ina")

    def remove_all_layouts(self) -> None:
        self.pool.layouts.apply(draft(""), "person:ina")

    # -- what happens to machines -------------------------------------------------------------

    def reboot(self) -> None:
        """The host restarts: slices are gone, and so are all containers."""
        self.machine.reboot()
        self.foreign.clear()
        self.holders.present.clear()
        self.running.clear()
        self.crash()

    def driver_reload(self) -> None:
        """The slices are gone, the containers are not."""
        self.machine.reboot()
        self.foreign.clear()
        for server in self.running.values():
            server.has_slices = False

    def admin_partitions(self, start: int) -> None:
        """Somebody makes a slice with nvidia-smi.

        After a driver reload NVML may give it the very id and UUID of one of ours that is gone and
        whose loss nobody has seen yet: then nobody can tell them apart, and it is not foreign.
        """
        info = self.driver.gpus()[start % len(self.driver.gpus())]
        profile = info.geometry.by_name["1g.5gb"]
        placement = profile.placements[start % 7]
        self.foreign.add((info.uuid, profile.name, placement.start))
        try:
            reading = self.driver.create(info.uuid, profile, placement)
            own_slices = {(row.gi_id, row.uuid) for row in self.ledger.state.slices.values()}
            if (reading.gi_id, reading.uuid) in own_slices:
                self.foreign.discard((info.uuid, profile.name, placement.start))
        except (Crash, GpuError):
            self.foreign.discard((info.uuid, profile.name, placement.start))

    def fault(self, number: int) -> None:
        self.fail(*FAULTS[number % len(FAULTS)])

    def heal(self) -> None:
        self.machine.break_gpu(Break.OK)
        self.holders.is_silent = False

    # -- what must hold -----------------------------------------------------------------------

    def verify(self) -> None:
        """The pool's own check, and the same said again from raw NVML and the truth."""
        self._see_ended_runners()
        assert self.pool.check_invariants() == []
        job = self.pool.next_job()
        assert job is None or self.pool.may_have_jobs(frozenset({job.kind})), "a job nobody sees"
        for first_server, second_server in combinations(self.running.values(), 2):
            assert not set(first_server.lease.uuids) & set(second_server.lease.uuids), (
                "two servers on one slice"
            )
        for holder, server in self.running.items():
            lease = self.ledger.state.leases.get(server.lease.id)
            assert lease is not None, "a lease ended before its server"
            assert lease.holder == holder
            assert lease.state in LIVE_LEASES
        self._verify_raw()

    def _see_ended_runners(self) -> None:
        """A runner is the pool's to end: where it has removed one, that one runs no more."""
        for holder, server in list(self.running.items()):
            is_borrowed = server.lease.purpose is Purpose.BORROW
            if is_borrowed and holder not in self.holders.present:
                del self.running[holder]

    def _verify_raw(self) -> None:
        slices = self.on_gpus()
        places = {(gpu, slice_["profile"], slice_["start"]) for gpu, slice_ in slices}
        assert self.foreign <= places, "a foreign slice was touched"
        uuids = {slice_["uuid"] for _, slice_ in slices}
        for server in self.running.values():
            if server.has_slices:
                assert set(server.lease.uuids) <= uuids, "a slice was destroyed under its server"

    def on_gpus(self) -> list[tuple[str, dict[str, Any]]]:
        """Every slice there really is, past driver and NVML: GPU and slice."""
        gpus = self.machine.view()["gpus"]
        return [(gpu["uuid"], slice_) for gpu in gpus for slice_ in gpu["slices"]]

    def finish(self) -> None:
        """Everyone leaves: nothing is leased, lost, or left half made."""
        self.heal()
        for user in USERS:
            self.server_ends(user, is_said=False)
            self.cancel_all(user)
        self.holders.present.clear()
        for row in list(self.ledger.state.slices.values()):
            if row.state == "quarantined":
                self.pool.staff.clear(row.id, "root")
        for gpu in [row for row in self.ledger.state.gpus.values() if row.draining]:
            self.pool.staff.undrain(gpu.uuid, "", "root")
        self.settle()
        assert self.ledger.state.leases == {}
        assert set(self.states()) <= {"free", "foreign"}
        rows = self.ledger.state.slices.values()
        expected = {(row.gpu, row.profile, row.start): row.state for row in rows}
        actual = {(gpu, s["profile"], s["start"]): s["uuid"] for gpu, s in self.on_gpus()}
        assert actual.keys() == expected.keys()
        assert all(uuid or expected[place] == "foreign" for place, uuid in actual.items())
        assert all(gpu.conforms or gpu.blocked for gpu in self.pool.layouts.all().gpus)
        self.verify()


def chance(room: ClassRoom, dice: random.Random) -> Callable[[], object]:
    """One action by chance, the everyday ones more often."""
    user = dice.choice(USERS)
    everyday: list[Callable[[], object]] = [
        lambda: room.someone_asks(user, dice.choice(ASKED)),
        lambda: room.someone_starts(user, dice.choice(ASKED)),
        lambda: room.some_work(4),
        lambda: room.some_work(8),
        lambda: room.spawn(user),
        lambda: room.spawn(user),
        lambda: room.server_ends(user, is_said=True),
    ]
    rare: list[Callable[[], object]] = [
        lambda: room.spawn(user, is_started=False),
        room.late_attach,
        lambda: room.server_ends(user, is_said=False),
        lambda: room.release_early(user),
        lambda: room.cancel_all(user),
        lambda: room.pass_time(dice.choice((1.0, 61.0, 130.0))),
        room.pool.reconcile,
        room.reboot,
        room.driver_reload,
        lambda: room.admin_partitions(dice.randrange(14)),
        lambda: room.fault(dice.randrange(5)),
        lambda: setattr(room.holders, "is_silent", not room.holders.is_silent),
        room.attend_all,
        lambda: room.warn(user, dice.choice(list(WarningKind))),
        lambda: room.warning_ends(user, dice.choice(("stay", "late", "reclaim", "work"))),
        lambda: room.reserve("everyone", "1g.5gb", dice.randrange(1, 8), dice.randrange(30)),
        lambda: room.reserve("vision", "1g.5gb", dice.randrange(1, 8), dice.randrange(30)),
        room.unreserve_all,
        lambda: room.apply_layout(dice.choice(LAYOUTS), dice.randrange(6)),
        room.remove_all_layouts,
        lambda: room.drain(dice.randrange(20), dice.random() < 0.3),
        lambda: room.drain(dice.randrange(20), dice.random() < 0.3),
        lambda: room.quarantine(dice.randrange(20)),
        lambda: room.staff_reclaim(user, dice.choice((0.0, 60.0))),
        lambda: room.staff_help(user),
    ]
    return dice.choice(everyday if dice.random() < 0.7 else rare)
