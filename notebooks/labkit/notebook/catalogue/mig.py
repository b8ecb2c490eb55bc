"""Notebook 2: parts of what is held, neighbours, ways to share, packing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.machine.parts import GRAPH
from labkit.measuring.sharing import Way
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import AskedPoint, Curves, Experiment, Look, Points, PublishedRow
from labkit.records import Measurement

PLACES = {Way.TIME: 1, Way.SMS: 2, Way.MPS: 3, Way.SLICES: 4}
CERN_FP32 = {"7g-3g": 7 / 3, "3g-2g": 1.5, "2g-1g": 2.0}
CERN_SIMPLETRACK = {"3g-7g": 7 / 3, "2g-3g": 1.5, "1g-2g": 2.0}


def in_proportion(points: Points) -> Curves:
    """Time that rises as the SMs become fewer."""
    return {"in proportion to the SMs": [(x, x) for x in (1.0, max(point.x for point in points))]}


def per_unit(points: Points) -> Data:
    """Seconds times SMs: the same on part and whole if the rate follows the SMs."""
    samples = reading.pair("part", "whole")(points)
    small = [seconds / points[0].x for seconds in samples["part"]]
    return {"small per SM": small, "big per SM": samples["whole"]}


def bandwidth_shares(points: Points) -> Data:
    """The smallest part's share of the whole's bandwidth, and of its SMs."""
    samples = reading.pair("part", "whole")(points)
    both = zip(samples["part"], samples["whole"], strict=True)
    share = [whole_s / part_s for part_s, whole_s in both]
    return {"bandwidth share": share, "SM share": [1 / points[0].x for _ in share]}


def part_and_whole(points: Points) -> Data:
    """Seconds of the first kind's biggest batch: on the part, on the whole, and in proportion."""
    names = ("part", "whole", "part, in proportion")
    first = [point for point in points if point.series == points[0].series]
    part_s, whole_s = (record.samples_s for record in first[-1].records)
    assert first[-1].comparison is not None, "a compared step has one"
    larger = first[-1].comparison.band[1] / 1.1  # the claim's upper end is 10 % above this
    return dict(
        zip(names, (part_s, whole_s, [seconds / larger for seconds in part_s]), strict=True)
    )


def best_way(points: Points) -> Data:
    """The way that gained most, where one alone had the whole device (slices: one slice)."""
    graphs = [point for point in points if point.series in (GRAPH, "")]
    fair = [point for point in graphs if point.x != PLACES[Way.SMS]]
    if not fair:
        return {"together": (), "in turn": ()}
    alone, together = max(fair, key=lambda point: point.value).records
    rates = ([1 / seconds for seconds in record.samples_s] for record in (together, alone))
    return dict(zip(("together", "in turn"), rates, strict=True))


def wait_percentile(percent: float) -> Callable[[Measurement], float]:
    """A percentile of the requests' waiting time, in ms."""

    def read(record: Measurement) -> float:
        ordered = sorted(record.samples_s)
        return 1e3 * ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    return read


def tail_point(points: Points) -> Point:
    """At the first batch: the 99th percentile."""
    return replace(points[0], value=wait_percentile(99)(points[0].records[0]))


def by_batch(points: Points) -> Data:
    """The waiting time of a request, at the first batch and at the last."""
    ends = {"batch 1": points[0], "biggest batch": points[-1]}
    return {f"a request, {name}": point.records[0].samples_s for name, point in ends.items()}


