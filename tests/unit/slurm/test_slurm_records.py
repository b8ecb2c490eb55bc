"""Slurm's output, as 22.05.8 and 24.11.5 print it, and what a picture makes of it."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from miglab_api.tickets import WaitEstimate
from miglab_slurm.lab import SlurmOptions, SlurmSite
from miglab_slurm.nodes import NODE_FIELDS, SlurmReservation, nodes_of, reservations_of
from miglab_slurm.picture import DOWN, RESERVED, ClusterPicture, _futures, estimate, stays_of
from miglab_slurm.records import (
    JOB_FIELDS,
    Listing,
    SignedTag,
    SlurmJob,
    Tag,
    claim_of,
    gres_of,
    hosts_of,
    jobs_of,
)
from miglab_slurm.words import NEVER, why_it_waits

NOW = 1_795_313_000.0
TAG = Tag("miglab", "ada", "", "everyone", "1g.5gb", "t1")
SITE = SlurmSite.model_validate(
    {
        "partition": "lab",
        "shapes": {
            "1g.5gb": {"gres": "gpu:1g.5gb:1"},
            "2x1g.5gb": {"gres": "gpu:1g.5gb:2", "time_limit_min": 30},
            "cpu": {},
        },
    }
)


JOBS, NODES = Listing(JOB_FIELDS), Listing(NODE_FIELDS)


def record(listing: Listing, *values: str) -> str:
    """A record as Slurm prints it."""
    return f"{listing.mark}f".join(values) + f"{listing.mark}r"


SHORT = {
    "reason": "Reason", "submit": "SubmitTime", "start": "StartTime", "end": "EndTime",
    "priority": "PriorityLong", "gres": "tres-per-node", "user": "UserName", "node": "NodeList",
    "partition": "Partition", "restarts": "RestartCnt", "comment": "Comment",
    "cluster": "Cluster", "name": "Name", "planned": "SchedNodes", "array": "ArrayTaskID",
    "of_job": "tres-per-job", "of_task": "tres-per-task",
}  # fmt: skip
"""What the tests call a field of squeue."""


def job_line(number: int, state: str, **fields: str) -> str:
    """A record of squeue; 22.05 writes `gres:gpu:…`, 24.11 `gres/gpu:…`."""
    line = dict.fromkeys(JOB_FIELDS, "N/A") | {
        "JobID": str(number), "State": state, "Reason": "None", "SubmitTime": "1795313000",
        "PriorityLong": "4294901759", "tres-per-node": "gres:gpu:1g.5gb:1", "UserName": "root",
        "NodeList": "", "Partition": "lab", "RestartCnt": "0", "Comment": "(null)",
        "Cluster": "faux", "Name": "bash",
        "NumNodes": "1", "NumTasks": "1", "SchedNodes": "(null)",
    }  # fmt: skip
    line |= {SHORT.get(name, name): value for name, value in fields.items()}
    return record(JOBS, *(line[name] for name in JOB_FIELDS))


def node_line(name: str, state: str, used: int = 0, **fields: str) -> str:
    """A record of sinfo -N."""
    line = {
        "NodeList": name, "NodeAddr": "10.0.0.1", "StateComplete": state,
        "Gres": "gpu:1g.5gb:4(S:0),gpu:3g.20gb:1",
        "GresUsed": f"gpu:1g.5gb:{used}(IDX:0-{used}),gpu:3g.20gb:0(IDX:N/A)",
        "Partition": "lab*", "Available": "up", "Reason": "a|b", "Features": "(null)",
        "CPUsState": "0/32/0/32", "Memory": "64000", "AllocMem": "0",
    }  # fmt: skip
    names = {"gres": "Gres", "held": "GresUsed", "partition": "Partition", "up": "Available",
             "cpus": "CPUsState", "memory": "AllocMem", "features": "Features"}  # fmt: skip
    line |= {names[key]: value for key, value in fields.items()}
    return record(NODES, *(line[key] for key in NODE_FIELDS))


def jobs_in(*records: str) -> dict[int, SlurmJob]:
    """The jobs of these records."""
    return jobs_of(JOBS, "\n".join(records))


def picture(jobs: list[str], nodes: list[str]) -> ClusterPicture:
    """What the site looks like with these lines."""
    return ClusterPicture(0.0, NOW, SITE, jobs_in(*jobs), nodes_of(NODES, "\n".join(nodes)))


EXAM = (
    "ReservationName=exam StartTime={begins} EndTime={ends} Duration=02:00:00 Nodes=n[1-2] "
    "NodeCnt=2 Users=ada,bo Groups=(null) Accounts=(null) State=INACTIVE{more}\n"
    "No reservations in the system\n"
)


def exam(in_s: float, fields: str = "") -> tuple[SlurmReservation, ...]:
    """A reservation of two hours that begins so soon."""
    begins = round(NOW + in_s)
    return reservations_of(EXAM.format(begins=begins, ends=begins + 7200, more=fields))


def test_reservations_as_slurm_prints_them():
    """Begun or not; one of some cores takes no node."""
    (reservation,) = exam(600)
    assert (reservation.name, reservation.whose, reservation.node_list) == (
        "exam",
        "users ada,bo",
        "n[1-2]",
    )
    assert (reservation.begins_at, reservation.ends_at) == (NOW + 600, NOW + 7800)
    assert reservation.nodes == {"n1", "n2"}
    assert not exam(600, fields=" NodeName=n1 CoreIDs=0-3")[0].nodes


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-2,07],login", ["n1", "n2", "n07", "login"]),
        ("r[1-2]n[09-10]-x", ["r1n09-x", "r1n10-x", "r2n09-x", "r2n10-x"]),
        ("", []),
    ],
)
def test_names_of_nodes_in_slurms_short_form(short: str, names: list[str]):
    """Ranges keep their leading zeros."""
    assert list(hosts_of(short)) == names


@pytest.mark.parametrize(
    ("in_s", "reason"), [(600, RESERVED), (-600, RESERVED), (7300, ""), (-7300, "")]
)
def test_a_reservation_counts_before_it_begins(in_s: float, reason: str):
    """From when a job that began now would run into it, until it is over."""
    cluster = replace(picture([], [node_line("n1", "idle", 0)]), reservations=exam(in_s))
    slice_ = SITE.shapes["1g.5gb"]
    assert (cluster.why_nothing_starts(slice_), cluster.free(slice_)) == (
        reason,
        0 if reason else 4,
    )
    reserved_slice = slice_.model_copy(update={"options": SlurmOptions(reservation="exam")})
    assert cluster.why_nothing_starts(reserved_slice) == ""


def test_nodes_that_are_down_start_nothing():
    """Neither a slice nor a server without one."""
    for state in ("down*", "idle+drain", "mixed+drain"):
        cluster = picture([], [node_line("n1", state, 0)])
        assert {cluster.why_nothing_starts(shape) for shape in SITE.shapes.values()} == {DOWN}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("gres:gpu:1g.5gb:1", {"gpu:1g.5gb": 1}),
        ("gres/gpu:1g.5gb:2,gres/gpu:3g.20gb:1", {"gpu:1g.5gb": 2, "gpu:3g.20gb": 1}),
        ("gpu:1g.5gb:4(IDX:0-3),gpu:3g.20gb:0(IDX:N/A)", {"gpu:1g.5gb": 4, "gpu:3g.20gb": 0}),
        ("gpu:1g.5gb:2(IDX:0,3),gpu:3g.20gb:1(IDX:4)", {"gpu:1g.5gb": 2, "gpu:3g.20gb": 1}),
        ("gpu:1g.5gb:4(S:0)", {"gpu:1g.5gb": 4}),
        ("gpu:nvidia_a100_1g.5gb:7(S:0-1)", {"gpu:nvidia_a100_1g.5gb": 7}),
        ("gpu:(null):0(IDX:N/A)", {"gpu:(null)": 0}),
        ("N/A", {}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_gres_in_every_spelling(text: str, counts: dict[str, int]):
    """Both versions, with and without indices and sockets."""
    assert dict(gres_of(text)) == counts


def test_a_job_is_read_whole():
    """Every field; the comment, whatever it says, makes it nobody's."""
    line = job_line(7, "RUNNING", start="1795313010", end="1795316610", node="n1", comment="a|b")
    (job,) = jobs_in(line).values()
    assert (job.id, job.state, job.nodes, job.comment) == (7, "RUNNING", "n1", "a|b")
    assert job.tag is None
    assert (job.started_at, job.ends_at) == (1795313010.0, 1795316610.0)
    assert dict(job.gres) == {"gpu:1g.5gb": 1}


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error", "x|y|z", "||||||||||||"])
def test_what_is_no_job_is_left_out(text: str):
    """Empty, unfinished and foreign lines."""
    assert jobs_of(JOBS, text) == {}
    assert nodes_of(NODES, "squeue: error") == {}


