"""The reclaimer on Slurm: whose job is what, warnings, ends that move, and who may see whom."""

import os
import pwd
import re
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from fastapi import FastAPI, Request
from traitlets.config import Config

from miglab_api.leases import (
    ExtendRequest,
    KernelSignal,
    LeaseState,
    LeaseView,
    LeaseWarning,
    Signals,
    WarningKind,
)
from miglab_api.staff import ActionRequest, MessageRequest
from miglab_api.tickets import TicketState
from miglab_hub.service.process import access_rules
from miglab_hub.settings.lab_toml import load
from miglab_pool.http.access.principal import Principal, PrincipalKind
from miglab_pool.http.errors import REASONS, DeniedError
from miglab_pool.reclaim.activity import Activity, SignalBoard
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.refused import Refused
from miglab_slurm.doctor import first_named_user
from miglab_slurm.lab import on_slurm
from miglab_slurm.nodes import Node
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.reader import SlurmReader
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.service.page import PLACES, _draw, activity_in_words, by_course, end, extend
from miglab_slurm.service.runner import SlurmDoor, SlurmRunner
from miglab_slurm.spawner import MIGSlurmSpawner
from miglab_slurm.submissions import Stay, Submissions
from miglab_slurm.words import AT_LIMIT, SOONER

ROOT = Path(__file__).parents[3]
NOW = 1_795_313_000.0
ME = pwd.getpwuid(os.geteuid()).pw_name
TOML = """
[accept_risk]
students_can_act_as_staff = true
[servers]
spawner = "slurm"
[slurm]
partition = "lab"
run_as = ""
{slurm}
[slurm.shapes."1g.5gb"]
gres = "gpu:1g.5gb:1"
[slurm.shapes.cpu]
[courses.everyone]
shapes = ["1g.5gb", "cpu"]
[testing]
reclaim.holding_factor = 1
[reclaim]
{reclaim}
"""
SIGNED_NAME = "jupyter-1g.5gb-0123456789abcdef01234567"
SHOWS_A_JOB = """
import sys
for part in sys.argv[-1].split(","):
    name, _, mark = part.partition(":")
    print({values!r}.get(name, "N/A"), end=mark)
"""
NOTES_ITS_ARGUMENTS = """
import sys
with open(sys.argv[0] + ".calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
"""
RECLAIM = "idle_s = 600\nidle_wanted_s = 60\nwarning_s = 100\n"
RESTING = Signals(
    kernels=(KernelSignal(busy=False, last_execution_age_s=500),),
    terminals=0,
    browsers=0,
    unsaved=0,
)


def job(number: int, state: str = "RUNNING", user: str = "ada", **changes: object) -> SlurmJob:
    """A student's job with a slice, which has run for ten minutes of two hours."""
    gres = MappingProxyType({"gpu:1g.5gb": 1})
    is_pending = state == "PENDING"
    running_job = SlurmJob(
        id=number, state=state, reason="", submitted_at=NOW - 700,
        started_at=None if is_pending else NOW - 600, ends_at=NOW + 6600, priority=1, gres=gres,
        account=ME, nodes="" if is_pending else "n1", partition="lab", name=f"jupyter-{number}",
        tag=Tag("miglab", user, "", "everyone", "1g.5gb", "t"),
    )  # fmt: skip
    return replace(running_job, **changes)  # type: ignore[arg-type]


def without_gpu(number: int, **changes: object) -> SlurmJob:
    """Ada's job without a slice."""
    tag = Tag("miglab", "ada", "", "everyone", "cpu", "c")
    return job(number, gres=MappingProxyType({}), tag=tag, **changes)


