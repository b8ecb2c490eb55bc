"""Open leases end for who needs their slices: over HTTP, with every clock the test's."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import Keep
from tests.unit.pool.reclaim.test_round import LIMITS, POOL, ReclaimWorld

from miglab_api.tickets import borrower_of
from miglab_pool.settings import Gpus, Quota

from .fakes import SECRET
from .full_lab import apps
from .test_promises import PromisedLab, request

GUARANTEED_S, WARNING_S = 600.0, 120.0
OPEN_S = GUARANTEED_S + 30
RULES = changed(
    POOL, lease_s=GUARANTEED_S, extensions=1, extension_s=300.0, longest_wait_s=1e6,
    idle_s=1e6, idle_wanted_s=1e6, still_here_s=300.0, reserve_lead_s=300.0,
)  # fmt: skip
SEVEN = {f"s{n}": "1g.5gb" for n in range(7)}


class OpenLab(PromisedLab):
    """Leases whose guarantee is over, and the management listener."""

    world: ReclaimWorld

    def __init__(self, folder: Path, settings: Any = RULES) -> None:
        limits = LIMITS.model_copy(
            update={"idle_s": 1e6, "idle_wanted_s": 1e6, "enabled": settings.reclaim.enabled}
        )
        super().__init__(ReclaimWorld(folder, settings, limits=limits))
        self.leases: dict[str, int] = {}

    def again(self) -> None:
        """The listener over the pool that was started anew."""
        self.app = apps(self.world.pool)[0]

    def fill_with(self, shapes: dict[str, str], idle: tuple[str, ...] = ()) -> None:
        """Leases a quarter of a minute apart; all but those that are idle are busy."""
        for user, shape in shapes.items():
            lease = self.world.run(user, shape)
            self.leases[user] = lease.id
            if user not in idle:
                self.world.busy.add(lease.id)
            self.world.live(15)

    def ask(self, shape: str, user: str = "zoe", course: str = "everyone", **fields: Any) -> Any:
        body = {"user": user, "server": "", "course": course, "shape": shape, **fields}
        status, answer = self.call("POST", "/tickets", body, SECRET)
        assert status < 300, answer
        return answer

    def of(self, user: str) -> Any:
        return self.call("GET", f"/leases/{self.leases[user]}")[1]

    def warned(self) -> dict[str, str]:
        """Who is warned, and why."""
        answer = self.call("GET", "/leases")[1]
        return {lease["user"]: lease["warning"]["reason"] for lease in answer if lease["warning"]}


MakeLab = Callable[..., OpenLab]


@pytest.fixture
def make_lab(tmp_path: Path, keep: Keep[ReclaimWorld]) -> MakeLab:
    def make(settings: Any = RULES) -> OpenLab:
        lab = OpenLab(tmp_path, settings)
        keep(lab.world)
        return lab

    return make


@dataclass(frozen=True)
class Row:
    """Who holds what, what is asked for, and who is warned once the guarantees are over."""

    shape: str
    warned: set[str]
    shape_of_holder: dict[str, str] = field(default_factory=lambda: SEVEN)
    idle: tuple[str, ...] = ()
    rules: dict[str, Any] = field(default_factory=dict)
    asking: dict[str, Any] = field(default_factory=dict)
    after_s: float = OPEN_S
    mig: bool = True


ROWS = {
    "one big ticket ends many small leases": Row("7g.40gb", set(SEVEN)),
    "as few as make room": Row("3g.20gb", {"s0", "s1", "s2"}),
    "the one that is idle longest": Row("1g.5gb", {"s4"}, idle=("s4", "s6")),
    "else the one that is open longest": Row("1g.5gb", {"s0"}),
    "of two slices one lease rather than two": Row(
        "2x1g.5gb", {"pair"}, {"pair": "2x1g.5gb", "a": "3g.20gb", "b": "1g.5gb"},
        idle=("b",),
    ),
    "a single lease rather than the idle ones": Row(
        "3g.20gb", {"half"}, {"half": "3g.20gb", "a": "1g.5gb", "b": "1g.5gb", "c": "1g.5gb"},
        idle=("a", "b", "c"),
    ),
    "a guarantee is never shortened": Row("7g.40gb", set(), after_s=GUARANTEED_S - 60),
    "without a guarantee at once": Row(
        "1g.5gb", {"s4"}, idle=("s4",), rules={"lease_s": 0.0}, after_s=15
    ),
    "a measurement counts": Row(
        "1g.5gb", {"s0"}, asking={"server": borrower_of(""), "purpose": "borrow"}
    ),
    "a quota holds the ticket": Row(
        "1g.5gb", set(), rules={"quotas": {"all": Quota(memory_slices=7, shared=True)}}
    ),
    "a whole GPU": Row("full", {"a"}, {"a": "full"}, mig=False),
    "nothing is ended": Row("1g.5gb", set(), rules={"enabled": False}),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_who_is_warned(make_lab: MakeLab, row: Row) -> None:
    """The fewest open leases whose end makes room, and why, when, and what is lost."""
    whole_gpus = () if row.mig else (0,)
    lab = make_lab(changed(RULES, gpus=Gpus(whole=whole_gpus), **row.rules))
    if not row.mig:
        lab.world.machine.set_mig(False, lab.world.driver.uuids[0])
        lab.world.crash()
        lab.world.pool.sample()
        lab.again()
    lab.fill_with(row.shape_of_holder, row.idle)
    lab.world.live(row.after_s)
    lab.ask(row.shape, **row.asking)
    lab.world.live(30)
    warned = lab.warned()
    assert set(warned) == row.warned
    for user, reason in warned.items():
        assert f"needs room for {row.shape}" in reason and "still runs are lost" in reason
        assert "are saved" in reason and "goes on without a GPU" in reason
        assert lab.of(user)["warning"]["kind"] == "needed"


def all_open(make_lab: MakeLab) -> OpenLab:
    """Seven open leases on the one GPU."""
    lab = make_lab()
    lab.fill_with(SEVEN)
    lab.world.live(OPEN_S)
    return lab


def test_the_warning_is_whole_and_nobody_else_is_warned(make_lab: MakeLab) -> None:
    """One at a time: taken back when the warning is over, never before, then the next."""
    lab = all_open(make_lab)
    first, second = lab.ask("1g.5gb", "yan"), lab.ask("1g.5gb", "zoe")
    lab.world.live(15)
    warning = lab.of("s0")["warning"]
    assert warning["reclaim_at"] - warning["at"] == WARNING_S
    lab.world.live(warning["reclaim_at"] - lab.world.at - 15)
    assert (lab.of("s0")["state"], set(lab.warned())) == ("warned", {"s0"})
    lab.world.live(30)
    assert (lab.of("s0")["state"], lab.warned()) == ("releasing", {})
    assert lab.world.reclaims == ["needed"] and lab.of("s0")["goes_on"]
    lab.world.holders.present.clear()  # only the one that is released is asked after
    lab.world.work()
    assert lab.call("GET", f"/tickets/{first['id']}")[1]["state"] == "offered"
    lab.world.live(30)
    assert set(lab.warned()) == {"s1"}
    assert lab.call("GET", f"/tickets/{second['id']}")[1]["state"] == "waiting"


def test_where_nothing_is_granted_nobody_is_warned(make_lab: MakeLab) -> None:
    """A server that outlives its slice keeps its GPU from new leases: no end there helps."""
    lab = all_open(make_lab)
    (lost,) = lab.world.ledger.state.slices_of(lab.world.ledger.state.leases[lab.leases["s3"]])
    lab.world.driver.destroy(lost.gpu, lost.gi_id)
    lab.world.pool.reconcile()
    lab.ask("7g.40gb")
    lab.world.live(15)
    assert (lab.of("s3")["state"], lab.warned()) == ("releasing", {})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/tickets/{ticket}", None),
        ("POST", "/leases/{lease}/release", {"reason": "done"}),
        ("POST", "/pool/pause", {"reason": "Repairs."}),
    ],
    ids=["it is cancelled", "somebody goes", "the pool pauses"],
)
def test_a_need_that_goes(make_lab: MakeLab, method: str, path: str, body: Any) -> None:
    """Whoever was warned keeps the lease once nobody needs it."""
    lab = all_open(make_lab)
    ticket = lab.ask("1g.5gb")
    lab.world.live(15)
    assert set(lab.warned()) == {"s0"}
    lab.call(method, path.format(ticket=ticket["id"], lease=lab.leases["s5"]), body)
    lab.world.live(15)
    assert (lab.warned(), lab.of("s0")["state"]) == ({}, "running")


def test_a_restart_within_the_warning(make_lab: MakeLab) -> None:
    """Nobody could answer while the pool was down: the warning is given whole again."""
    lab = all_open(make_lab)
    lab.ask("1g.5gb")
    lab.world.live(15)
    lab.world.crash()
    lab.world.pass_time(3600)
    lab.world.ticks += 3600
    lab.again()
    lab.world.live(WARNING_S - 15)
    assert set(lab.warned()) == {"s0"}
    lab.world.live(45)
    assert lab.of("s0")["state"] == "releasing"


def test_an_extension_guarantees_again(make_lab: MakeLab) -> None:
    """An open lease is guaranteed from now on; one that is needed already is not extended."""
    lab = all_open(make_lab)
    status, longer = lab.call("POST", f"/leases/{lab.leases['s0']}/extend", {"by_s": 300})
    assert (status, longer["guaranteed_until"]) == (200, lab.world.at + 300)
    lab.ask("1g.5gb")
    lab.world.live(15)
    assert set(lab.warned()) == {"s1"}
    assert lab.of("s0")["warning"] is None
    with pytest.raises(Exception, match="does not change this end"):
        lab.world.pool.leases.extend(lab.leases["s1"], 300, "s1")


def test_a_reservation_at_its_lead(make_lab: MakeLab) -> None:
    """The open leases on its slots are warned, and told for whom and from when on."""
    lab = make_lab()
    lab.world.at = 1_000_000.0 + 1400  # 14:10 UTC
    lab.fill_with(SEVEN)
    body = request(3, "1g.5gb", 1_000_800.0 + 3600) | {"course": "vision"}  # 15:00 UTC
    assert lab.call("POST", "/reservations", body)[0] == 201
    lab.world.live(1_004_400.0 - 300 - lab.world.at - 30)
    assert lab.warned() == {}
    lab.world.live(60)
    assert len(lab.warned()) == 3
    assert all(
        reason.startswith("It is reserved for Computer vision from 15:00 UTC on.")
        for reason in lab.warned().values()
    )
