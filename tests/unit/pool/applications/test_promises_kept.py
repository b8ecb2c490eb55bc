"""At its start what is feasible of a reservation is made or held, whatever came before."""

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import Keep
from tests.unit.pool.reclaim.test_round import LIMITS, STEP_S, ReclaimWorld

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState
from miglab_pool.refused import Refused
from miglab_pool.reservations.feasible import feasible

from .test_promises import NINE, RULES, PromisedLab

LEAD_S, WARNING_S = 420.0, 120.0
BEFORE_S = 2100.0
SETTINGS = changed(
    RULES, lease_s=900.0, reserve_lead_s=LEAD_S, warning_s=WARNING_S, extensions=2,
    extension_s=600.0, idle_s=1e6, idle_wanted_s=1e6, offer_s=60.0, attend_grace_s=1e6,
)  # fmt: skip


class MorningLab(PromisedLab):
    """One A100 before nine; servers end when they are told to, but the stubborn ones."""

    world: ReclaimWorld

    def __init__(self, folder: Path) -> None:
        limits = LIMITS.model_copy(update={"idle_s": 1e6, "idle_wanted_s": 1e6})
        world = ReclaimWorld(folder, SETTINGS, limits=limits)
        world.at = NINE - BEFORE_S
        world.pool.reconcile()
        super().__init__(world)
        self.stubborn: set[str] = set()

    def start_offered(self) -> None:
        """Everybody takes what is offered, and computes on it."""
        for ticket in list(self.world.ledger.state.tickets.values()):
            if self.world.pool.tickets.find(ticket.id).state == "offered":
                lease = self.attach(ticket.id)
                self.world.pool.leases.running(lease.id)
                self.world.busy.add(lease.id)

    def live_until(self, at: float, act: Callable[[], None] = lambda: None) -> None:
        """Step by step; servers that are stopped are gone a moment later."""
        while self.world.at < at:
            act()
            self.world.live(STEP_S)
            for lease in self.world.pool.leases.live():
                if lease.state is LeaseState.RELEASING and lease.user not in self.stubborn:
                    self.world.holders.present.discard(lease.holder)
            self.world.attend_all()
            self.world.work()
            self.start_offered()

    def made_or_held(self, number: int) -> int:
        """How many of its slices a reservation has: drawn, or free on its slots."""
        snapshot = self.world.pool.snapshot()
        free = {(gpu.uuid, slice_view.start) for gpu in snapshot.gpus for slice_view in gpu.slices
                if slice_view.state is SliceState.FREE}  # fmt: skip
        slots = [slot for slot in snapshot.reserved_slots if slot.reservation == number]
        free_slots = sum((slot.gpu, slot.start) in free for slot in slots)
        return int(self.all()[number]["in_use"]) + free_slots


@pytest.fixture
def lab(tmp_path: Path, keep: Keep[ReclaimWorld]) -> MorningLab:
    lab = MorningLab(tmp_path)
    keep(lab.world)
    return lab


class Morning:
    """What people do by chance until nine."""

    def __init__(self, lab: MorningLab, seed: int) -> None:
        self.lab, self.dice = lab, random.Random(seed)
        self.comers = 0

    def __call__(self) -> None:
        self.dice.choice((self.comes, self.comes, self.goes, self.extends, lambda: None))()

    def comes(self) -> None:
        self.comers += 1
        shape = self.dice.choice(("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "2x1g.5gb"))
        course = self.dice.choice(("everyone", "everyone", "deep"))
        if len(self.lab.world.pool.view.queued) < 5:
            self.lab.world.ask(f"s{self.comers}", shape, course=course)

    def goes(self) -> None:
        if leases := self.running():
            self.lab.world.end(self.dice.choice(leases))

    def extends(self) -> None:
        if leases := self.running():
            lease = self.dice.choice(leases)
            with contextlib.suppress(Refused):
                self.lab.world.pool.leases.extend(lease.id, 600.0, lease.user)

    def running(self) -> Sequence[Any]:
        leases = self.lab.world.pool.leases.live()
        return [lease for lease in leases if lease.state is LeaseState.RUNNING]


@pytest.mark.parametrize("seed", range(4))
def test_made_or_held_at_the_start(lab: MorningLab, seed: int) -> None:
    """Whoever comes, goes and extends: it is all there when the class begins."""
    morning = Morning(lab, seed)
    shape, count = random.Random(seed).choice(
        (("1g.5gb", 7), ("1g.5gb", 4), ("2g.10gb", 3), ("3g.20gb", 2), ("7g.40gb", 1))
    )
    reservation = lab.reserve(count, shape, NINE)
    assert reservation["certain"] == count
    lab.live_until(NINE, morning)
    view = lab.world.pool.view
    assert feasible(view, NINE).counts[reservation["id"]] == count
    assert lab.made_or_held(reservation["id"]) == count
    assert lab.all()[reservation["id"]]["outlook"] == ""


def seven_open(lab: MorningLab) -> int:
    """A full lab whose guarantees are over before the lead, and all of it reserved."""
    reservation = lab.reserve(7, "1g.5gb", NINE)
    for number in range(7):
        lab.world.ask(f"s{number}")
    lab.live_until(NINE - LEAD_S - 60)
    assert len(lab.world.pool.leases.live()) == 7
    return int(reservation["id"])


def test_a_pool_that_stood_still_within_the_lead(lab: MorningLab) -> None:
    """Nobody's warning is shortened: the class is late, its page says so, then all is there."""
    number = seven_open(lab)
    lab.world.at = NINE - 60
    lab.world.crash()
    lab.live_until(NINE)
    assert lab.made_or_held(number) == 0
    outlook = lab.all()[number]["outlook"]
    assert outlook == "0 of 7 now: the rest waits for servers to end."
    lab.live_until(NINE + WARNING_S)
    assert lab.made_or_held(number) == 7
    warned = [row for row in lab.world.ledger.history("lease") if row["to_state"] == "warned"]
    assert len(warned) == 7


def test_a_holder_that_will_not_go(lab: MorningLab) -> None:
    """It keeps its slice; the others are there, and the page says why one is not."""
    number = seven_open(lab)
    lab.stubborn.add("s3")
    lab.world.settings.tuning.__dict__["remove_after_s"] = 1e6
    lab.live_until(NINE)
    assert lab.made_or_held(number) == 6
    assert lab.all()[number]["outlook"] == "6 of 7 now: the rest waits for servers to end."
    lab.stubborn.clear()
    lab.live_until(NINE + 60)
    assert lab.made_or_held(number) == 7