EXPERIMENTS = (
    Experiment(
        key="MIG-1",
        title="fp32 product: fewer {unit}, longer time",
        question="How many times longer does it take on the smallest part?",
        x_label="how many times smaller the part",
        y_label="time over the whole's",
        unit="x",
        asked=reading.first,
        published=PublishedRow(
            "CERN part 5, A100 slices: fp32 by dcgmproftester, and simpletrack",
            {f"cern5.scaling.fp32.{name}": x for name, x in CERN_FP32.items()}
            | {f"cern5.simpletrack.15M.{name}": x for name, x in CERN_SIMPLETRACK.items()},
        ),
        data=per_unit,
        curves=in_proportion,
    ),
    Experiment(
        key="MIG-3",
        title="Copy: fewer {unit}, longer time",
        question="How many times longer does it take on the smallest part?",
        x_label="how many times smaller the part",
        y_label="time over the whole's",
        unit="x",
        asked=reading.first,
        published=PublishedRow(
            "CERN part 5, data sheets of real slices over 1g.5gb",
            {f"cern5.bandwidth-factor.{name}": x for name, x in (("7g", 7), ("3g", 3), ("2g", 2))},
        ),
        data=bandwidth_shares,
        curves=in_proportion,
    ),
    Experiment(
        key="MIG-5",
        title="A training step on {half} of {whole} {unit}",
        question="As the batch grows, does the ratio rise, stay flat, or fall?",
        x_label="batch",
        y_label="time over the whole's",
        published=PublishedRow(
            "CERN part 5, BERT fine-tuning: on half the slice, and on 3g of 7g (2.33)",
            {
                "cern5.train.2g-1g.2k.ratio": None,
                "cern5.train.4g-2g.2k.ratio": None,
                "cern5.train.7g-3g.10k.ratio": None,
            },
        ),
        data=part_and_whole,
        look=Look.LOG_X,
    ),
    Experiment(
        key="MIG-6",
        title="A call with busy neighbours ({copies} copies), {way}",
        question="How many times as long does a call take with busy neighbours?",
        x_label="copies at work",
        y_label="time over alone",
        unit="x",
        published=PublishedRow(
            "NVIDIA, BERT inference",
            {"nvidia.infer.mig7.latency": "7 slices (NVIDIA)"},
            "nvidia.infer.mig1.latency",
        ),
        data=reading.pair("crowded", "alone"),
        curves=lambda _: {"alone": [(0, 1.0)]},
        look=Look.BARS,
    ),
    Experiment(
        key="MIG-7",
        title="{copies} small trainings at once",
        question="{way}: how many times as much work do all copies do as one alone?",
        x_label="how they share",
        y_label="work over one alone's",
        unit="x",
        asked=reading.first,
        published=PublishedRow(
            "NVIDIA, 7 BERTs over one alone",
            {
                "nvidia.finetune.shared7.rate": str(Way.TIME),
                "nvidia.finetune.mig7.rate": str(Way.SLICES),
            },
            "nvidia.finetune.full.rate",
        ),
        data=best_way,
        curves=lambda _: {"one after another": [(0, 1.0)]},
        look=Look.BARS,
    ),
    Experiment(
        key="MIG-12",
        title="SMs at work, by packing of one A100",
        question="How many SMs does the best packing use?",
        x_label="packing",
        y_label="SMs",
        unit="SMs",
        asked=reading.at("the best"),
        curves=lambda _: {"an A100 without MIG: 108": [(0, 108.0)]},
        look=Look.BARS,
    ),
    Experiment(
        key="MIG-14",
        title="Inference: what a request waits, by batch",
        question="At batch 1, how many times the median is the 99th percentile?",
        x_label="batch",
        y_label="ms a request",
        unit="x",
        asked=AskedPoint(
            tail_point, lambda points: (0.0, wait_percentile(50)(points[0].records[0])), "ms"
        ),
        data=by_batch,
        also={
            "median": None,
            "90th percentile": wait_percentile(90),
            "99th percentile": wait_percentile(99),
        },
        look=Look.LOG_X | Look.LOG_Y | Look.OPTIONAL,
        are_samples_concurrent=True,
    ),
    Experiment(
        key="MIG-2",
        title="{type} product on {half} of {whole} {unit}",
        question="As the matrices grow, does the ratio rise to {ideal}, stay flat, or fall?",
        x_label="n",
        y_label="time over the whole's",
        published=PublishedRow(
            "CERN part 5, tensor cores: 7g over 3g (2.33), 3g over 2g (1.5)",
            {"cern5.scaling.fp16-tensor.7g-3g": None, "cern5.scaling.fp16-tensor.3g-2g": None},
        ),
        look=Look.LOG_X | Look.OPTIONAL,
    ),
    Experiment(
        key="MIG-8",
        title="Seven 1g.5gb together, over the whole A100 (published)",
        question="In NVIDIA's inference, how many times the whole GPU's rate do seven slices have?",
        x_label="what was run",
        y_label="seven slices over the whole GPU",
        unit="x",
        asked=reading.at("BERT, inference"),
        curves=lambda _: {"as the whole GPU": [(0, 1.0)]},
        look=Look.BARS | Look.OPTIONAL,
    ),
    Experiment(
        key="MIG-15",
        title="A training step of {batch}, by borrowed shape",
        question="How long does a step take on the last of them, {last}?",
        x_label="shape",
        y_label="ms",
        unit="ms",
        look=Look.BARS | Look.OPTIONAL,
    ),
)
