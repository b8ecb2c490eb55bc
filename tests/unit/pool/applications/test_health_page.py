"""The Health page: what is wrong and what to do, what GPUs said, and what is not known."""

import re
import threading

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.gpus import SliceState
from miglab_api.staff import AuditEntry
from miglab_pool.applications.health import (
    FINDINGS_LIVE_S,
    STALE_S,
    Doctor,
    foreign_or_quarantined,
    gpu_cards,
    leasable_gpu_findings,
    open_findings,
)
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.readings import GpuInfo, Health, Versions, Xid
from miglab_pool.http.access.auth import SignIn
from miglab_pool.state.store import Wellness
from miglab_pool.worker.health_findings import HealthFinding, fine, gpu_findings, wrong
from miglab_pool.worker.inspect_gpu import BY, Condition
from miglab_pool.worker.inspect_gpu import Finding as Disagreement

from .conftest import as_, foreign_slice, visiting
from .fakes import entry, gpu_view, slice_view, snapshot

NOW = 5000.0
WELL = Health(True, 0, (), 41, 62.5, False, "")


def info(index: int = 0) -> GpuInfo:
    return GpuInfo(f"GPU-{index}", index, "A100", 40960, 108, Geometry((), 8), True, True)


def condition(wellness: dict[str, Wellness], *history: AuditEntry) -> Condition:
    infos = {uuid: info(int(uuid[-1])) for uuid in wellness}
    return Condition(Versions(), infos, wellness, history)


def test_what_a_gpu_said_is_shown_with_its_age() -> None:
    """With a verdict; old is called old, and silence silence."""
    hot = Health(False, 2, (Xid(31), Xid(79)), 91, None, False, "Xid 79 …")
    wellness = {"GPU-0": Wellness(NOW - 10, hot), "GPU-1": Wellness(NOW - STALE_S - 1, WELL)}
    first, old, silent = gpu_cards(
        snapshot(gpu_view(), gpu_view(index=1), gpu_view(index=2, state="lost")),
        condition(wellness),
        NOW,
    )
    assert (first.last_health, first.age_s, first.is_stale) == (hot, 10.0, False)
    assert old.is_stale
    assert [card.verdict for card in (first, old, silent)] == ["needs attention", "answers", "lost"]
    assert silent.last_health is None and silent.is_stale


@pytest.mark.parametrize(
    ("heat", "count"), [(86, 1), (85, 0), (None, 0)], ids=["above", "at", "not known"]
)
def test_heat_above_the_bound_is_a_finding(heat: int | None, count: int) -> None:
    """At it, and where it is not known, nothing is to be done."""
    health = Health(True, 0, (), heat, 60.0, False, "")
    assert (
        sum(finding.is_wrong for finding in gpu_findings(info(), health, is_whole=False)) == count
    )


def test_doctor_speaks_of_gpus_that_answer() -> None:
    """Of one that does not, the pool says why: it is not told twice."""
    bad = Health(False, 2, (), 40, 60.0, False, "2 uncorrected memory errors")
    wellness = {"GPU-0": Wellness(NOW, bad), "GPU-1": Wellness(NOW, bad)}
    findings = leasable_gpu_findings(
        snapshot(gpu_view(), gpu_view(index=1, state="lost")), condition(wellness)
    )
    assert [finding.subject for finding in findings if finding.is_wrong] == ["GPU 0"]


def test_strangers_and_orphans() -> None:
    """Foreign slices and those set aside; servers of nobody; what was mended is no finding."""
    odd = slice_view(7, 4, state=SliceState.FOREIGN, reason="made by hand")
    now = snapshot(gpu_view(slice_view(1, 0, "ada"), odd))
    assert [slice_.slice_id for _, slice_ in foreign_or_quarantined(now)] == [7]
    disagreements = [
        Disagreement("holder", "container:1", "its label names lease 9"),
        Disagreement("holder", "container:2", "it is gone", "its lease is released"),
        Disagreement("slice", "7", "foreign"),
    ]
    assert open_findings(disagreements) == disagreements[:1]


# The examination.


class ExaminedHost:
    """A doctor of it, a clock, and how often it was looked at."""

    def __init__(self, **limits_s: float) -> None:
        self.at, self.looks, self.let_go = 100.0, 0, threading.Event()
        self.doctor = Doctor(self.look, lambda: self.at, **limits_s)

    def look(self) -> list[HealthFinding]:
        self.looks += 1
        self.let_go.wait(60)
        return [fine("disk", f"look {self.looks}")]


async def test_an_examination_is_kept_for_a_minute() -> None:
    """Whoever asks again at once gets the same; a minute later it is looked anew."""
    host = ExaminedHost()
    host.let_go.set()
    assert (await host.doctor.examine()).findings[0].observation == "look 1"
    host.at += FINDINGS_LIVE_S
    again = await host.doctor.examine()
    assert (again.findings[0].observation, again.age_s) == ("look 1", FINDINGS_LIVE_S)
    host.at += 1
    assert (await host.doctor.examine()).findings[0].observation == "look 2"


