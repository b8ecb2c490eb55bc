"""Notebook 5: split products, what they send, what fills the memory, and pipelines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import AskedPoint, Curves, Experiment, Look, Points, PublishedRow

OTHER_KINDS = ("gradients", "optimiser", "activations", "temporaries")
KINDS = ("parameters", *OTHER_KINDS)
MEASURED = "measured"  # the series beside the formula's
GRADIENT = 1000.0 * 500  # of MP-2's layer


def counted(points: Points, step: str) -> Point:
    """A step's bar, with all of its kinds."""
    point = reading.at(f"{step} counted")(points)
    return replace(point, value=sum(reading.facts(point)[kind] for kind in KINDS))


def where_both_send_the_same(points: Points) -> Point:
    """Where the row split, which grows with the batch, reaches the gradient's numbers."""
    return replace(points[-1], value=GRADIENT)


def at_both_ends(points: Points) -> Data:
    """Whole and split, with the fewest tokens and with the most."""
    tokens = [point.x for point in points]
    ends = {"fewest tokens": min(tokens), "most tokens": max(tokens)}
    return {
        f"{end}, {'split' if ', split' in point.label else 'whole'}": point.records[0].samples_s
        for end, count in ends.items()
        for point in points
        if point.x == count
    }


def warm(point: Point) -> float:
    """The time before the rounds that are judged."""
    record = point.records[0]
    return statistics.median(record.warmup_s or record.samples_s)


def one_forward_one_backward(points: Points) -> Data:
    """Seconds of a step of GPipe and 1F1B, what their first ranks keep, and all gradients' norms.

    The norms are compared with GPipe's, layer by layer.
    """
    measured = {point.label: point for point in points if point.series == MEASURED}
    known_facts = measured["GPipe"].records[0].setting
    kept = cast("Mapping[str, Sequence[float]]", known_facts["kept"])
    apart = cast("Mapping[str, float]", known_facts["apart"])
    return {
        **{name: measured[name].records[0].samples_s for name in ("GPipe", "1F1B")},
        "kept by 1F1B's first rank over GPipe's": [kept["1F1B"][0] / kept["GPipe"][0]],
        "distance from GPipe's gradients": list(apart.values()),
    }


BLOCK = "sequence", "tensor"  # the ways that are compared
ROWS_KEPT, HEADS_KEPT = "norm and dropout", "attention"


def sent_by_blocks(points: Points) -> Data:
    """What sequence parallelism sends over tensor parallelism, and what a step with the latter is.

    That is its all-reduces each way, its bytes over a ring's, and every way's distance from the
    whole block.
    """
    sequence, tensor = (measured_at(label)(points) for label in BLOCK)
    formula = next(p for p in points if p.label == "tensor" and p.series != MEASURED)
    calls = cast("Mapping[str, Mapping[str, float]]", reading.facts(tensor)["calls"])
    return {
        "bytes of sequence over tensor": [sequence.value / tensor.value],
        "bytes of tensor over a ring's": [tensor.value / formula.value],
        "all-reduces of tensor, forward and backward": [
            calls[direction].get("all-reduce", 0) for direction in ("forward", "backward")
        ],
        "calls of tensor": [sum(sum(kinds.values()) for kinds in calls.values())],
        "distance from the whole block": [
            reading.facts(point)["apart"] for point in points if point.series == MEASURED
        ],
    }


def kept_by_blocks(points: Points) -> Data:
    """Times the ranks, what sequence parallelism keeps of norm and dropout over tensor's."""
    by_way = {point.label: reading.facts(point) for point in points}
    sequence, tensor = (by_way[label] for label in BLOCK)
    ranks = len(cast("Sequence[object]", sequence["ranks"]))
    return {
        "share of norm and dropout, times the ranks": [
            ranks * sequence[ROWS_KEPT] / tensor[ROWS_KEPT]
        ],
        "distance from the whole block": [
            facts["apart"] for facts in by_way.values() if "apart" in facts
        ],
        "attention, one rank over tensor": [by_way["whole"][HEADS_KEPT] / tensor[HEADS_KEPT]],
    }


def all_kept(points: Points, way: str) -> Point:
    """A way's bar, with both of its parts."""
    point = reading.at(way)(points)
    return replace(point, value=sum(reading.facts(point)[part] for part in (ROWS_KEPT, HEADS_KEPT)))


def measured_at(label: str) -> Callable[[Points], Point]:
    """The measured point of this label."""
    return lambda points: next(
        point for point in points if point.label == label and point.series == MEASURED
    )


def beside_the_ideal(points: Points) -> Data:
    """The best number of micro-batches by the warm-up, its ideal, and one, round by round."""
    best = min(points, key=warm)
    stages = cast("Mapping[str, Sequence[float]]", reading.facts(best)["stages"])
    times = int(best.x) + 1
    ideal = [times * seconds for seconds in stages[best.label]]
    uncut = next(point for point in points if point.x == 1)
    series: dict[str, Sequence[float]] = {
        "the best": best.records[0].samples_s,
        "its ideal": ideal,
        "one micro-batch": uncut.records[0].samples_s,
    }
    if "side by side" in reading.facts(best):
        share = reading.facts(best)["side by side"]
        series["share of its work that one stage does beside the other"] = [share]
    return series


