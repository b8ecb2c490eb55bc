"""Notebook 6: a job's time and memory, on parts of what is held and by batch."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.panel.experiment import Curves, Experiment, Look, Points


def on_all(points: Points) -> Point:
    """The point measured on all SMs of the slice, as the GPU's own time."""
    return next(point for point in reversed(points) if not point.series)


def law(points: Points) -> Curves:
    """T(s) = a + b / s through the smallest part and all, where all is faster."""
    graphs = [point for point in points if not point.series]
    if len(graphs) < 2 or graphs[0].value <= graphs[-1].value:
        return {}
    small, big = graphs[0], graphs[-1]
    b = (small.value - big.value) / (1 / small.x - 1 / big.x)
    sizes = [small.x * (big.x / small.x) ** (step / 40) for step in range(41)]
    line = [(size, big.value + b * (1 / size - 1 / big.x)) for size in sizes]
    return {"a + b / s, through the smallest part and all": line}


def by_sms(points: Points) -> Data:
    """Seconds, and SMs (or threads) times seconds, on all and on the smallest part, if any."""
    graphs = [point for point in points if not point.series]
    if len(graphs) < 2:
        return dict.fromkeys(("all: SMs x time", "a part: SMs x time"), ())
    series: dict[str, Sequence[float]] = {}
    for name, point in {"all": graphs[-1], "a part": graphs[0]}.items():
        samples_s = point.records[0].samples_s
        series[f"{name}: time"] = samples_s
        series[f"{name}: SMs x time"] = [point.x * seconds for seconds in samples_s]
    return series


def memory_growth(points: Points) -> Data:
    """The memory of the biggest batch over that of the smallest, in all and for each sample."""
    memory_ratio = points[-1].value / points[0].value
    batch_ratio = points[-1].x / points[0].x
    names = ("memory, biggest over smallest batch", "memory a sample, biggest over smallest batch")
    return dict(zip(names, ([memory_ratio], [memory_ratio / batch_ratio]), strict=True))


def seconds_per_sample(points: Points) -> Data:
    """Seconds for each sample, in the biggest batch and in the smallest."""
    ends = {"biggest batch, a sample": points[-1], "smallest batch, a sample": points[0]}
    return {
        name: [seconds / point.x for seconds in point.records[0].samples_s]
        for name, point in ends.items()
    }


EXPERIMENTS = (
    Experiment(
        key="CH-1",
        title="A step of {batch}, by {unit}",
        question="How long does a step take on all {whole} {unit}?",
        x_label="SMs, or threads of a CPU",
        y_label="ms",
        unit="ms",
        asked=on_all,
        data=by_sms,
        curves=law,
        look=Look.UNJOINED,
    ),
    Experiment(
        key="CH-2",
        title="Peak memory by batch",
        question="How much memory does batch {largest} need?",
        x_label="batch",
        y_label="MiB",
        unit="MiB",
        data=memory_growth,
    ),
    Experiment(
        key="CH-3",
        title="Time per sample, by batch",
        question="As the batch grows, does the time per sample rise, stay flat, or fall?",
        x_label="batch",
        y_label="ms per sample",
        data=seconds_per_sample,
        look=Look.LOG_X,
    ),
    Experiment(
        key="CH-4",
        title="A step of {batch}, by borrowed shape",
        question="From the smallest shape to the largest, does the time rise, stay flat, or fall?",
        x_label="{unit} of an A100's slice of that shape",
        y_label="ms",
    ),
)