async def test_one_that_hangs_holds_up_nobody() -> None:
    """The page comes, says how long it has hung, and begins no second one."""
    host = ExaminedHost(patience_s=0.0)
    assert (await host.doctor.examine()).running_s == 0.0
    host.at += 30
    late = await host.doctor.examine()
    assert (late.running_s, late.age_s, late.findings, host.looks) == (30.0, None, (), 1)
    host.let_go.set()
    host.doctor._patience_s = 10.0
    assert (await host.doctor.examine()).findings[0].observation == "look 1"


async def test_one_that_fails_is_a_finding(caplog: pytest.LogCaptureFixture) -> None:
    """What went wrong is said, and in the log."""

    def look() -> list[HealthFinding]:
        raise OSError("no such disk")

    findings = (await Doctor(look).examine()).findings
    assert findings[0].is_wrong and "no such disk" in findings[0].observation
    assert "an examination failed" in caplog.text


# The page.


@pytest.fixture
def sick(world: World, gpu: str, runner: PoolRunner, monkeypatch: pytest.MonkeyPatch) -> int:
    """A GPU with a fault, an orphan, a contradiction, and a foreign slice: its number."""
    foreign = foreign_slice(world)
    faults = Health(False, 2, (Xid(31), Xid(79)), 91, 250.4, False, "Xid 79: drain it.")
    world.pool.store.wellness[gpu] = Wellness(world.at, faults)
    monkeypatch.setattr(world.pool, "check_invariants", lambda: ["lease 3 has no slice"])
    runner.findings = (Disagreement("holder", "container:" + "7" * 64, "its label names lease 9"),)
    world.pool.staff.drain(gpu, "The fan is loud.", "person:ina")
    return foreign


async def test_the_page_says_what_is_wrong_and_what_to_do(
    client: httpx.AsyncClient, sick: int
) -> None:
    """First what needs somebody, then what each GPU said, its history, and what is foreign.

    A part that is replaced can give the keyboard's place back only to what has an id.
    """
    page = (await client.get("/health", headers=as_("staff-token"))).text
    assert "5 problems" in page
    for text in (
        "Xid 79: drain it.", "91 °C", "250 W", "lease 3 has no slice", f"miglab pool adopt {sick}",
        "docker rm -f 777777777777<", "needs attention",
        "The fan is loud.", "(a program&#39;s)", 'alarm">hot<', 'xid alarm">79<', 'xid">31<',
        'aria-current="page">Health',
    ):  # fmt: skip
        assert text.replace("&#39;", "'") in page.replace("&#39;", "'"), text
    inside = page.split('class="part"', 1)[1].split("</main>")[0]
    focusable_tags = re.findall(
        r"<(?:a|summary|button|details)\b[^>]*>|<\w+[^>]* tabindex=[^>]*>", inside
    )
    assert len(focusable_tags) > 4
    assert [tag for tag in focusable_tags if ' id="' not in tag] == []


async def test_the_history_is_told_with_names(
    client: httpx.AsyncClient, world: World, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs by their number as long as they are there; being listed is no event."""
    happened = [
        entry(1, at=1.0, target=target, to_state=state, by=principal, reason=reason)
        for target, state, principal, reason in (
            (gpu, "ok", BY, "Xid 79"),
            ("GPU-9", "lost", "pool", ""),
            (gpu, "ok", "person:ina", "drained: fans"),
            (gpu, "ok", "spawner", "a layout"),
            (gpu, "ok", "pool", ""),
            (gpu, "unknown", "pool", "listed"),
        )
    ]
    monkeypatch.setattr(world.pool, "condition", lambda: condition({}, *happened))
    page = (await client.get("/health", headers=as_("admin-token"))).text
    history_rows = re.findall(
        r"<tr( class=.fault.)?>.*?<td>(.*)</td><td>(.*)</td><td>(.*)</td></tr>", page
    )
    assert [
        (actor, target, event, bool(fault)) for fault, target, event, actor in history_rows
    ] == [
        ("", "GPU 0", "Xid 79", True),
        ("the pool", "GPU-9", "lost", False),
        ("ina", "GPU 0", "drained: fans", False),
        ("the operator of this host", "GPU 0", "a layout", False),
        ("the pool", "GPU 0", "answers", False),
    ]


async def test_the_host_is_examined_for_the_page(runner: PoolRunner, sign_in: SignIn) -> None:
    """What is wrong with disk or Docker is on the page, with what to do."""
    wrongs = [wrong("disk", "it is full", "make room")]
    app = management_app(runner, sign_in, default_course="x", look=lambda: wrongs)
    async with visiting(app, **as_("admin-token")) as client:
        page = (await client.get("/health")).text
    assert "it is full" in page and "make room" in page


async def test_all_is_well(client: httpx.AsyncClient) -> None:
    """Nothing to do is said so."""
    page = (await client.get("/health", headers=as_("admin-token"))).text
    assert "No problems found" in page
    assert "every server to a lease" in page