class ReclaimerLab:
    """A reclaimer over pictures that a test draws, at times that it sets."""

    def __init__(self, folder: Path, slurm: str = "", reclaim: str = RECLAIM) -> None:
        (folder / "lab.toml").write_text(TOML.format(slurm=slurm, reclaim=reclaim))
        self.settings = on_slurm(load(folder / "lab.toml", {}))
        self.at = NOW
        self.board = SignalBoard(clock=lambda: self.at)
        self.reader = SlurmReader(
            Submissions(folder / "jobs.sqlite", "miglab"), self.settings.slurm_site, sweeps=False
        )
        self.door = SlurmDoor(self.settings, lambda: self.at)
        self.reclaimer = Reclaimer(access_rules(self.settings), self.board, clock=lambda: self.at)

    def look(self, *jobs: SlurmJob, after_s: float = 0.0) -> None:
        """A round, on a cluster with these jobs."""
        self.at += after_s
        self.door.leases.update(self.picture(*jobs))
        self.reclaimer.round(self.door)

    def picture(self, *jobs: SlurmJob) -> ClusterPicture:
        """One node with two slices."""
        node = Node(
            "n1", "10.0.0.1", frozenset({"mixed"}), {"gpu:1g.5gb": 2}, {"gpu:1g.5gb": 1},
            {"lab": True}, "",
        )  # fmt: skip
        site = self.settings.slurm_site
        return ClusterPicture(0.0, self.at, site, {j.id: j for j in jobs}, {"n1": node})

    def report(self, number: int, cpu_s: float = 1.0) -> None:
        """A server says that nothing happens on it."""
        self.board.take(number, RESTING.model_copy(update={"cpu_s": cpu_s}))

    def lease(self, user: str = "ada") -> LeaseView:
        """Somebody's lease."""
        lease = self.door.leases.lease_of_server(user, "")
        assert lease is not None
        return lease

    def warned(self) -> LeaseWarning:
        """What ada is warned of."""
        warning = self.lease().warning
        assert warning is not None
        return warning


@pytest.fixture
def lab(tmp_path: Path) -> ReclaimerLab:
    """A lab with short limits."""
    return ReclaimerLab(tmp_path)


def test_an_idle_server_is_warned_and_taken_back_when_another_waits(lab: ReclaimerLab) -> None:
    """By the pool's policy: first a warning, then, after its end, the request to stop."""
    jobs = job(1), job(2, "PENDING", "bo")
    lab.look(*jobs)
    for _ in range(3):
        lab.report(1)
        lab.look(*jobs, after_s=5)
    assert lab.warned().kind is WarningKind.IDLE
    assert lab.lease().others_wait == 1
    lab.report(1)
    lab.look(*jobs, after_s=99)
    assert lab.lease().state is LeaseState.WARNED
    lab.at += 10
    lab.report(1)
    lab.look(*jobs)
    assert lab.lease().state is LeaseState.RELEASING
    assert "Nothing has happened on it" in lab.lease().reason
    lab.look(jobs[1])
    assert lab.door.leases.find(1).reason  # for the spawn page


@pytest.mark.parametrize(
    ("reason", "waiting_users", "state", "message_part"),
    [
        ("QOSMaxJobsPerUserLimit", (), TicketState.OFFERED, "this server ends first"),
        ("AssocMaxJobsLimit", (), TicketState.OFFERED, "A 1g.5gb is free now"),
        ("QOSMaxCpuPerUserLimit", ("bo",), TicketState.WAITING, "would be 2nd in the queue"),
        ("QOSMaxGRESPerUser", (), TicketState.WAITING, "all that one person may"),
        ("QOSGrpJobsLimit", (), TicketState.WAITING, "Your course uses all"),
    ],
)
def test_a_slice_that_the_own_server_holds_up_is_offered_first(
    lab: ReclaimerLab,
    reason: str,
    waiting_users: tuple[str, ...],
    state: TicketState,
    message_part: str,
) -> None:
    """With one job a person the server without a GPU must end first; its student decides when."""
    waits = [
        job(3 + n, "PENDING", user, reason="Resources") for n, user in enumerate(waiting_users)
    ]
    lab.look(without_gpu(1), job(2, "PENDING", reason=reason), *waits)
    ticket = lab.door.tickets.server_status("ada", "").ticket
    assert ticket is not None
    assert (ticket.state, ticket.position, ticket.expires_at) == (state, None, None)
    assert message_part in ticket.message
    lab.look(job(2, "PENDING", reason=reason))  # the server has ended, and Slurm has not looked yet
    after = lab.door.tickets.server_status("ada", "").ticket
    assert after is not None and after.state is TicketState.WAITING


def test_who_moved_to_the_slice_can_be_ended(lab: ReclaimerLab) -> None:
    """The job ran before its server did: what counts is the last picture in which it is one.

    Who restarts after that picture has another job, and whose job is over is not stopped.
    """
    lab.look(job(1))
    lab.door.leases.release(1, "user:staff", "The room closes.")
    lab.look(job(1), after_s=60)  # in which the hub has started the server that took the job over
    (to_stop,) = lab.door.leases.to_stop()
    assert (to_stop.state, to_stop.attached_at) == (LeaseState.RELEASING, NOW + 60)
    lab.look(after_s=3)
    assert lab.door.leases.to_stop() == []