def test_each_listing_has_a_mark_of_its_own() -> None:
    """Whoever read the last one cannot forge a record of the next."""
    assert len({Listing(JOB_FIELDS).mark for _ in range(100)}) == 100


def test_a_record_within_a_comment_is_text():
    """Of another call's mark, line breaks and all: one job, with a comment."""
    forged = f"x\n{record(Listing(JOB_FIELDS), '1', 'RUNNING', 'alice')}\n1|RUNNING|alice"
    assert list(jobs_in(job_line(2, "RUNNING", comment=forged))) == [2]


def test_who_comes_twice_is_left_out(caplog: pytest.LogCaptureFixture):
    """Of two records of one job, or of one node in one partition, neither is believed."""
    assert list(jobs_in(*(job_line(n, "RUNNING") for n in (1, 2, 1)))) == [2]
    assert "lists ('1',) twice" in caplog.text
    twice = node_line("n1", "idle", 0), node_line("n1", "down", 0), node_line("n2", "idle", 0)
    assert list(nodes_of(NODES, "\n".join(twice))) == ["n2"]


@pytest.mark.parametrize(
    "comment", ["", "(null)", "{}", "[]", '{"miglab": 1}', '{"miglab": 2}', "7", "[" * 9999]
)
def test_what_is_no_tag_of_ours(comment: str):
    """A site's own comments, and half of ours."""
    assert claim_of(comment) is None


