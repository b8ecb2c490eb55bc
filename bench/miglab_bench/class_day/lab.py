"""The lab of the simulated day: the real pool, its ledger on disk, simulated GPUs, our clock.

The GPUs are miglab's simulated ones without delays, one machine for each: a machine is one file
that every cut writes anew, so making and destroying a slice takes 60 ms of CPU in a machine of 27
GPUs, and 15 ms in one of its own.  What runs on the slices is kept here and not in that file:
reading 108 slices back through NVML's functions takes 0.1 s of CPU, a thousand times a day.
"""

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

from miglab_api.holders import Liveness
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketRequest, TicketState
from miglab_bench.class_day.assumptions import Day
from miglab_bench.class_day.plan import Plan
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.geometry import Placement, Profile
from miglab_pool.gpu.open import open_gpus
from miglab_pool.gpu.readings import GpuInfo, Health, ProcessReading, SliceReading, Usage, Versions
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.model.holders import Stray
from miglab_pool.model.refused import Refused
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, PoolSettings, Quota
from miglab_pool.settings import Pool as PoolTable
from miglab_pool.transactions import tickets

COURSE, BRIEF = "class", "brief"
MIDNIGHT = 1_795_046_400.0  # of the simulated day, seconds since the epoch
KERNEL_MIB = 2000
EMPTY_MIB = 10


class Broken(RuntimeError):
    """The pool contradicts its own invariants: the day's figures mean nothing."""


class Rack:
    """Several machines with one GPU each, as one driver."""

    simulated = True

    def __init__(self, folder: Path, count: int, model: str) -> None:
        self.busy: set[str] = set()
        self._drivers: dict[str, Driver] = {}
        for index in range(count):
            place = folder / f"gpu-{index}"
            SimulatedMachine.create(place, model=model, seed=f"class-day-{index}")
            driver = open_gpus(simulated_state=place)
            self._drivers[driver.gpus()[0].uuid] = driver

    def close(self) -> None:
        """Close all of them."""
        for driver in self._drivers.values():
            driver.close()

    longest_call_s = 0.0

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs."""
        return tuple(self._drivers)

    def gpus(self) -> list[GpuInfo]:
        """Every GPU, numbered anew."""
        return [self.info(uuid) for uuid in self.uuids]

    def info(self, gpu_uuid: str) -> GpuInfo:
        """As the GPU's own driver says, numbered anew."""
        found = self._drivers[gpu_uuid].info(gpu_uuid)
        return replace(found, index=self.uuids.index(gpu_uuid))

    def versions(self) -> Versions:
        """As any GPU's driver says."""
        return next(iter(self._drivers.values())).versions()

    def slices(self, gpu_uuid: str) -> list[SliceReading]:
        """As the GPU's own driver says."""
        return self._drivers[gpu_uuid].slices(gpu_uuid)

    def create(self, gpu_uuid: str, profile: Profile, placement: Placement) -> SliceReading:
        """As the GPU's own driver does."""
        return self._drivers[gpu_uuid].create(gpu_uuid, profile, placement)

    def destroy(self, gpu_uuid: str, gi_id: int) -> None:
        """As the GPU's own driver does."""
        self._drivers[gpu_uuid].destroy(gpu_uuid, gi_id)

    def health(self, gpu_uuid: str) -> Health:
        """As the GPU's own driver says."""
        return self._drivers[gpu_uuid].health(gpu_uuid)

    def gpu_usage(self, gpu_uuid: str) -> Usage:
        """As the GPU's own driver says."""
        return self._drivers[gpu_uuid].gpu_usage(gpu_uuid)

    def usages(self, gpu_uuid: str, slices: Collection[SliceReading]) -> dict[SliceReading, Usage]:
        """What the day's students run there."""
        return {one: self._usage(one) for one in slices}

    def _usage(self, reading: SliceReading) -> Usage:
        if reading.uuid not in self.busy:
            return Usage(EMPTY_MIB, ())
        return Usage(KERNEL_MIB, (ProcessReading(1, KERNEL_MIB),))