@pytest.mark.parametrize(("reports", "after_s"), [(False, 1000), (True, 10)])
def test_a_silent_server_is_never_idle(lab: ReclaimerLab, reports: bool, after_s: float) -> None:
    """Nor one that tells no CPU time: nobody reads the slices on nodes, so it must be told."""
    for _ in range(5):
        if reports:
            lab.board.take(1, RESTING)
        lab.look(job(1), job(2, "PENDING", "bo"), after_s=after_s)
    assert lab.lease().warning is None


def test_still_here_counts_so_often(lab: ReclaimerLab) -> None:
    """It ends an idle warning twice, and no more until something runs."""
    lab.look(job(1))
    for remaining in (2, 1):
        lab.door.leases.warn(1, WarningKind.IDLE, "idle", NOW + 100)
        assert lab.warned().keepalives_left == remaining
        lab.door.leases.keepalive(1, "ada")
        assert lab.lease().warning is None
    lab.door.leases.warn(1, WarningKind.IDLE, "idle", NOW + 100)
    with pytest.raises(Refused, match="nothing has run since"):
        lab.door.leases.keepalive(1, "ada")


@pytest.mark.parametrize("reclaim", [RECLAIM, RECLAIM + "dry_run = true\n"])
def test_the_time_limit_is_told_before_it_comes(tmp_path: Path, reclaim: str) -> None:
    """Also where nothing is reclaimed: Slurm ends the job whatever the lab's settings say."""
    lab = ReclaimerLab(tmp_path, reclaim=reclaim)
    ending_job = job(1, ends_at=NOW + 500)
    lab.look(ending_job)
    assert lab.lease().warning is None
    lab.look(ending_job, after_s=400)
    warning = lab.warned()
    announced = (warning.kind, warning.reason, warning.reclaim_at)
    assert announced == (WarningKind.TIME, AT_LIMIT, NOW + 500)


def test_an_end_that_moved_is_told_at_once_with_its_reason(lab: ReclaimerLab) -> None:
    """Preemption and operators move EndTime; a student reads that it is sooner than planned."""
    lab.look(job(1))
    lab.look(job(1, ends_at=NOW + 20), after_s=1)
    assert (lab.warned().kind, lab.warned().reason) == (WarningKind.TIME, SOONER)
    lab.look(job(1, ends_at=NOW + 6600), after_s=1)
    assert lab.lease().warning is None


def test_report_only_takes_nothing_back(tmp_path: Path) -> None:
    """With `dry_run` an idle server is explained, and neither warned nor stopped."""
    lab = ReclaimerLab(tmp_path, reclaim=RECLAIM + "dry_run = true\n")
    jobs = job(1), job(2, "PENDING", "bo")
    for _ in range(4):
        lab.report(1)
        lab.look(*jobs, after_s=30)
    (explanation,) = lab.reclaimer.explain(lab.door)
    assert explanation.decision == "warn" and not explanation.is_acted_on
    assert lab.lease().warning is None


def test_a_ticket_is_kept_while_its_student_works_without_a_gpu(lab: ReclaimerLab) -> None:
    """The job that waits is the ticket; when it runs, it is the offer, and the server stays."""
    lab.look(without_gpu(1), job(2, "PENDING"))
    status = lab.door.tickets.server_status("ada", "")
    assert status.lease is None
    assert status.ticket is not None and (status.ticket.id, status.ticket.state) == (2, "waiting")
    offered = job(2, started_at=NOW)
    lab.look(without_gpu(1), offered)
    ticket = lab.door.tickets.server_status("ada", "").ticket
    assert ticket is not None and (ticket.id, ticket.state) == (2, "offered")
    assert ticket.expires_at == NOW + lab.settings.slurm.offer_s
    lab.look(offered)
    assert lab.lease().id == 2
    over = lab.door.tickets.server_status("ada", "", known_ticket=9).ticket
    assert over is not None and over.state == "expired"


def test_each_slice_of_a_server_is_judged(lab: ReclaimerLab) -> None:
    """Whatever else of the same server runs, and whichever of its jobs is the server."""
    lab.look(without_gpu(1), job(2), job(3))
    assert {case.lease.id for case in lab.door.leases.lease_cases()} == {2, 3}
    assert lab.door.leases.lease_of_server("ada", "") is None