def test_a_claim_comes_back():
    """What is written into the comment is read from it, in any script."""
    claim = SignedTag(Tag("miglab", "zoë", "späte", "бг", "1g.5gb", "x"), "id", "signature")
    assert claim_of(claim.as_comment()) == claim


@pytest.mark.parametrize(
    ("state", "takes"),
    [
        ("idle", True), ("mixed", True), ("allocated", True), ("mixed+planned", True),
        ("idle+drain", False), ("mixed+drain", False), ("idle+completing", False),
        ("mixed+completing+drain", False), ("down", False), ("idle*", False),
        ("mixed+maint", False), ("inval", False), ("idle+not_responding", False), ("", False),
    ],
)  # fmt: skip
def test_which_nodes_take_jobs(state: str, takes: bool):
    """Only those that are up, answer, are not drained, and complete nothing."""
    (node,) = nodes_of(NODES, node_line("n1", state, 0)).values()
    assert node.takes_jobs is takes
    assert node.reason == "a|b"


def test_free_and_total_leave_out_what_cannot_be_had():
    """Free slices count on open nodes only, and two slices must lie on one node."""
    states = ("mixed", 3), ("idle+drain", 0), ("mixed+reserved", 1), ("mixed", 1)
    cluster = picture([], [node_line(f"n{n}", *state) for n, state in enumerate(states)])
    single, double = SITE.shapes["1g.5gb"], SITE.shapes["2x1g.5gb"]
    assert (cluster.free(single), cluster.total(single)) == (4, 16)
    assert (cluster.free(double), cluster.total(double)) == (1, 8)


def test_the_order_is_slurms():
    """By priority, then number; who waits for a limit of their own holds up nobody."""
    waiting = [
        job_line(1, "PENDING", reason="Priority", priority="5"),
        job_line(2, "PENDING", reason="Resources", priority="9"),
        job_line(3, "PENDING", reason="QOSMaxGRESPerUser", priority="99"),
        job_line(4, "PENDING", reason="Priority", priority="5"),
        job_line(5, "PENDING", gres="gres/gpu:3g.20gb:1", priority="50"),
    ]
    cluster = picture(waiting, [node_line("n1", "mixed", 4)])
    assert [job.id for job in cluster.queue(SITE.shapes["1g.5gb"])] == [2, 1, 4]


def test_who_comes_later_starts_at_once_only_before_the_first_planned_start():
    """Backfill plans whole nodes: a free slice is nobody's to take for longer than that."""
    nodes = [node_line("n1", "mixed", 0, held="gpu:1g.5gb:1(IDX:0),gpu:3g.20gb:1(IDX:4)")]
    wants_3g: dict[str, Any] = {"gres": "gres:gpu:3g.20gb:1", "reason": "Resources"}
    in_an_hour = picture([job_line(1, "PENDING", start=str(int(NOW) + 3600), **wants_3g)], nodes)
    assert not in_an_hour.starts_at_once(SITE.shapes["1g.5gb"])  # two hours
    assert in_an_hour.starts_at_once(SITE.shapes["2x1g.5gb"])  # half an hour
    unplanned = picture([job_line(1, "PENDING", **wants_3g)], nodes)
    assert not unplanned.starts_at_once(SITE.shapes["2x1g.5gb"])


def four_running(for_s: int, left_s: int) -> list[str]:
    """Jobs that hold all slices of a node."""
    times = {"start": str(int(NOW) - for_s), "end": str(int(NOW) + left_s)}
    return [job_line(n, "RUNNING", node="n1", **times) for n in range(1, 5)]


def wait_of(cluster: ClusterPicture, job: int | None) -> WaitEstimate:
    """How long it waits for a slice; it can be told."""
    wait = estimate(cluster, SITE.shapes["1g.5gb"], job)
    assert wait is not None
    return wait


