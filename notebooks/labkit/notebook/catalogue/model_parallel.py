"""Notebook 5: split products, what they send, what fills the memory, and pipelines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Points
from labkit.records import Measurement

OTHER_KINDS = ("gradients", "optimiser", "activations", "temporaries")
KINDS = ("parameters", *OTHER_KINDS)


def kind(name: str) -> Callable[[Measurement], float]:
    """MiB of one kind."""
    return lambda record: float(record.setting[name])


def with_recomputing(points: Points) -> Point | None:
    """What recomputing leaves of the plain step's bar, in percent."""
    whole = {point.label: sum(reading.facts(point)[kind] for kind in KINDS) for point in points}
    found = reading.at("recompute counted")(points)
    if found is None or "plain counted" not in whole:
        return None
    return replace(found, value=100 * whole[found.label] / whole["plain counted"])


def percent_of_plain(points: Points, percent: float) -> float:
    """How high that is drawn."""
    plain = reading.at("plain counted")(points)
    return (
        0.0 if plain is None else sum(reading.facts(plain)[kind] for kind in KINDS) * percent / 100
    )


def ledger_and_count(points: Points) -> Data:
    """Predicted over counted, of every kind in every bar; and what two of the ways leave."""
    facts = {point.label: reading.facts(point) for point in points}
    counted = {
        label[: -len(" counted")]: one for label, one in facts.items() if "computed" not in one
    }
    plain = counted["plain"]
    return {
        "predicted over counted": [
            facts[f"{name} predicted"][kind] / one[kind]
            for name, one in counted.items()
            for kind in KINDS[:-1]
        ],
        "optimiser's state of two ranks over one's": [
            counted["ZeRO-1 on 2"]["optimiser"] / plain["optimiser"]
        ],
        "activations of a quarter of the rows": [
            counted["4 micro-batches"]["activations"] / plain["activations"]
        ],
    }


def exact_and_sent(points: Points) -> Data:
    """How far the split pair is from the whole one, and what it sends."""
    facts = cast("Mapping[str, Any]", reading.facts(points[0]))
    return {
        "difference of output and input's gradient": list(facts["off"].values()),
        "numbers reduced in a step, over tokens times width": [facts["sent"]],
    }


GPIPE_OVER_1F1B = reading.AskedRatio("GPipe", "1F1B")


def u_curve(points: Points) -> Data:
    """The ends, the best between by the warm-up, and the lowest between by the rounds."""

    def warm(point: Point) -> float:
        record = point.records[0]
        return statistics.median(record.warmup_s or record.samples_s)

    between = points[1:-1]
    lowest = min(between, key=lambda point: point.records[0].median_s)
    picked = (points[0], min(between, key=warm), lowest, points[-1])
    names = ("1 micro-batch", "the best", "the lowest", "the most")
    return {name: one.records[0].samples_s for name, one in zip(names, picked, strict=True)}


def without_waiting(points: Points) -> Curves:
    """Two stages that only wait at the ends: (m + 1) / 2m."""
    return {"ideal: (m + 1) / 2m": reading.line(points, lambda m: (m + 1) / (2 * m))}


EXPERIMENTS = (
    Experiment(
        key="MP-1",
        title="Split products against the whole one, fp32",
        question="What is the relative error of the input's gradient with the row split?",
        steps=(),
        x_label="split and pass",
        y_label="relative difference (0: 10⁻¹²)",
        unit="",
        asked=reading.at("split_rows, backward"),
        check="MP-1",
        data=reading.values("relative difference"),
        is_categorical=True,
        log_y=True,
    ),
    Experiment(
        key="MP-3",
        title="Two layers, forward and backward, whole and split",
        question="How many ms does the split pair take with the most tokens?",
        steps=(),
        x_label="tokens",
        y_label="ms",
        unit="ms",
        check="MP-3",
        data=exact_and_sent,
        log_x=True,
        log_y=True,
    ),
    Experiment(
        key="MP-2",
        title="Batch at which both send the same",
        question="From which batch on does the row split send as much as data parallelism?",
        steps=(),
        x_label="split by",
        y_label="batch (counted)",
        unit="samples",
        asked=reading.at("rows"),
        check="MP-2",
        data=reading.values("crossover batch", "rows"),
        is_categorical=True,
    ),
    Experiment(
        key="MP-10",
        title="Memory of a training step, predicted and counted",
        question="What percentage of the plain step's bar remains with recomputing?",
        steps=(),
        x_label="step",
        y_label="MiB, each kind at its most",
        points_unit="MiB",
        unit="%",
        asked=with_recomputing,
        height=percent_of_plain,
        check="MP-10",
        data=ledger_and_count,
        points_are="parameters",
        also={name: kind(name) for name in OTHER_KINDS},
        is_categorical=True,
        is_stacked=True,
    ),
    Experiment(
        key="MP-6",
        title="Pipeline of two stages, by micro-batches",
        question="At the best number of micro-batches, what fraction of the time remains?",
        steps=(),
        x_label="micro-batches",
        y_label="time over the time with m=1",
        unit="x",
        asked=reading.lowest,
        check="MP-6",
        data=reading.on_free_cores(u_curve),
        curves=without_waiting,
        log_x=True,
    ),
    Experiment(
        key="MP-4",
        title="A split layer in chunks, over the same in one piece",
        question="What fraction of the time remains with chunks?",
        steps=(),
        x_label="chunks",
        y_label="chunked over plain",
        unit="x",
        is_categorical=True,
        is_optional=True,
        curves=lambda _: {"in one piece": [(0, 1.0)]},
    ),
    Experiment(
        key="MP-7",
        title="What two stages keep of 8 micro-batches",
        question="How many times as much as with 1F1B does the first stage keep with GPipe?",
        steps=(),
        x_label="schedule",
        y_label="activations (MiB, counted)",
        points_unit="MiB",
        unit="x",
        asked=GPIPE_OVER_1F1B.asked,
        height=GPIPE_OVER_1F1B.height,
        points_are="stage 0",
        also={"stage 1": kind("stage 1")},
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="MP-8",
        title="Numbers sent at batch 128, by what is split",
        question="How many million numbers does the best combination send?",
        steps=(),
        x_label="split in convolutions / in dense layers",
        y_label="million numbers (counted)",
        unit="million",
        asked=reading.lowest,
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="MP-9",
        title="16 MB: a copy in place, and to the other rank",
        question="How many times as long does the copy to the other rank take?",
        steps=(),
        x_label="where to",
        y_label="time over the copy in place",
        unit="x",
        is_categorical=True,
        is_optional=True,
        log_y=True,
    ),
)
