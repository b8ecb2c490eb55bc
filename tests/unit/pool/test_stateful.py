"""Hypothesis looks for an order of events that breaks an invariant; any may be the last."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from miglab_api.leases import WarningKind

from .class_room import ASKED, FAULTS, LAYOUTS, USERS, ClassRoom
from .conftest import LENT

user = st.sampled_from(USERS)
dying = st.one_of(st.none(), st.integers(0, 14))
WAYS = ("stay", "late", "sooner", "reclaim", "work")  # in which a warning ends or moves

# What anybody does, with what is chosen for it; the pool may die in it.
DEADLY: dict[str, tuple[Callable[..., object], dict[str, st.SearchStrategy[Any]]]] = {
    "asks": (
        ClassRoom.someone_asks,
        {"user": user, "shape": st.sampled_from(ASKED), "only_if_free": st.booleans()},
    ),
    "starts": (ClassRoom.someone_starts, {"user": user, "shape": st.sampled_from(ASKED)}),
    "borrows": (ClassRoom.someone_borrows, {"user": user, "shape": st.sampled_from(LENT)}),
    "works": (ClassRoom.some_work, {"jobs": st.integers(1, 10)}),
    "spawns": (ClassRoom.spawn, {"user": user, "is_started": st.booleans()}),
    "attaches_late": (ClassRoom.late_attach, {}),
    "ends": (ClassRoom.server_ends, {"user": user, "is_said": st.booleans()}),
    "releases_early": (ClassRoom.release_early, {"user": user}),
    "is_warned": (ClassRoom.warn, {"user": user, "kind": st.sampled_from(WarningKind)}),
    "ends_warning": (ClassRoom.warning_ends, {"user": user, "ending": st.sampled_from(WAYS)}),
    "cancels": (ClassRoom.cancel_all, {"user": user}),
    "reserves": (
        ClassRoom.reserve,
        {
            "course": st.sampled_from(("everyone", "vision")),
            "shape": st.sampled_from(("1g.5gb", "1g.5gb", "3g.20gb")),
            "count": st.integers(1, 9),
            "in_minutes": st.integers(0, 20),
        },
    ),
    "unreserves": (ClassRoom.unreserve_all, {}),
    "lays": (
        ClassRoom.apply_layout,
        {"partition": st.sampled_from(LAYOUTS), "number": st.integers(0, 5)},
    ),
    "unlays": (ClassRoom.remove_all_layouts, {}),
    "is_drained": (ClassRoom.drain, {"number": st.integers(0, 20), "is_gpu": st.booleans()}),
    "is_quarantined": (ClassRoom.quarantine, {"number": st.integers(0, 20)}),
    "is_asked_back": (
        ClassRoom.staff_reclaim,
        {"user": user, "warning_s": st.sampled_from((0.0, 60.0))},
    ),
    "is_helped": (ClassRoom.staff_help, {"user": user}),
    "reconciles": (lambda room: room.pool.reconcile(), {}),
    "reboots": (ClassRoom.reboot, {}),
}
# What happens to clock and machines, in which it does not.
HARMLESS: dict[str, tuple[Callable[..., object], dict[str, st.SearchStrategy[Any]]]] = {
    "time_passes": (
        ClassRoom.pass_time,
        {"seconds": st.sampled_from((0.5, 61.0, 130.0, 4000.0))},
    ),
    "driver_reloads": (ClassRoom.driver_reload, {}),
    "admin_partitions": (ClassRoom.admin_partitions, {"start": st.integers(0, 13)}),
    "breaks": (ClassRoom.fault, {"number": st.integers(0, len(FAULTS) - 1)}),
    "engine_answers": (
        lambda room, is_silent: setattr(room.holders, "is_silent", is_silent),
        {"is_silent": st.booleans()},
    ),
    "heals": (ClassRoom.heal, {}),
}


class PoolMachine(RuleBasedStateMachine):
    """Every action of the class room is a rule; each may be the pool's last."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))
        self.room: ClassRoom | None = None

    @initialize(gpus=st.integers(1, 2))
    def begin(self, gpus: int) -> None:
        self.room = ClassRoom(self.folder, gpus)

    @invariant()
    def holds(self) -> None:
        if self.room is not None:
            self.room.verify()

    def teardown(self) -> None:
        if self.room is not None:
            self.room.finish()
            self.room.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def as_rule(name: str, action: Callable[..., object]) -> Callable[..., None]:
    def step(self: PoolMachine, die_at: int | None = None, **arguments: Any) -> None:
        room = self.room
        assert room is not None
        room.step(lambda: action(room, **arguments), die_at)

    step.__name__ = name
    return step


for name, (action, strategies) in DEADLY.items():
    setattr(PoolMachine, name, rule(**strategies, die_at=dying)(as_rule(name, action)))
for name, (action, strategies) in HARMLESS.items():
    setattr(PoolMachine, name, rule(**strategies)(as_rule(name, action)))

TestPool = PoolMachine.TestCase
TestPool.settings = settings(
    max_examples=settings.default.max_examples // 2,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a failing order is short enough to read
    derandomize=True,
)
