"""Slurm's output, as 22.05.8 and 24.11.5 print it, and what a picture makes of it."""

from typing import Any

import pytest

from miglab_api.slurm_site import site_of
from miglab_spawner.backends.slurm.estimate import distribution_of, estimate
from miglab_spawner.backends.slurm.picture import ClusterPicture
from miglab_spawner.backends.slurm.records import Tag, gres_of, jobs_of, nodes_of, tag_of
from miglab_spawner.backends.slurm.words import NEVER, why_it_waits

NOW = 1_795_313_000.0
TAG = Tag("miglab", "ada", "", "everyone", "1g.5gb", "t1")
SITE = site_of(
    {
        "partition": "lab",
        "shapes": {
            "1g.5gb": {"gres": "gpu:1g.5gb:1"},
            "2x1g.5gb": {"gres": "gpu:1g.5gb:2", "time_limit_min": 30},
            "cpu": {},
        },
    }
)


def job_line(number: int, state: str, **fields: str) -> str:
    """A line of squeue; 22.05 writes `gres:gpu:…`, 24.11 `gres/gpu:…`."""
    line = {
        "reason": "None", "submit": "1795313000", "start": "N/A", "end": "N/A",
        "priority": "4294901759", "gres": "gres:gpu:1g.5gb:1", "user": "root", "node": "",
        "partition": "lab", "comment": "(null)", **fields,
    }  # fmt: skip
    return "|".join([str(number), state, *line.values()]) + "|"


def node_line(name: str, state: str, used: int, **fields: str) -> str:
    """A line of sinfo -N."""
    gres = fields.get("gres", "gpu:1g.5gb:4(S:0),gpu:3g.20gb:1")
    held = fields.get("held", f"gpu:1g.5gb:{used}(IDX:0-{used}),gpu:3g.20gb:0(IDX:N/A)")
    partition = fields.get("partition", "lab*")
    return f"{name}|10.0.0.1|{state}|{gres}|{held}|{partition}|{fields.get('up', 'up')}|a|b|"


def picture(jobs: list[str], nodes: list[str]) -> ClusterPicture:
    """What the site looks like with these lines."""
    return ClusterPicture(0.0, NOW, SITE, jobs_of("\n".join(jobs)), nodes_of("\n".join(nodes)))


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
    """Every field, with a comment that holds the separator."""
    tag = Tag("miglab", "a|b", "", "everyone", "1g.5gb", "t|1")
    line = job_line(
        7, "RUNNING", start="1795313010", end="1795316610", node="n1", comment=tag.as_comment()
    )
    (job,) = jobs_of(line).values()
    assert (job.id, job.state, job.nodes, job.tag) == (7, "RUNNING", "n1", tag)
    assert (job.started_at, job.ends_at) == (1795313010.0, 1795316610.0)
    assert dict(job.gres) == {"gpu:1g.5gb": 1}


@pytest.mark.parametrize("text", ["", "\n", "slurm_load_jobs error", "x|y|z", "||||||||||||"])
def test_what_is_no_job_is_left_out(text: str):
    """Empty, unfinished and foreign lines."""
    assert jobs_of(text) == {}
    assert nodes_of("squeue: error") == {}


@pytest.mark.parametrize(
    "comment", ["", "(null)", "{}", "[]", '{"miglab": 2}', '{"miglab": 1}', "7"]
)
def test_what_is_no_tag_of_ours(comment: str):
    """A site's own comments, and half of ours."""
    assert tag_of(comment) is None


def test_a_tag_comes_back():
    """What is written into the comment is read from it, in any script."""
    tag = Tag("miglab", "zoë", "späte", "бг", "1g.5gb", "x")
    assert tag_of(tag.as_comment()) == tag


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
    (node,) = nodes_of(node_line("n1", state, 0)).values()
    assert node.takes_jobs is takes
    assert node.reason == "a|b"


def test_free_and_total_leave_out_what_cannot_be_had():
    """Free slices count on open nodes only, and two slices must lie on one node."""
    nodes = [
        node_line("n1", "mixed", 3),
        node_line("n2", "idle+drain", 0),
        node_line("n3", "mixed+reserved", 1),
        node_line("n4", "mixed", 1),
    ]
    seen = picture([], nodes)
    one, two = SITE.shapes["1g.5gb"], SITE.shapes["2x1g.5gb"]
    assert (seen.free(one), seen.total(one)) == (4, 16)
    assert (seen.free(two), seen.total(two)) == (1, 8)


def test_the_order_is_slurms():
    """By priority, then number; who waits for a limit of their own holds up nobody."""
    waiting = [
        job_line(1, "PENDING", reason="Priority", priority="5"),
        job_line(2, "PENDING", reason="Resources", priority="9"),
        job_line(3, "PENDING", reason="QOSMaxGRESPerUser", priority="99"),
        job_line(4, "PENDING", reason="Priority", priority="5"),
        job_line(5, "PENDING", gres="gres/gpu:3g.20gb:1", priority="50"),
    ]
    seen = picture(waiting, [node_line("n1", "mixed", 4)])
    assert [job.id for job in seen.queue(SITE.shapes["1g.5gb"])] == [2, 1, 4]