def ideals(points: Points) -> Curves:
    """(m + 1) times the slowest stage's time at that micro-batch, over the time with m = 1."""
    stages = cast("Mapping[str, Sequence[float]]", reading.facts(points[0])["stages"])
    unsplit_s = points[0].records[0].median_s
    line = [(p.x, (p.x + 1) * statistics.median(stages[p.label]) / unsplit_s) for p in points]
    return {"ideal: (m + 1) times the slowest stage": line}


EXPERIMENTS = (
    Experiment(
        key="MP-1",
        title="Split products against the whole one, fp32",
        question="What is the relative error of the input's gradient with the row split?",
        x_label="split and pass",
        y_label="relative difference (0 is drawn as 10⁻¹²)",
        unit="",
        asked=reading.at("split_rows, backward"),
        look=Look.BARS | Look.LOG_Y,
    ),
    Experiment(
        key="MP-3",
        title="Two layers, forward and backward, whole and split",
        question="How many ms does the split pair take with the most tokens?",
        x_label="tokens",
        y_label="ms",
        unit="ms",
        data=reading.on_free_cores(at_both_ends),
        look=Look.LOG_X | Look.LOG_Y,
    ),
    Experiment(
        key="MP-2",
        title="What a split layer sends, by batch",
        question="From which batch on does the row split send as much as data parallelism?",
        x_label="batch",
        y_label="numbers sent (counted)",
        unit="samples",
        asked=AskedPoint(
            where_both_send_the_same,
            lambda points: (0.0, points[0].value / points[0].x),
            "numbers",
        ),
        published=PublishedRow(
            "Dettmers 2014, batch 128", {"dettmers.mp.rows": 128, "dettmers.mp.columns": 128}
        ),
        also={"row split": None, "column split": "columns"},
        curves=lambda points: {"data parallelism": [(point.x, GRADIENT) for point in points]},
    ),
    Experiment(
        key="MP-10",
        title="Memory of a training step, predicted and counted",
        question="What percentage of the plain step's bar remains with recomputing?",
        x_label="step",
        y_label="MiB, each kind at its most",
        unit="%",
        asked=AskedPoint(
            lambda points: counted(points, "recompute"),
            lambda points: (0.0, counted(points, "plain").value / 100),
            "MiB",
        ),
        also={"parameters": None, **{name: name for name in OTHER_KINDS}},
        look=Look.BARS | Look.STACKED,
    ),
    Experiment(
        key="MP-6",
        title="Pipeline of two stages, by micro-batches",
        question="At the best number of micro-batches, what fraction of the time remains?",
        x_label="micro-batches",
        y_label="time over the time with m=1",
        unit="x",
        asked=reading.lowest,
        data=reading.on_free_cores(beside_the_ideal),
        curves=ideals,
        look=Look.LOG_X,
    ),
    Experiment(
        key="MP-11",
        title="How long two ranks wait, by the pipeline's schedule",
        question="What percentage of their time do the ranks wait with zero bubble?",
        x_label="schedule",
        y_label="waiting (% of the ranks' time)",
        unit="%",
        asked=measured_at("zero bubble"),
        data=one_forward_one_backward,
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-12",
        title="What a rank sends in a step of a split block",
        question="How many S does a rank send with sequence parallelism?",
        x_label="way",
        y_label="sent, in units of S (counted)",
        unit="S",
        asked=measured_at("sequence"),
        data=sent_by_blocks,
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-13",
        title="What autograd keeps of a split block",
        question="What percentage of tensor parallelism's bytes does sequence parallelism keep, "
        "gathering anew?",
        x_label="way",
        y_label="kept for the backward pass (MiB, counted)",
        unit="%",
        asked=AskedPoint(
            lambda points: all_kept(points, "sequence, gathered anew"),
            lambda points: (0.0, all_kept(points, "tensor").value / 100),
            "MiB",
        ),
        also={ROWS_KEPT: None, HEADS_KEPT: HEADS_KEPT},
        data=kept_by_blocks,
        look=Look.BARS | Look.STACKED | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-14",
        title="A block, whole and split, forward and backward",
        question="What fraction of the whole block's time does tensor parallelism take?",
        x_label="way",
        y_label="ms",
        unit="x",
        asked=reading.ratio("tensor", "whole", "ms"),
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-4",
        title="A split layer in chunks, over the same in one piece",
        question="What fraction of the time remains with chunks?",
        x_label="chunks",
        y_label="chunked over plain",
        unit="x",
        curves=lambda _: {"in one piece": [(0, 1.0)]},
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-7",
        title="What two stages keep of 8 micro-batches",
        question="How many times as much does the first stage keep with GPipe as with 1F1B?",
        x_label="schedule",
        y_label="activations (MiB, counted)",
        unit="x",
        asked=reading.ratio("GPipe", "1F1B", "MiB"),
        also={"stage 0": None, "stage 1": "stage 1"},
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-8",
        title="Numbers sent at batch 128, by what is split",
        question="How many million numbers does the best combination send?",
        x_label="split in convolutions / in dense layers",
        y_label="million numbers (counted)",
        unit="million",
        asked=reading.lowest,
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MP-9",
        title="16 MB: a copy in place, and to the other rank",
        question="How many times as long does the copy to the other rank take?",
        x_label="where to",
        y_label="time over the copy in place",
        unit="x",
        look=Look.BARS | Look.LOG_Y | Look.OPTIONAL,
    ),
)
