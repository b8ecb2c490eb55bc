"""What the fault harness draws and says, without running a lab."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from miglab_api.tickets import TicketState
from miglab_bench.faults.engine import ObservedServer
from miglab_bench.faults.machine import OLDER, LabDatabases
from miglab_bench.faults.recorded_hub import STARTED, STARTING, AnsweredStart, HubLog
from miglab_bench.faults.run import KINDS
from miglab_bench.faults.series import BEFORE, DURING, KindResult, order_of, plan_of, summary
from miglab_bench.faults.students import STARTS_ANEW, FaultClass, breaches
from miglab_bench.harness.results import p95
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import load
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.ledger.tables import check_file
from miglab_pool.reclaim.policy import FILES_ARE_KEPT

WAITING = TicketRow(1, "ada", "", "vision", "1g.5gb", "1g.5gb", TicketState.WAITING, 1.0, 1.0)


def test_kinds_are_drawn_evenly_and_by_the_seed() -> None:
    """Each round has every kind once; the same seed draws the same."""
    kinds = order_of(7, tuple(KINDS), 3 * len(KINDS))
    assert all(kinds.count(kind) == 3 for kind in KINDS)
    assert kinds == order_of(7, tuple(KINDS), 3 * len(KINDS)) != order_of(8, tuple(KINDS), 33)
    assert len(order_of(7, tuple(KINDS), 5)) == 5


def test_a_plan_is_its_seeds_alone() -> None:
    """What is drawn for a fault depends on nothing that happened: a seed replays."""
    plan = plan_of(7, 3, "upgrade", 8)
    assert plan == plan_of(7, 3, "upgrade", 8)
    assert plan != plan_of(7, 4, "upgrade", 8)
    assert len({act.student for act in (*plan.before, *plan.during)}) == BEFORE + DURING


def test_the_summary_counts_and_says_what_did_not_hold() -> None:
    """Per kind the faults, the breaches and the recoveries; the breaches in words beside."""
    results = {
        "pool killed": KindResult(2, ["fault 1, pool killed: two on one slice"], [1.0, 3.0]),
        "upgrade": KindResult(),
    }
    totals = summary(results, recovery_p95_s=p95)
    assert (totals["faults"], totals["breaches"]) == (2, 1)
    assert totals["said"] == ["fault 1, pool killed: two on one slice"]
    rows = totals["rows"]
    assert isinstance(rows, list)
    assert rows[0]["recovery_p95_s"] == 2.9  # no longer than the longest
    assert rows[1] == {"kind": "upgrade", "faults": 0, "breaches": 0, "recovery_p95_s": 0}


HOLDER = f"container:{'a' * 64}"
MAKES = "[I JupyterHub recorded_hub:20] " + STARTING
STARTS = "[I JupyterHub recorded_hub:25] " + STARTED
READY = "[I JupyterHub base:1192] User zoe took 0.8 seconds to start"
FAILED = "[E JupyterHub user:1100] Unhandled error starting zoe's server: x"
SILENT = "[W JupyterHub user:1160] zoe's server never showed up at http://x/ "
STOPPED = "[W JupyterHub app:3125] zoe appears to have stopped while the Hub was down"


def log_with(file: Path, *lines: str) -> HubLog:
    """What a hub said whose log has these lines."""
    file.write_text("".join(f"{line}\n" for line in lines))
    log = HubLog(file)
    log.read()
    return log


@pytest.mark.parametrize(
    ("later_lines", "is_ready", "is_given_up"),
    [
        ((), False, False),
        ((READY,), True, False),
        ((READY.replace("0.8", "-3599.2"),), True, False),  # the clock was set back meanwhile
        ((FAILED,), False, True),
        ((SILENT,), False, True),
        ((STOPPED,), False, True),
        ((READY, FAILED), True, False),  # another start, that of its successor
        ((READY, STOPPED), True, False),  # the hub notices an end, it announces none
        ((READY, SILENT), True, True),  # a hub that came back gave it up
    ],
)
def test_the_hubs_log_says_which_servers_ran(
    tmp_path: Path, later_lines: tuple[str, ...], is_ready: bool, is_given_up: bool
) -> None:
    """Each start that was answered counts; only the hub's own words give one up."""
    start_lines = (MAKES % ("zoe", HOLDER), STARTS % ("zoe", HOLDER, 7))
    log = log_with(tmp_path / "hub.log", *start_lines, *later_lines)
    assert log.started == {HOLDER: AnsweredStart("zoe", 7)}
    assert (HOLDER in log.ready, HOLDER in log.given_up) == (is_ready, is_given_up)
    assert log.must_know(HOLDER) != is_given_up
    log.forget()
    assert not log.must_know(HOLDER)