def test_an_offer_that_staff_end_is_cancelled(lab: ReclaimerLab) -> None:
    """The server that its student works on meanwhile is left alone."""
    lab.look(without_gpu(1), job(2))
    lab.door.leases.release(2, "ina", "The room closes.")
    (command,) = lab.door.leases.take_commands()
    assert command.arguments == ("scancel", "--name=jupyter-2", f"--user={ME}", "2")
    assert lab.door.leases.to_stop() == []


@pytest.mark.parametrize("is_seen_waiting", [True, False])
def test_a_number_that_comes_again_is_the_lease_of_who_has_it(
    lab: ReclaimerLab, is_seen_waiting: bool
) -> None:
    """Nobody ends or reads a lease by the rights that they had over the job of before."""
    carls = Tag("miglab", "carl", "", "vision", "1g.5gb", "t7")
    lab.look(job(7))
    lab.door.leases.release(7, "user:staff", "The room closes.")
    if is_seen_waiting:
        lab.look(job(7, "PENDING", tag=carls))
        assert lab.door.leases.find(7).user == "ada"
        with pytest.raises(Refused, match="No server runs as job 7"):
            lab.door.leases.find_live(7)
    lab.look(job(7, tag=carls))
    lease = lab.door.leases.find(7)
    assert (lease.user, lease.state, lease.reason) == ("carl", LeaseState.RUNNING, "")
    assert lab.door.leases.find_live(7) == lease
    assert lab.door.leases.release(7, "user:staff", "His time is over.").user == "carl"
    lab.look()
    assert lab.door.leases.find(7).reason == "His time is over."


@pytest.mark.parametrize("path", ["release", "extend"])
async def test_who_may_end_a_lease_that_is_over_may_do_nothing_to_the_next_of_its_number(
    lab: ReclaimerLab, path: str
) -> None:
    """The page looks at the rights over the very job on which it acts."""
    lab.look(job(7))
    lab.look()
    lab.look(job(7, tag=Tag("miglab", "carl", "", "vision", "1g.5gb", "t7")))
    instructor = Principal(PrincipalKind.PERSON, "ina", instructs=frozenset({"everyone"}))
    request = request_of(lab)
    with pytest.raises(DeniedError):
        if path == "release":
            await end(7, ActionRequest(reason="mine"), instructor, request)
        else:
            await extend(7, ExtendRequest(by_s=600), instructor, request)
    assert lab.lease("carl").state is LeaseState.RUNNING
    assert lab.door.leases.take_commands() == []


def test_why_an_offer_was_taken_back_is_told_after_the_job_is_over(lab: ReclaimerLab) -> None:
    """The start that lost it asks when Slurm has cancelled the job, maybe some rounds later."""
    lab.look(without_gpu(1), job(2))
    assert lab.door.leases.release(2, "ina", "The room closes.").reason == "The room closes."
    lab.look(without_gpu(1), job(2))
    assert lab.door.leases.find(2).reason == "The room closes."
    lab.look(without_gpu(1))
    assert lab.door.leases.find(2).reason == "The room closes."


@pytest.mark.parametrize(
    ("user", "server", "is_asked_back"),
    [("ada", "", True), ("carl", "", False), ("ada", "2", False)],
)
async def test_the_hub_believes_the_reclaimer_of_its_own_server_alone(
    lab: ReclaimerLab, monkeypatch: pytest.MonkeyPatch, user: str, server: str, is_asked_back: bool
) -> None:
    """It asks by a number, which may have been another server's."""
    lab.look(job(7))
    lease = lab.door.leases.release(7, "user:staff", "The room closes.")

    class AnswersOfAda:
        """Answers for any number with ada's lease."""

        def __init__(self, *_: object) -> None: ...

        async def lease(self, _: int) -> LeaseView:
            return lease

    monkeypatch.setattr("miglab_slurm.spawner.PoolClient", AnswersOfAda)
    spawner = MIGSlurmSpawner(reclaimer_url="http://127.0.0.1:9")
    spawner.user, spawner.orm_spawner = (
        SimpleNamespace(name=user),
        SimpleNamespace(name=server, server=None),
    )
    assert await spawner._asked_back(7) == (lease if is_asked_back else None)


def test_the_job_that_is_named_is_the_one_that_is_cancelled(lab: ReclaimerLab) -> None:
    """Of two that wait for one server, not whichever comes first; and never the server itself."""
    other = Tag("miglab", "ada", "", "vision", "1g.5gb", "v")
    named_job = job(3, "PENDING", tag=other)
    lab.look(job(1), job(2, "PENDING"), named_job)
    assert lab.door.tickets.cancel_job(named_job, "").id == 3
    (command,) = lab.door.leases.take_commands()
    assert command.arguments == ("scancel", "--name=jupyter-3", f"--user={ME}", "3")
    with pytest.raises(Refused, match="waits for nothing"):
        lab.door.tickets.cancel_job(job(1), "")