def test_the_estimate_counts_slices_and_not_nodes():
    """Eight jobs that end together start eight, whatever `squeue --start` says."""
    waiting = [job_line(n, "PENDING", reason="Priority") for n in range(5, 9)]
    cluster = picture(four_running(600, 600) + waiting, [node_line("n1", "mixed", 4)])
    assert 600 <= wait_of(cluster, 8).high_s <= 720
    assert wait_of(cluster, None).high_s > 7200
    assert wait_of(with_stays(cluster, [700.0] * 6), 5).likely_s == pytest.approx(100.0)


def test_the_range_is_of_people_who_leave_independently():
    """The first of four slices is free much sooner than the slowest leaves, and never negative."""
    jobs = [*four_running(0, 7200), job_line(5, "PENDING")]
    cluster = picture(jobs, [node_line("n1", "mixed", 4)])
    first, again = (wait_of(with_stays(cluster, [*map(float, range(1000))]), 5) for _ in range(2))
    assert 0 <= first.low_s < first.likely_s < 400
    assert first.high_s < 800
    assert first == again


def test_a_stay_is_counted_once_when_it_ends():
    """Whichever picture catches the job on its way out; one that is suspended is still there."""
    states = ("RUNNING", "SUSPENDED", "RUNNING", "COMPLETING", "CANCELLED")
    pictures = [jobs_in(job_line(1, state, node="n1")) for state in states]
    steps = [len(stays_of(before, after)) for before, after in pairwise(pictures)]
    assert steps == [0, 0, 1, 0]
    assert len(stays_of(pictures[0], {})) == 1


def with_stays(cluster: ClusterPicture, stays_s: list[float]) -> ClusterPicture:
    """A picture of a reader that has seen such stays."""
    return replace(cluster, stays_s={"gpu:1g.5gb": stays_s})


def test_who_is_still_there_stays_longer_than_those_who_left():
    """Two who left after 10 and 20 s; one has been there for 15, another for 30."""
    alone = [stays(0.0, 1000.0) for stays in _futures([10.0, 20.0], [])]
    beside = [stays(0.0, 1000.0) for stays in _futures([10.0, 20.0], [15.0, 30.0])]
    assert set(alone) == {10.0, 20.0} < set(beside)
    assert sum(beside) > sum(alone)
    assert {stays(15.0, 2.0) for stays in _futures([10.0, 20.0], [])} == {2.0}  # its limit


def test_a_job_on_its_way_out_frees_its_slice_in_a_moment():
    """While it is completing nothing starts on its node, and the estimate is still there."""
    ending = job_line(1, "COMPLETING", start=str(int(NOW) - 60), end=str(int(NOW)), node="n1")
    cluster = picture([ending, job_line(2, "PENDING")], [node_line("n1", "mixed+completing", 0)])
    wait = wait_of(cluster, 2)
    assert (wait.low_s, wait.likely_s) == (0.0, 0.0)
    assert cluster.free(SITE.shapes["1g.5gb"]) == 0


def test_without_an_open_node_nobody_knows():
    """All drained: no estimate, and not a wrong one."""
    cluster = picture([job_line(1, "PENDING")], [node_line("n1", "mixed+drain", 4)])
    assert estimate(cluster, SITE.shapes["1g.5gb"], 1) is None


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([], "no partition"),
        ([node_line("n1", "idle", 0, up="down")], "closed"),
        ([node_line("n1", "idle", 0, gres="gpu:7g.40gb:1")], "No node"),
        ([node_line("n1", "idle", 0)], ""),
        ([node_line("n1", "idle+drain", 4)], ""),
    ],
)
def test_what_can_never_run(nodes: list[str], problem: str):
    """A partition that is not there or closed, a gres that no node has; drained is not never."""
    why_never = picture([], nodes).why_never(SITE.shapes["1g.5gb"])
    assert problem in why_never
    assert bool(problem) is bool(why_never)


def test_reasons_in_words():
    """Waiting for room needs no words, what can never run says so, the unknown is passed on."""
    assert why_it_waits("Priority").message == ""
    assert "being serviced" in why_it_waits("ReqNodeNotAvail,_UnavailableNodes:n1").message
    for reason_shown in (
        "ReqNodeNotAvail, May be reserved for",
        "ReqNodeNotAvail,_May_be_reserved_for",
    ):
        assert "reserved the nodes" in why_it_waits(reason_shown).message
    limits = ("QOSMaxGRESPerUser", "AssocGrpGRES", "MaxGRESPerAccount", "ReqNodeNotAvail, on QOS1")
    assert [why_it_waits(reason).is_limit for reason in limits] == [True, True, True, False]
    assert all(why_it_waits(reason).never for reason in NEVER)
    assert "Nonsense" in why_it_waits("Nonsense").message