def test_a_start_that_a_killed_hub_gives_up_is_the_newest(tmp_path: Path) -> None:
    """It came back before the engine had answered it; the server before that one is not meant."""
    newer = f"container:{'b' * 64}"
    lines = (MAKES % ("zoe", HOLDER), STARTS % ("zoe", HOLDER, 7), MAKES % ("zoe", newer), SILENT)
    log = log_with(tmp_path / "hub.log", *lines)
    assert (log.given_up, list(log.started)) == ({newer}, [HOLDER])


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    """What the hub is still writing is read with the next look."""
    file = tmp_path / "hub.log"
    log = log_with(file, "The hub starts.")
    line = STARTS % ("zoe", HOLDER, 7)
    for part in (line[:-20], line[-20:] + "\n"):
        assert not log.started
        with file.open("a") as appending:
            appending.write(part)
        log.read()
    assert list(log.started) == [HOLDER]


def lab_toml(folder: Path) -> Path:
    """The settings of a lab."""
    file = folder / "lab.toml"
    file.write_text('[courses.everyone]\nshapes = ["1g.5gb"]\n')
    return file


def test_an_aged_ledger_is_upgraded_with_all_that_it_held(tmp_path: Path) -> None:
    """It is what an older version wrote, whatever columns have come since."""
    settings = load(lab_toml(tmp_path), {})
    ledger = Ledger(settings.ledger)
    with ledger.write(1.0, durable=True) as tx:
        tx.put(WAITING, cause="ada", reason="asked")
    identity, history = ledger.identity, ledger.history()
    ledger.close()
    LabDatabases(settings, tmp_path).age_ledger()
    assert check_file(settings.ledger) == OLDER
    ledger = Ledger(settings.ledger)
    assert ledger.state.tickets == {1: WAITING}
    assert (ledger.identity, ledger.history()) == (identity, history)
    ledger.close()


class LabThatRemembers:
    """A lab of which only the hub's log and the ledger's last words are left."""

    def __init__(self, folder: Path, reason: str) -> None:
        self.settings = load(lab_toml(folder), {})
        lab_secrets.make_all(self.settings)
        self.hub_log = log_with(folder / "hub.log", STARTS % ("student0", HOLDER, 7))
        self._lease = {"holder": HOLDER, "reason": reason}

    def must_ask(self, path: str) -> Any:
        """The lease as the ledger has it."""
        assert path == "/leases/7"
        return SimpleNamespace(is_error=False, json=lambda: self._lease)


class NoServers:
    """All servers have ended."""

    def ended(self, holders: Iterable[str]) -> set[str]:
        """Every one."""
        return set(holders)


@pytest.mark.parametrize(
    ("reason", "announces", "is_breach"),
    [
        ("its server is gone", "", True),
        ("the server ended", "", True),
        (STARTS_ANEW, "", False),
        (f"The class ends at 12:00. {FILES_ARE_KEPT}", "", False),
        ("the server ended", "student", False),
        ("the server ended", "hub", False),
    ],
)
def test_a_server_that_ended_between_two_looks_counts(
    tmp_path: Path, reason: str, announces: str, is_breach: bool
) -> None:
    """Nobody saw it run; its end is a breach unless hub, pool, staff or student announced it."""
    lab: Any = LabThatRemembers(tmp_path, reason)
    lesson = FaultClass(lab, NoServers(), 1)  # type: ignore[arg-type]
    if announces == "student":
        lesson.students[0].may_end.add(HOLDER)
    elif announces == "hub":
        lab.hub_log.given_up.add(HOLDER)
    assert lesson.ends_unannounced() == ["student0"] * is_breach
    assert lesson.ends_unannounced() == []
    lesson.close()


SERVER = ObservedServer(HOLDER, "zoe", ("MIG-1",), 7, "", is_running=True)
OTHER = ObservedServer(f"container:{'b' * 64}", "bob", ("MIG-1",), 0, "", is_running=True)
LEASE = {"holder": HOLDER, "uuids": ["MIG-1"]}


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ({}, []),
        ({"servers": [SERVER, OTHER]}, ["2 servers run on slice MIG-1", "no lease is its"]),
        ({"leases": []}, ["zoe's server runs, and no lease is its"]),
        ({"leases": [{**LEASE, "uuids": ["MIG-2"]}]}, ["has other slices than its lease"]),
        ({"slices": []}, ["slice MIG-1 is gone under zoe's server"]),
        ({"notes": ["zoe 0"]}, ["of zoe's notes 1 are lost"]),
    ],
)
def test_what_does_not_hold_is_said(observed: dict[str, Any], expected: list[str]) -> None:
    """Each breach in words, by what engine, GPUs and ledger show."""
    servers = {server.holder: server for server in observed.get("servers", [SERVER])}
    answers = {"/leases": observed.get("leases", [LEASE]), "/invariants": []}
    slices = [{"uuid": uuid} for uuid in observed.get("slices", ["MIG-1"])]
    view = {"gpus": [{"slices": slices}]}
    lesson: Any = SimpleNamespace(
        servers=SimpleNamespace(all=lambda: servers, notes=lambda user: []),
        lab=SimpleNamespace(must_get=answers.get, machine=SimpleNamespace(view=lambda: view)),
        students=[SimpleNamespace(name="zoe", written=observed.get("notes", []))],
        ends_unannounced=list,
        without_words=[],
    )
    found_breaches = breaches(lesson, is_ledger_older=False)
    assert len(found_breaches) == len(expected)
    assert all(part in breach for part, breach in zip(expected, found_breaches, strict=True))