def test_only_an_operator_extends(tmp_path: Path, lab: ReclaimerLab) -> None:
    """Without the right it is refused in words; with it, as often as lab.toml says."""
    lab.look(job(1))
    with pytest.raises(Refused, match="only its operators"):
        lab.door.leases.extend(1, 600, "ada")
    (tmp_path / "op").mkdir()
    lab = ReclaimerLab(tmp_path / "op", slurm="operator = true")
    lab.look(job(1, name=SIGNED_NAME))
    assert lab.lease().extensions_left == 2
    assert lab.door.leases.extend(1, 99_999, "ada").ends_at == NOW + 6600 + 1800
    (command,) = lab.door.leases.take_commands()
    assert command.arguments == (
        "scontrol", "update", f"JobName={SIGNED_NAME}", f"UserID={ME}", "TimeLimit=150"
    )  # fmt: skip
    lab.look(job(1, name=SIGNED_NAME, ends_at=NOW + 6600 + 3600))
    assert lab.lease().extensions_left == 0
    with pytest.raises(Refused, match="as often as it may be"):
        lab.door.leases.extend(1, 600, "ada")


@pytest.mark.parametrize(
    ("shown_fields", "is_extended"),
    [({}, True), ({"SubmitTime": f"{NOW:.0f}"}, False), ({"UserName": "carl"}, False)],
)
async def test_a_job_that_a_plugin_renamed_is_extended_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown_fields: dict[str, str], is_extended: bool
) -> None:
    """By its number, as its name may be all jobs' of the account; and if the number is still its.

    squeue and scontrol are programs of the test's: one shows a job, the other notes its arguments.
    """
    lab = ReclaimerLab(tmp_path, slurm="operator = true")
    renamed = job(7, name="course", cluster="faux")
    values = {"JobID": "7", "State": "RUNNING", "SubmitTime": f"{renamed.submitted_at:.0f}",
              "UserName": ME, "Name": "course", "Cluster": "faux"} | shown_fields  # fmt: skip
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    programs = {"squeue": SHOWS_A_JOB.format(values=values), "scontrol": NOTES_ITS_ARGUMENTS}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!{sys.executable} -S\n{text}")
        (tmp_path / name).chmod(0o755)
    lab.look(renamed)
    runner = SlurmRunner(lab.settings, lab.reader, lab.reclaimer, None)  # type: ignore[arg-type]
    runner.door = lab.door
    monkeypatch.setattr(lab.reader, "refresh", lambda: None)
    refusal = nullcontext() if is_extended else pytest.raises(Refused, match="another job by now")
    with refusal:
        await runner.decide(lambda door: door.leases.extend_as_staff(7, 600, "user:staff"))
    notes = tmp_path / "scontrol.calls"
    calls = notes.read_text().splitlines() if notes.exists() else []
    assert calls == (["update JobId=7 TimeLimit=130"] if is_extended else [])


