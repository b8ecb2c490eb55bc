"""A lab without servers: pool, simulated GPUs, and holders and a clock that the test moves."""

import copy
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml
import pytest
from tests.empty import empty_ledger
from tests.pool_settings import changed

from miglab_api.holders import Liveness
from miglab_api.leases import LeaseView, RequestedLease
from miglab_api.tickets import Purpose, TicketRequest, TicketView, borrower_of
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, Gpus, PoolSettings
from miglab_pool.settings import Pool as PoolTable
from miglab_pool.worker.holders import LabelledContainer

SHAPES = ("1g.5gb", "2x1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "full", "cpu")
LENT = ("1g.5gb", "2x1g.5gb", "3g.20gb")
SETTINGS = PoolSettings(
    courses={
        "everyone": Course(title="Everyone", shapes=SHAPES, lends=LENT),
        "vision": Course(title="Computer vision", shapes=("1g.5gb", "at least 9 GiB")),
    },
    pool=PoolTable(
        queue_limit=40,
        longest_wait_s=3600.0,
        attend_grace_s=120.0,
        offer_s=120.0,
        attach_s=120.0,
        extension_s=3600.0,
        extensions=3,
    ),
)


class Crash(BaseException):
    """The process dies here; nothing after it runs, and nothing may catch it."""


class Fuse:
    """Counts the points at which a process can die, and lets it die at one of them."""

    def __init__(self) -> None:
        self.points_left: int | None = None
        self.passed = 0

    def point(self) -> None:
        self.passed += 1
        if self.points_left is not None:
            self.points_left -= 1
            if self.points_left < 0:
                self.points_left = None
                raise Crash


class CrashingLedger(Ledger):
    """Dies before or after a commit.  Never syncs: a test's power is not cut."""

    fuse: Fuse

    def begin(self, *, durable: bool) -> None:
        super().begin(durable=False)

    def commit(self) -> None:
        self.fuse.point()
        super().commit()
        self.fuse.point()


WRITES = {
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
}


class CrashingNvml:
    """NVML whose caller dies before or after any of its writes."""

    simulated = True

    def __init__(self, nvml: Any, fuse: Fuse) -> None:
        self._nvml = nvml
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._nvml, name)
        if name not in WRITES:
            return function

        def dying(*arguments: Any) -> Any:
            self._fuse.point()
            answer = function(*arguments)
            self._fuse.point()
            return answer

        return dying