class Servers:
    """The students' servers, as the pool asks after them."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def probe(self, holder: str) -> Liveness:
        """Whether it runs."""
        return Liveness.ALIVE if holder in self.there else Liveness.GONE

    def missing(self, holders: Collection[str]) -> set[str]:
        """Those that do not run."""
        return set(holders) - self.there

    def end(self, holder: str) -> bool:
        """The pool ends no server of the bench."""
        return False

    def engine(self) -> str:
        """There is none."""
        return ""

    def expect(self, engine: str) -> None:
        """Nothing to expect."""

    def labelled(self) -> list[Stray]:
        """No containers here."""
        return []

    def remove(self, holder: str, *, force: bool) -> bool:
        """Whether it is gone."""
        return holder not in self.there


class PowerStays(Ledger):
    """A ledger that does not wait for the disk: a simulation is begun anew after a power cut."""

    def begin(self, *, durable: bool) -> None:
        """Begin to write."""
        super().begin(durable=False)


class DayLab:
    """What spawners and the hub do with the pool.

    Args:
        folder: empty, for the ledger and the GPUs.
        gpus: how many.
        day: of what kind they are, and what the courses offer.
        table: [pool] of lab.toml.
        quotas: [quotas] of lab.toml.
    """

    def __init__(
        self, folder: Path, gpus: int, day: Day, table: PoolTable, quotas: dict[str, Quota]
    ) -> None:
        self.at = 0.0  # seconds since midnight
        self.rack = Rack(folder, gpus, day.model)
        self.servers = Servers()
        self._ledger = PowerStays(folder / "ledger.sqlite")
        self._numbers = itertools.count(1)
        courses = {name: Course(title=name, shapes=day.profiles) for name in (COURSE, BRIEF)}
        settings = PoolSettings(pool=table, courses=courses, quotas=quotas)
        driver = cast(Driver, self.rack)  # all that the pool uses of one
        self.pool = Pool(settings, self._ledger, driver, self.servers, self._now)
        self.pool.reconcile()

    def _now(self) -> float:
        return MIDNIGHT + self.at

    def close(self) -> None:
        """Give everything back.

        Raises:
            Broken: an invariant does not hold.
        """
        broken = self.pool.check_invariants()
        self._ledger.close()
        self.rack.close()
        if broken:
            raise Broken("; ".join(broken))

    def work(self) -> None:
        """A turn, and everything that is due after it."""
        self.pool.turn()
        while (job := self.pool.next_job()) is not None:
            self.pool.perform(job)
            self.pool.turn()

    # -- waiting ------------------------------------------------------------------------------

    def ask(self, plan: Plan) -> int | None:
        """A ticket; None if there are as many as may wait."""
        course = BRIEF if plan.is_brief else COURSE
        try:
            asked = TicketRequest(user=plan.name, course=course, shape=plan.profile)
            return self.pool.tickets.request(asked).id
        except Refused:
            return None

    def attend(self, ticket: int) -> TicketState | None:
        """How the ticket stands, and keep it; None if it is over."""
        row = tickets.attend(self.pool.store, ticket)
        return TicketState(row.state) if row.is_live else None

    def cancel(self, ticket: int, user: str) -> None:
        """Give up the place."""
        self.pool.tickets.cancel(ticket, user)

    # -- servers ------------------------------------------------------------------------------

    def start(self, ticket: int) -> tuple[int, tuple[str, ...]]:
        """Take the offer and start a server: its lease, and the slices' UUIDs."""
        lease = self.pool.tickets.take(ticket)
        holder = f"container:{next(self._numbers):064x}"
        self.servers.there.add(holder)
        self.pool.leases.attach(lease.id, lease.generation, holder)
        return lease.id, self.pool.leases.running(lease.id).uuids

    def stop(self, lease: int, by: str, reason: str) -> None:
        """Stop the server; its slices are free once the pool has seen that it is gone."""
        row = self.pool.store.state.leases[lease]
        self.servers.there.discard(row.holder)
        if row.state is not LeaseState.RELEASING:
            self.pool.leases.release(lease, by, reason)

    def lease_state(self, lease: int) -> LeaseState:
        """How a live lease stands."""
        return LeaseState(self.pool.store.state.leases[lease].state)

    def keepalive(self, lease: int, user: str) -> bool:
        """Say "I am still here"; whether it counts."""
        try:
            self.pool.leases.keepalive(lease, user)
        except Refused:
            return False
        return True