async def test_what_slurm_refuses_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever pressed the button reads why nothing happened."""
    lab = ReclaimerLab(tmp_path, slurm="operator = true")
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'Access/permission denied' >&2\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    lab.look(job(7, name=SIGNED_NAME))
    runner = SlurmRunner(lab.settings, lab.reader, lab.reclaimer, None)  # type: ignore[arg-type]
    runner.door = lab.door
    with pytest.raises(DeniedError, match="Access/permission denied") as denied:
        await runner.decide(lambda door: door.leases.extend_as_staff(7, 600, "user:staff"))
    assert (denied.value.status, denied.value.reason) == (409, "slurm-refused")
    assert denied.value.reason in REASONS


def test_the_end_without_a_gpu_is_a_message(lab: ReclaimerLab) -> None:
    """A server without a lease cannot be warned; its student still reads when Slurm ends it."""
    lab.look(without_gpu(1, ends_at=NOW + 100))
    (message,) = lab.door.staff.messages_for("ada", "", ["everyone"])
    assert (message.by, message.until) == ("Slurm", NOW + 100)
    lab.door.staff.send(MessageRequest(to_course="vision", text="x"), "person:ina")
    lab.door.staff.send(MessageRequest(to_user="ada", text="y"), "person:ina")
    assert [m.text for m in lab.door.staff.messages_for("ada", "", ["everyone"])][1:] == ["y"]


def test_usage_is_kept_where_slurm_keeps_none(lab: ReclaimerLab) -> None:
    """A row a stay; hours by course."""
    lab.look(job(1))
    (over,) = lab.door.leases.update(lab.picture())
    submissions = lab.reader.submissions
    submissions.note_stay(over.stay(over.job.tag, NOW + 3000))
    (stay,) = submissions.stays()
    assert stay == Stay(1, "ada", "", "everyone", "1g.5gb", "gpu:1g.5gb:1", NOW - 600, NOW + 3000)
    rows = by_course([("a", 3600.0), ("b", 1800.0), ("b", 3600.0)])
    assert [(row.course, row.servers, row.hours) for row in rows] == [("b", 2, 1.5), ("a", 1, 1.0)]


def test_a_server_that_does_not_report_is_said_once_it_had_the_time() -> None:
    """Not at its start; and not of one that is known to rest."""
    assert activity_in_words(Activity.UNKNOWN, 10) == "unknown"
    assert activity_in_words(Activity.UNKNOWN, 600) == "does not report"
    assert activity_in_words(Activity.ACTIVE, 600) == "active"


def test_the_example_of_the_docs_is_whole(tmp_path: Path, monkeypatch) -> None:
    """Copied as printed, it is a lab, and doctor tries its jobs as one of its Unix group."""
    monkeypatch.setattr("grp.getgrnam", lambda group: SimpleNamespace(gr_mem=[f"of {group}"]))
    page = (ROOT / "docs" / "howto" / "slurm.md").read_text()
    block = page[page.index("       [lab]") : page.index("   The type names")]
    (tmp_path / "lab.toml").write_text(textwrap.dedent(block))
    settings = on_slurm(load(tmp_path / "lab.toml", {}))
    assert first_named_user(settings) == "of students"
    assert settings.courses["everyone"].shapes == ("1g.5gb", "cpu")
    assert all(shape.sm_count for shape in settings.slurm.shapes.values() if shape.gres)


def test_the_example_hub_is_configured() -> None:
    """deploy/slurm/jupyterhub_config.py is what the spawner takes."""
    c = Config()
    source = (ROOT / "deploy" / "slurm" / "jupyterhub_config.py").read_text(encoding="utf-8")
    exec(compile(source, "jupyterhub_config.py", "exec"), {"c": c})
    assert c.JupyterHub.spawner_class == "mig-slurm"
    assert set(MIGSlurmSpawner(config=c).site.partitions) == {"lab", "lab-cpu"}


def test_drains_name_the_operators_command() -> None:
    """Read-only here: the page says what its operator would type."""
    states = {"idle": "state=drain", "idle drain": "state=resume", "down": "state=resume"}
    for state, command in states.items():
        node = Node("n1", "n1", frozenset(state.split()), {}, {}, {}, "broken fan")
        assert command in node.operators_command


async def test_the_page_shows_ones_own_courses(lab: ReclaimerLab) -> None:
    """Staff read names, places and commands; of another course nothing but the slices' numbers."""
    lab.look(job(1), job(2, "PENDING", "bo"), job(3, tag=None))
    page = {}
    for course in ("everyone", "vision"):
        request = request_of(lab)
        staff = Principal(PrincipalKind.PERSON, "ina", instructs=frozenset({course}))
        page[course] = await _draw(request, staff)
    assert "End the server of ada" in page["everyone"]
    assert "Take bo out of the queue" in page["everyone"]
    assert "Others hold 1 of gpu:1g.5gb" in page["everyone"]
    assert "scontrol update nodename=n1 state=drain" in page["vision"]
    assert not {"ada", "bo"} & set(re.findall(r"\w+", page["vision"]))


def request_of(lab: ReclaimerLab) -> Request:
    """A request for the page, of a service over the lab's latest picture."""
    runner = SlurmRunner(lab.settings, lab.reader, lab.reclaimer, None)  # type: ignore[arg-type]
    runner.door, runner.trouble = lab.door, "silent"
    access = SimpleNamespace(prefix="/p", hub_origin="", hub_prefix="/hub/")
    app = FastAPI()
    app.state.runner, app.state.settings = runner, lab.settings
    app.state.sign_in = SimpleNamespace(access=access)
    app.state.title, app.state.notices, app.state.places = "Lab", (), PLACES
    return Request({"type": "http", "app": app})