class FakeHolders:
    """Holders by hand: those in ``present`` exist, those in ``forgotten`` only run on."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.forgotten: set[str] = set()
        self.stopped: set[str] = set()
        self.labels: dict[str, LabelledContainer] = {}
        self.is_silent = False
        self.engine_id = self.expected = ""
        self.removed: list[str] = []
        self.before_remove: Callable[[], None] = lambda: None

    def probe(self, holder: str) -> Liveness:
        if self.is_silent:
            return Liveness.UNKNOWN
        if holder in self.forgotten:
            return Liveness.FORGOTTEN
        return Liveness.ALIVE if holder in self.present else Liveness.GONE

    def probably_gone(self, holders: Any) -> set[str]:
        return set() if self.is_silent else {h for h in holders if h not in self.present}

    def engine(self) -> str:
        return self.engine_id

    def expect(self, engine: str) -> None:
        self.expected = engine

    def labelled_containers(self) -> list[LabelledContainer] | None:
        if self.is_silent:
            return None
        return [stray for h, stray in self.labels.items() if h in self.present]

    def end_proof(self, run: str) -> bool:
        return not self.is_silent

    def end(self, holder: str) -> bool:
        return self.remove(holder, force=True)

    def remove(self, holder: str, *, force: bool) -> bool:
        self.before_remove()
        if self.is_silent or (holder in self.present and not force and holder not in self.stopped):
            return False
        self.removed.append(holder)
        self.present.discard(holder)
        self.forgotten.discard(holder)
        return True


def leased_whole(settings: PoolSettings, machine: dict[str, Any]) -> PoolSettings:
    """As lab.toml says it of a machine with MIG off."""
    models = ("A100-40GB",) * machine.get("gpus", 1)
    return changed(settings, gpus=Gpus(simulate=models, whole=tuple(range(len(models)))))


W = TypeVar("W", bound="World")


class World:
    """Everything that outlives a crash of the pool, and the pool that runs now."""

    def __init__(self, folder: Path, settings: PoolSettings = SETTINGS, **machine: Any) -> None:
        self.folder = folder
        self.settings = settings if machine.get("mig", True) else leased_whole(settings, machine)
        self.machine = SimulatedMachine.create(folder / "gpus", **machine)
        (folder / "ledger.sqlite").write_bytes(empty_ledger())
        self.holders = FakeHolders()
        self.fuse = Fuse()
        self.at = 1_000_000.0
        self._numbers = itertools.count(1)
        self.open()

    def open(self) -> None:
        """Start the pool service: from disk, and with reconcile first."""
        self.ledger = CrashingLedger(self.folder / "ledger.sqlite")
        self.ledger.fuse = self.fuse
        nvml = SimulatedNvml(self.folder / "gpus", sleep=lambda _s: None, now=lambda: self.at)
        self.driver = Driver(CrashingNvml(nvml, self.fuse))
        self.holders.before_remove = self.fuse.point
        self.pool = Pool(self.settings, self.ledger, self.driver, self.holders, lambda: self.at)
        self.pool.worker.boot_id = lambda: str(self.machine.state().boots)
        self.start_findings = self.pool.reconcile()

    def copied(self: W, folder: Path) -> W:
        """What a closed world left on disk and its holders, in another folder and open."""
        shutil.copytree(self.folder, folder)
        world = copy.copy(self)
        world.folder, world.machine = folder, SimulatedMachine(folder / "gpus")
        world.holders, world.fuse = copy.deepcopy(self.holders), Fuse()
        world.open()
        return world

    def crash(self) -> None:
        """Kill the pool and start it again."""
        self.ledger.close()
        self.open()

    def close(self) -> None:
        self.ledger.close()

    def pass_time(self, seconds: float) -> None:
        self.at += seconds

    def work(self, max_jobs: int = 1000) -> int:
        """Turn, and do what is due until nothing is."""
        self.pool.turn()
        for count in range(max_jobs):
            job = self.pool.next_job()
            if job is None:
                return count
            self.pool.perform(job)
            self.pool.turn()
        raise AssertionError("the work list never ends")

    def work_after(self, seconds: float) -> None:
        self.pass_time(seconds)
        self.work()

    def settle(self) -> None:
        """Let time pass until nothing is left to be done, whatever was retried."""
        for _ in range(12):
            self.work()
            self.pass_time(self.settings.tuning.retry_max_s)
            self.attend_all()
            self.pool.reconcile()
        self.work()

    def attend_all(self) -> None:
        for ticket in list(self.ledger.state.tickets):
            self.pool.tickets.attend(ticket)

    # -- what a spawner does ------------------------------------------------------------------

    def ask(
        self,
        user: str,
        shape: str = "1g.5gb",
        server: str = "",
        course: str = "everyone",
        only_if_free: bool = False,
        purpose: Purpose = Purpose.SERVER,
    ) -> TicketView:
        request = TicketRequest(
            user=user,
            server=server,
            course=course,
            shape=shape,
            only_if_free=only_if_free,
            purpose=purpose,
        )
        return self.pool.tickets.request(request)

    def ask_for_lease(self, user: str, shape: str = "1g.5gb") -> RequestedLease:
        """Ask, and take in the same step what is free."""
        request = TicketRequest(user=user, course="everyone", shape=shape)
        return self.pool.tickets.request_and_take(request)

    def wait(self, user: str, shape: str = "1g.5gb", **request_fields: Any) -> TicketView:
        """Ask, and do what is due: the ticket as it is then."""
        ticket = self.ask(user, shape, **request_fields)
        self.work()
        return self.pool.tickets.find(ticket.id)

    def grant(self, user: str, shape: str = "1g.5gb", **request_fields: Any) -> LeaseView:
        """Ask, wait and take."""
        ticket = self.wait(user, shape, **request_fields)
        return self.pool.tickets.take(ticket.id)

    def new_holder(self) -> str:
        """A container that was created and not started."""
        holder = f"container:{next(self._numbers):064x}"
        self.holders.present.add(holder)
        return holder

    def borrow(self, user: str, shape: str = "1g.5gb", **request_fields: Any) -> LeaseView:
        """As `run`, by the runner of the user's measurements."""
        request_fields = {"server": borrower_of(""), "purpose": Purpose.BORROW, **request_fields}
        return self.run(user, shape, **request_fields)

    def run(self, user: str, shape: str = "1g.5gb", **request_fields: Any) -> LeaseView:
        """Ask, wait, take, create, attach, start."""
        lease = self.grant(user, shape, **request_fields)
        holder = self.new_holder()
        self.label(holder, lease)
        self.pool.leases.attach(lease.id, lease.generation, holder)
        return self.pool.leases.running(lease.id)

    def label(self, holder: str, lease: LeaseView, *, is_running: bool = True) -> None:
        """What the spawner writes on a container."""
        self.holders.labels[holder] = LabelledContainer(
            holder, lease.id, lease.generation, lease.ledger, lease.uuids, is_running
        )

    def end(self, lease: LeaseView) -> None:
        """The server stops, and the pool hears of it."""
        self.holders.present.discard(lease.holder)
        self.pool.leases.release(lease.id, "hub", "stopped")
        self.pass_time(self.settings.tuning.probe_s)
        self.work()

    # -- what is on the GPUs ------------------------------------------------------------------

    def raw(self) -> list[tuple[str, str, int]]:
        """Every slice that NVML shows: GPU, profile, start."""
        return [
            (gpu.uuid, reading.profile.name, reading.placement.start)
            for gpu in self.driver.gpus()
            for reading in self.driver.slices(gpu.uuid)
        ]

    def fail(self, function: str, code: int = pynvml.NVML_ERROR_UNKNOWN, times: int = 1) -> None:
        self.machine.fail_next(function, code, times)

    def states(self) -> list[str]:
        """The states of all live slices."""
        return sorted(str(row.state) for row in self.ledger.state.slices.values())

    def check(self) -> None:
        assert self.pool.check_invariants() == []


Keep = Callable[[W], W]


@pytest.fixture
def keep() -> Iterator[Keep[Any]]:
    """Keeps a world until the test is over; then its invariants must hold."""
    worlds: list[World] = []

    def keep(world: W) -> W:
        worlds.append(world)
        return world

    yield keep
    for world in worlds:
        world.check()
        world.close()


@pytest.fixture
def make_world(tmp_path: Path, keep: Keep[World]) -> Callable[..., World]:
    def make(settings: PoolSettings = SETTINGS, **machine: Any) -> World:
        return keep(World(tmp_path, settings, **machine))

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """One A100-40GB with MIG on."""
    return make_world()
