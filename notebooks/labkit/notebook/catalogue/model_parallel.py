"""Notebook 5: split products, what they send, what fits, and pipelines."""

from __future__ import annotations

import statistics

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Points


def of_one_rank(points: Points) -> Data:
    """How many times as many parameters two ranks hold."""
    return {"two ranks' parameters over one's": [points[1].value / max(1e-9, points[0].value)]}


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
        question="How far off is the input's gradient of the row split?",
        steps=(),
        x_label="split and pass",
        y_label="relative difference (0: 10⁻¹²)",
        unit="relative",
        asked=reading.at("split_rows, backward"),
        check="MP-1",
        data=reading.values("relative difference"),
        is_categorical=True,
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
        key="MP-5",
        title="Largest model in {mib} MiB a rank ({limit})",
        question="How many million parameters fit on two ranks?",
        steps=(),
        x_label="ranks",
        y_label="million parameters",
        unit="million",
        check="MP-5",
        data=of_one_rank,
        is_categorical=True,
    ),
    Experiment(
        key="MP-6",
        title="Pipeline of two stages, by micro-batches",
        question="At the best number of micro-batches, which part of the time remains?",
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
        key="MP-3",
        title="Speed-up of a layer split over two ranks",
        question="From narrow to wide: does the speed-up rise, stay flat, or fall?",
        steps=(),
        x_label="width",
        y_label="whole over split",
        is_optional=True,
        curves=lambda _: {"no gain": [(0, 1.0)]},
        log_x=True,
    ),
    Experiment(
        key="MP-4",
        title="A split layer in chunks, over the same in one piece",
        question="Which part of the time remains with chunks?",
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
        title="Micro-batches kept by the first of four stages, of 16",
        question="How many does 1F1B keep?",
        steps=(),
        x_label="schedule",
        y_label="micro-batches (counted)",
        unit="micro-batches",
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="MP-8",
        title="Numbers sent at batch 128, by what is split",
        question="How many million does the best combination send?",
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
        question="How many times as long does the way to the other rank take?",
        steps=(),
        x_label="where to",
        y_label="time over the copy in place",
        unit="x",
        is_categorical=True,
        is_optional=True,
        log_y=True,
    ),
)