def test_who_comes_later_starts_at_once_only_before_the_first_planned_start():
    """Backfill plans whole nodes: a free slice is nobody's to take for longer than that."""
    nodes = [node_line("n1", "mixed", 0, held="gpu:1g.5gb:1(IDX:0),gpu:3g.20gb:1(IDX:4)")]
    wants_3g: dict[str, Any] = {"gres": "gres:gpu:3g.20gb:1", "reason": "Resources"}
    in_an_hour = picture([job_line(1, "PENDING", start=str(int(NOW) + 3600), **wants_3g)], nodes)
    assert not in_an_hour.starts_at_once(SITE.shapes["1g.5gb"])  # two hours
    assert in_an_hour.starts_at_once(SITE.shapes["2x1g.5gb"])  # half an hour
    unplanned = picture([job_line(1, "PENDING", **wants_3g)], nodes)
    assert not unplanned.starts_at_once(SITE.shapes["2x1g.5gb"])


def test_the_estimate_counts_slices_and_not_nodes():
    """Eight jobs that end together start eight, whatever `squeue --start` says."""
    running = [
        job_line(n, "RUNNING", start=str(int(NOW) - 600), end=str(int(NOW) + 600), node="n1")
        for n in range(1, 5)
    ]
    waiting = [job_line(n, "PENDING", reason="Priority") for n in range(5, 9)]
    seen = picture(running + waiting, [node_line("n1", "mixed", 4)])
    last = estimate(seen, SITE.shapes["1g.5gb"], 8, ())
    assert last is not None
    assert 600 <= last.high_s <= 720
    behind = estimate(seen, SITE.shapes["1g.5gb"], None, ())
    assert behind is not None
    assert behind.high_s > 7200
    early = estimate(seen, SITE.shapes["1g.5gb"], 5, [700.0] * 6)
    assert early is not None
    assert early.likely_s == pytest.approx(100.0)


def test_the_range_is_of_people_who_leave_independently():
    """The first of four slices is free much sooner than the slowest leaves, and never negative."""
    running = [
        job_line(n, "RUNNING", start=str(int(NOW)), end=str(int(NOW) + 7200), node="n1")
        for n in range(1, 5)
    ]
    seen = picture([*running, job_line(5, "PENDING")], [node_line("n1", "mixed", 4)])
    first = estimate(seen, SITE.shapes["1g.5gb"], 5, [float(n) for n in range(1000)])
    assert first is not None
    assert 0 <= first.low_s < first.likely_s < 400
    assert first.high_s < 800
    assert first == estimate(seen, SITE.shapes["1g.5gb"], 5, [float(n) for n in range(1000)])


def test_who_is_still_there_stays_longer_than_those_who_left():
    """Two who left after 10 and 20 s; one has been there for 15, another for 30."""
    assert distribution_of([10.0, 20.0], [15.0, 30.0]) == ([10.0, 20.0], [0.25, 0.625])
    assert distribution_of([10.0, 20.0], []) == ([10.0, 20.0], [0.5, 1.0])


def test_a_job_on_its_way_out_frees_its_slice_in_a_moment():
    """While it is completing nothing starts on its node, and the estimate is still there."""
    ending = job_line(1, "COMPLETING", start=str(int(NOW) - 60), end=str(int(NOW)), node="n1")
    seen = picture([ending, job_line(2, "PENDING")], [node_line("n1", "mixed+completing", 0)])
    found = estimate(seen, SITE.shapes["1g.5gb"], 2, ())
    assert found is not None
    assert (found.low_s, found.likely_s) == (0.0, 0.0)
    assert seen.free(SITE.shapes["1g.5gb"]) == 0


def test_without_an_open_node_nobody_knows():
    """All drained: no estimate, and not a wrong one."""
    seen = picture([job_line(1, "PENDING")], [node_line("n1", "mixed+drain", 4)])
    assert estimate(seen, SITE.shapes["1g.5gb"], 1, ()) is None


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "no partition"),
        ([node_line("n1", "idle", 0, up="down")], "closed"),
        ([node_line("n1", "idle", 0, gres="gpu:7g.40gb:1")], "No node"),
        ([node_line("n1", "idle", 0)], ""),
        ([node_line("n1", "idle+drain", 4)], ""),
    ],
)
def test_what_can_never_run(nodes: list[str], words: str):
    """A partition that is not there or closed, a gres that no node has; drained is not never."""
    said = picture([], nodes).why_never(SITE.shapes["1g.5gb"])
    assert words in said
    assert bool(words) is bool(said)


def test_reasons_in_words():
    """Waiting for room needs no words, what can never run says so, the unknown is passed on."""
    assert why_it_waits("Priority").message == ""
    assert "being serviced" in why_it_waits("ReqNodeNotAvail,_UnavailableNodes:n1").message
    assert all(why_it_waits(reason).never for reason in NEVER)
    assert "Nonsense" in why_it_waits("Nonsense").message


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"partition": "lab", "shapes": {"1g.5gb": {}}}, "gres"),
        ({"partition": "lab", "shapes": {"1g.5gb": {"gres": "gpu:1g.5gb"}}}, "gres"),
        ({"shapes": {"cpu": {}}}, "partition"),
        ({"nonsense": 1}, "nonsense"),
        ({"partition": "a b"}, "partition"),
        ({"partition": "lab", "shapes": {"cpu": {}}, "courses": {"ml": {"shapes": ["8g"]}}}, "8g"),
        ({"courses": {"ml": {}}}, "cpu"),
    ],
)
def test_a_table_that_makes_no_sense(table: dict[str, Any], word: str):
    """A wrong key or value is an error that names it."""
    with pytest.raises(ValueError, match=word):
        site_of(table)
