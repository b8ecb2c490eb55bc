"""Other people's nodes: unlike ones, full ones, and such as are switched off."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from miglab_slurm.counting import SlurmRules
from miglab_slurm.lab import SlurmOptions, SlurmShape
from miglab_slurm.nodes import nodes_of, resume_timeout_in
from miglab_slurm.picture import DOWN, ClusterPicture
from miglab_slurm.wait_estimate import estimate

from .test_slurm_records import NODES, NOW, SITE, job_line, jobs_in, node_line, picture

SLICE, TWO, CPU = (SITE.shapes[name] for name in ("1g.5gb", "2x1g.5gb", "cpu"))
A100 = SlurmShape(gres="gpu:a100:1")
H100 = SlurmShape(gres="gpu:h100:1")
MEDIA = SlurmShape(gres="gpu:1g.10gb+me:1")
UNLIKE = [
    node_line("mig", "mixed", gres="gpu:1g.5gb:4", held="gpu:1g.5gb:1(IDX:0)"),
    node_line("h", "mixed", gres="gpu:h100:2", held="gpu:h100:2(IDX:0-1)"),
    node_line(
        "half", "idle", gres="gpu:a100:1,gpu:1g.10gb+me:2", held="gpu:a100:0(IDX:N/A)"
    ),
]  # fmt: skip
"""Slices, whole GPUs, and a node of which one half is cut; the H100s are taken."""


def later(seconds: float) -> str:
    """A time so long after the picture, as squeue prints it."""
    return str(round(NOW + seconds))


def free_and_total(snapshot: ClusterPicture, *shapes: SlurmShape) -> list[tuple[int, int]]:
    """What the spawn page counts."""
    return [(snapshot.free(shape), snapshot.total(shape)) for shape in shapes]


# -- unlike nodes --------------------------------------------------------------------------------


def test_each_type_is_counted_where_it_is() -> None:
    """Beside other types, with a plus in its name, and not at all where it is not."""
    snapshot = picture([], UNLIKE)
    assert free_and_total(snapshot, SLICE, H100, A100, MEDIA) == [(3, 4), (0, 2), (1, 1), (2, 2)]


@pytest.mark.parametrize("plan", [{}, {"start": later(60), "planned": "h"}])
def test_who_waits_for_one_type_holds_up_no_other_node(plan: Mapping[str, str]) -> None:
    """Backfill keeps whole nodes free, but only the nodes on which it plans a start."""
    waits = job_line(1, "PENDING", reason="Resources", gres="gres:gpu:h100:1", **plan)
    snapshot = picture([waits], UNLIKE)
    starts = [snapshot.starts_at_once(shape) for shape in (SLICE, H100, A100, MEDIA)]
    assert starts == [True, False, True, True]
    assert [snapshot.starting(shape) for shape in (SLICE, H100, A100, MEDIA)] == [3, 0, 1, 2]


def test_a_planned_start_holds_up_its_whole_node() -> None:
    """Whatever slice is free there, for everybody whose time limit ends later."""
    waits = job_line(
        1, "PENDING", reason="Resources", gres="gres:gpu:a100:2", planned="half", start=later(3600)
    )
    snapshot = picture([waits], UNLIKE)
    assert [snapshot.starts_at_once(shape) for shape in (SLICE, A100, MEDIA)] == [
        True,
        False,
        False,
    ]
    assert snapshot.starts_at_once(MEDIA.model_copy(update={"time_limit_min": 30}))
    assert (snapshot.free(MEDIA), snapshot.starting(MEDIA)) == (2, 0)


def test_a_job_of_no_type_may_be_anywhere() -> None:
    """It waits for any GPU, and so for this type as well; `--gres=gpu:1` and `--gpus=1`."""
    waits = (
        job_line(1, "PENDING", reason="Resources", gres="gres:gpu:1"),
        job_line(2, "PENDING", reason="Priority", gres="N/A", of_job="gres:gpu:1"),
    )
    snapshot = picture(list(waits), UNLIKE)
    assert [job.id for job in snapshot.queue(SLICE)] == [1, 2]
    assert not any(snapshot.starts_at_once(shape) for shape in (SLICE, A100, MEDIA))
    assert snapshot.queue(CPU) == []


@pytest.mark.parametrize(
    ("fields", "gres"),
    [
        ({"gres": "gres:gpu:1g.5gb:2", "NumNodes": "2"}, {"gpu:1g.5gb": 4}),
        ({"gres": "N/A", "of_job": "gres:gpu:1g.5gb:3"}, {"gpu:1g.5gb": 3}),
        ({"gres": "N/A", "of_task": "gres:gpu:1g.5gb:1", "NumTasks": "4"}, {"gpu:1g.5gb": 4}),
        ({"gres": "N/A", "of_task": "cpu=2,gres/gpu:1g.5gb=1"}, {"gpu:1g.5gb": 1}),
        ({"gres": "gres:gpu:1g.5gb:1", "of_job": "gres:gpu:1g.5gb:1"}, {"gpu:1g.5gb": 1}),
        ({"gres": "gres:gpu:1g.10gb+me:1"}, {"gpu:1g.10gb+me": 1}),
        ({"gres": "N/A"}, {}),
    ],
)
def test_whichever_option_asks_for_slices(fields: dict[str, str], gres: dict[str, int]) -> None:
    """`--gres`, `--gpus`, `--gpus-per-task`: all that a job holds on all its nodes."""
    (job,) = jobs_in(job_line(1, "RUNNING", **fields)).values()
    assert dict(job.gres) == gres


@pytest.mark.parametrize(
    ("listed", "tasks"),
    [("N/A", 1), ("5", 1), ("0-3", 4), ("0-3%2", 2), ("1,4,7-9", 5), ("0-20:5", 5), ("", 1)],
)
def test_an_array_stands_for_many_jobs(listed: str, tasks: int) -> None:
    """All of its tasks that wait, and may run side by side, are before whoever comes later."""
    array = job_line(1, "PENDING", reason="Resources", array=listed)
    snapshot = picture([array, job_line(2, "PENDING", reason="Priority")], UNLIKE)
    assert (snapshot.waiting(SLICE, before=2), snapshot.waiting(SLICE)) == (tasks, tasks + 1)


def test_the_estimate_counts_what_untyped_and_array_jobs_take() -> None:
    """Of four slices three are held without a type; then an array takes the free one."""
    node = node_line("mig", "mixed", gres="gpu:1g.5gb:4", held="gpu:1g.5gb:3(IDX:0-2)")
    untyped = job_line(
        1, "RUNNING", node="mig", gres="gres:gpu:3", start=later(-60), end=later(600)
    )
    waits = [
        job_line(2, "PENDING", reason="Resources", array="0-1"),
        job_line(3, "PENDING", reason="Priority"),
    ]
    snapshot = picture([untyped, *waits], [node])
    assert [count for _, count in snapshot.holders(SLICE)] == [3]
    last = estimate(snapshot, SLICE, 3)
    assert last is not None and 600 <= last.high_s <= 720


def test_what_typed_jobs_hold_is_not_counted_twice() -> None:
    """On a node of two types an untyped job holds what no other job explains."""
    node = node_line(
        "half", "mixed", gres="gpu:a100:2,gpu:1g.5gb:2",
        held="gpu:a100:1(IDX:0),gpu:1g.5gb:2(IDX:1-2)",
    )  # fmt: skip
    jobs = (
        job_line(1, "RUNNING", node="half", gres="gres:gpu:1g.5gb:2"),
        job_line(2, "RUNNING", node="half", gres="gres:gpu:1"),
    )
    snapshot = picture(list(jobs), [node])
    assert [job.id for job, _ in snapshot.holders(SLICE)] == [1]
    assert [job.id for job, _ in snapshot.holders(A100)] == [2]


@pytest.mark.parametrize(
    ("fields", "free", "total"),
    [
        ({"cpus": "30/2/0/32"}, 1, 4),
        ({"memory": "60000"}, 0, 4),
        ({"memory": "55000"}, 1, 4),
        ({"cpus": "N/A", "memory": "N/A"}, 4, 4),
        ({"cpus": "0/3/0/3"}, 1, 1),
    ],
)
def test_cores_and_memory_count_too(fields: dict[str, str], free: int, total: int) -> None:
    """A free slice is of no use on a node that is full; what is not told limits nothing."""
    big = SLICE.model_copy(update={"cpus": 2, "memory_mib": 8000})
    snapshot = picture([], [node_line("n1", "mixed", **fields)])
    assert free_and_total(snapshot, big) == [(free, total)]
    assert snapshot.starts_at_once(big) is bool(free)


def test_a_job_that_took_all_the_memory_fills_its_node() -> None:
    """As where a partition has no DefMemPerCPU: nobody can be told to start there at once."""
    snapshot = picture([], [node_line("n1", "mixed", 1, memory="64000")])
    assert free_and_total(snapshot, SLICE) == [(0, 4)]
    assert not snapshot.starts_at_once(CPU)


# -- the site's own options ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 8), ({"constraint": "mig"}, 4), ({"constraint": "mig&new"}, 0),
        ({"constraint": "mig|new"}, 8), ({"exclude": "n[2-9]"}, 4), ({"exclude": "n1,n2"}, 0),
    ],
)  # fmt: skip
def test_only_nodes_that_the_options_admit_are_counted(options: dict[str, str], total: int) -> None:
    """Features and excluded nodes, of the site or of the shape."""
    nodes = [node_line("n1", "idle", features="mig,a100"), node_line("n2", "idle", features="new")]
    shape = SLICE.model_copy(update={"options": SlurmOptions(**options)})
    assert free_and_total(picture([], nodes), shape) == [(total, total)]
    site = SITE.model_copy(update={"options": SlurmOptions(**options)})
    assert free_and_total(replace(picture([], nodes), site=site), SLICE) == [(total, total)]
    assert bool(picture([], nodes).why_never(shape)) is (total == 0)


def test_options_are_passed_to_sbatch() -> None:
    """The shape's own in place of the site's; empty ones are not passed."""
    site = SITE.model_copy(update={"options": SlurmOptions(qos="teach", constraint="a100")})
    shape = SLICE.model_copy(update={"options": SlurmOptions(qos="exam", exclude="n9")})
    options = {option for option in site.options_of(shape, "everyone") if "=" in option}
    assert {"--qos=exam", "--constraint=a100", "--exclude=n9"} <= options
    assert not [option for option in options if option.startswith(("--reservation", "--wckey"))]


@pytest.mark.parametrize(
    "options",
    [
        {"constraint": "a100 --requeue"}, {"constraint": "a&b|c"}, {"constraint": "[a|b]"},
        {"exclude": "n1 n2"}, {"comment": "x"}, {"requeue": ""}, {"array": "0-9"},
    ],
)  # fmt: skip
def test_other_options_are_refused(options: dict[str, str]) -> None:
    """What the lab relies on, and what it could not count."""
    with pytest.raises(ValueError, match=next(iter(options))):
        SlurmOptions.model_validate(options)


# -- nodes that save power -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "takes", "will", "is_off"),
    [
        ("idle+powered_down", True, True, True), ("idle~", True, True, True),
        ("idle+cloud+powered_down", True, True, True), ("mixed#", True, True, True),
        ("mixed+not_responding+powering_up", True, True, True), ("idle+power_up", True, True, True),
        ("idle+powering_down", False, True, False), ("idle%", False, True, False),
        ("mixed+power_down", False, True, False), ("idle!", False, True, False),
        ("down+powered_down", False, False, True), ("down~", False, False, True),
        ("idle+drain+powered_down", False, False, True), ("idle*", False, False, False),
        ("mixed-", True, True, False), ("idle$", False, False, False),
        ("idle@", False, False, False), ("idle^", False, False, False),
    ],
)  # fmt: skip
def test_a_node_that_saves_power_is_free(state: str, takes: bool, will: bool, is_off: bool) -> None:
    """One that is off, or boots; not one that is being switched off, is down or drained."""
    (node,) = nodes_of(NODES, node_line("n1", state)).values()
    assert (node.takes_jobs, node.will_take_jobs, node.is_off) == (takes, will, is_off)


def test_how_long_a_node_takes_to_boot_is_said() -> None:
    """Where all that is free is switched off; not where a node is up as well."""
    asleep = node_line("n1", "idle+powered_down")
    snapshot = replace(picture([], [asleep]), rules=SlurmRules(resume_timeout_s=600.0))
    assert (snapshot.free(SLICE), snapshot.why_nothing_starts(SLICE)) == (4, "")
    assert "switched off to save power: a start takes up to 10 minutes" in snapshot.why_slow(SLICE)
    assert "up to 10 minutes" in snapshot.why_slow(CPU)
    assert "some minutes" in replace(snapshot, rules=SlurmRules(resume_timeout_s=None)).why_slow(
        SLICE
    )
    awake = picture([], [asleep, node_line("n2", "idle")])
    assert (awake.free(SLICE), awake.why_slow(SLICE)) == (8, "")
    going = picture([], [node_line("n1", "idle+powering_down")])
    assert (going.free(SLICE), going.why_slow(SLICE)) == (0, "")
    assert going.why_nothing_starts(SLICE) != DOWN


def test_who_waits_for_a_node_to_boot_is_told() -> None:
    """Until it is up: then the job is only made ready."""
    configuring = job_line(1, "CONFIGURING", node="n1")
    boots, is_up = (
        replace(
            picture([configuring], [node_line("n1", state)]),
            rules=SlurmRules(resume_timeout_s=90.0),
        )
        for state in ("mixed+not_responding+powering_up", "mixed")
    )
    assert "is being switched on, which takes up to" in boots.boot_message(boots.jobs[1])
    assert is_up.boot_message(is_up.jobs[1]) == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("ResumeProgram = x\nResumeTimeout           = 60 sec\n", 60.0), ("", None), ("x=1", None)],
)
def test_the_time_to_boot_is_slurms(text: str, seconds: float | None) -> None:
    """From `scontrol show config`; unknown where it is not told."""
    assert resume_timeout_in(text) == seconds
