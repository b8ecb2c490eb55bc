"""Hypothesis looks for an order of events that breaks an invariant; any may be the last."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from miglab_api.leases import WarningKind

from .class_room import ASKED, FAULTS, LAYOUTS, USERS, ClassRoom
from .conftest import LENT

users = st.sampled_from(USERS)
dying = st.one_of(st.none(), st.integers(0, 14))


WAYS = ("stay", "late", "sooner", "reclaim", "work")  # in which a warning ends or moves


class PoolMachine(RuleBasedStateMachine):
    """Every action of the class room is a rule; each may be the pool's last."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))
        self.room: ClassRoom | None = None

    @initialize(gpus=st.integers(1, 2))
    def begin(self, gpus: int) -> None:
        self.room = ClassRoom(self.folder, gpus)

    def do(self, action: Callable[[ClassRoom], object], die_at: int | None = None) -> None:
        room = self.room
        assert room is not None
        room.step(lambda: action(room), die_at)

    @rule(user=users, shape=st.sampled_from(ASKED), only_if_free=st.booleans(), die_at=dying)
    def asks(self, user: str, shape: str, only_if_free: bool, die_at: int | None) -> None:
        self.do(lambda room: room.someone_asks(user, shape, only_if_free), die_at)

    @rule(user=users, shape=st.sampled_from(LENT), die_at=dying)
    def borrows(self, user: str, shape: str, die_at: int | None) -> None:
        self.do(lambda room: room.someone_borrows(user, shape), die_at)

    @rule(acts=st.integers(1, 10), die_at=dying)
    def works(self, acts: int, die_at: int | None) -> None:
        self.do(lambda room: room.some_work(acts), die_at)

    @rule(user=users, is_started=st.booleans(), die_at=dying)
    def spawns(self, user: str, is_started: bool, die_at: int | None) -> None:
        self.do(lambda room: room.spawn(user, is_started), die_at)

    @rule(die_at=dying)
    def attaches_late(self, die_at: int | None) -> None:
        self.do(lambda room: room.late_attach(), die_at)

    @rule(user=users, is_said=st.booleans(), die_at=dying)
    def ends(self, user: str, is_said: bool, die_at: int | None) -> None:
        self.do(lambda room: room.server_ends(user, is_said), die_at)

    @rule(user=users, die_at=dying)
    def releases_early(self, user: str, die_at: int | None) -> None:
        self.do(lambda room: room.release_early(user), die_at)

    @rule(user=users, kind=st.sampled_from(WarningKind), die_at=dying)
    def is_warned(self, user: str, kind: WarningKind, die_at: int | None) -> None:
        self.do(lambda room: room.warn(user, kind), die_at)

    @rule(user=users, how=st.sampled_from(WAYS), die_at=dying)
    def ends_warning(self, user: str, how: str, die_at: int | None) -> None:
        self.do(lambda room: room.warning_ends(user, how), die_at)

    @rule(user=users, die_at=dying)
    def cancels(self, user: str, die_at: int | None) -> None:
        self.do(lambda room: room.cancel_all(user), die_at)

    @rule(
        course=st.sampled_from(("everyone", "vision")),
        shape=st.sampled_from(("1g.5gb", "1g.5gb", "3g.20gb")),
        count=st.integers(1, 9),
        in_minutes=st.integers(0, 20),
        die_at=dying,
    )
    def reserves(
        self, course: str, shape: str, count: int, in_minutes: int, die_at: int | None
    ) -> None:
        self.do(lambda room: room.reserve(course, shape, count, in_minutes), die_at)

    @rule(die_at=dying)
    def unreserves(self, die_at: int | None) -> None:
        self.do(lambda room: room.unreserve_all(), die_at)

    @rule(partition=st.sampled_from(LAYOUTS), number=st.integers(0, 5), die_at=dying)
    def lays(self, partition: str, number: int, die_at: int | None) -> None:
        self.do(lambda room: room.lay(partition, number), die_at)

    @rule(die_at=dying)
    def unlays(self, die_at: int | None) -> None:
        self.do(lambda room: room.unlay_all(), die_at)

    @rule(number=st.integers(0, 20), is_gpu=st.booleans(), die_at=dying)
    def is_drained(self, number: int, is_gpu: bool, die_at: int | None) -> None:
        self.do(lambda room: room.drain(number, is_gpu), die_at)

    @rule(number=st.integers(0, 20), die_at=dying)
    def is_quarantined(self, number: int, die_at: int | None) -> None:
        self.do(lambda room: room.quarantine(number), die_at)

    @rule(user=users, warning_s=st.sampled_from((0.0, 60.0)), die_at=dying)
    def is_asked_back(self, user: str, warning_s: float, die_at: int | None) -> None:
        self.do(lambda room: room.staff_reclaim(user, warning_s), die_at)

    @rule(user=users, die_at=dying)
    def is_helped(self, user: str, die_at: int | None) -> None:
        self.do(lambda room: room.staff_help(user), die_at)

    @rule(seconds=st.sampled_from((0.5, 61.0, 130.0, 4000.0)))
    def time_passes(self, seconds: float) -> None:
        self.do(lambda room: room.pass_time(seconds))

    @rule(die_at=dying)
    def reconciles(self, die_at: int | None) -> None:
        self.do(lambda room: room.pool.reconcile(), die_at)

    @rule(die_at=dying)
    def reboots(self, die_at: int | None) -> None:
        self.do(lambda room: room.reboot(), die_at)

    @rule()
    def driver_reloads(self) -> None:
        self.do(lambda room: room.driver_reload())

    @rule(start=st.integers(0, 13))
    def admin_partitions(self, start: int) -> None:
        self.do(lambda room: room.admin_partitions(start))

    @rule(number=st.integers(0, len(FAULTS) - 1))
    def breaks(self, number: int) -> None:
        self.do(lambda room: room.fault(number))

    @rule(is_silent=st.booleans())
    def engine_answers(self, is_silent: bool) -> None:
        self.do(lambda room: setattr(room.holders, "is_silent", is_silent))

    @rule()
    def heals(self) -> None:
        self.do(lambda room: room.heal())

    @invariant()
    def holds(self) -> None:
        if self.room is not None:
            self.room.verify()

    def teardown(self) -> None:
        if self.room is not None:
            self.room.finish()
            self.room.close()
        shutil.rmtree(self.folder, ignore_errors=True)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=settings.default.max_examples // 2,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failing order is short enough to read
    derandomize=True,
)
