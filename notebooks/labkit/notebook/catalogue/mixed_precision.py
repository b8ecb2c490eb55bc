"""Notebook 3: what 16 bits hold, their speed, their gradients, their memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Look, Points, PublishedRow

ZERO = "became zero"


def errors_at_ends(points: Points) -> Data:
    """How far fp16's gradients are from the true ones, at a small scale over at a big one."""
    off = {point.x: reading.facts(point)["error"] for point in points}
    return {"error at 2^-10 over that at 2^10": [off[-10] / max(off[10], 1e-12)]}


def every_step(points: Points) -> Curves:
    """The loss scale at every step, the student's and PyTorch's, from the first point."""
    facts = points[0].records[0].setting
    both = {"your scale, every step": "trace", "PyTorch's GradScaler": "torch trace"}
    return {name: list(enumerate(facts[fact])) for name, fact in both.items()}


def around_the_ceiling(points: Points) -> tuple[float, float] | None:
    """The range of the scales after the first fall, of which each is a power of two."""
    scales = cast("Sequence[float]", points[0].records[0].setting.get("trace", ()))
    settled = next(
        (n for n, (now, then) in enumerate(itertools.pairwise(scales)) if then >= now), None
    )
    if settled is None:
        return None
    return min(scales[settled:]) / 3, max(scales[settled:]) * 3


def kept_with_amp(points: Points) -> Data:
    """What AMP keeps for the backward pass, over the two formats' own; without parameters."""
    kept_memory = {point.label: reading.facts(point)["kept"] for point in points}
    names = {"kept with AMP over pure bf16": "bf16", "kept with AMP over fp32": "fp32"}
    return {name: [kept_memory["AMP"] / kept_memory[base]] for name, base in names.items()}


EXPERIMENTS = (
    Experiment(
        key="MX-1",
        title="The largest number of each format",
        question="What is the largest number that fp16 can hold?",
        x_label="format",
        y_label="largest number",
        unit="",
        asked=reading.at("fp16"),
        published=PublishedRow("Dettmers 2023", {"dettmers.fp16.max": "fp16"}),
        look=Look.BARS | Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="MX-2",
        title="fp32 time over bf16 time of a matrix product",
        question="How many times as long does fp32 take with the biggest matrix?",
        x_label="matrix size n",
        y_label="fp32 over bf16",
        unit="x",
        data=reading.pair("fp32 time", "bf16 time", -1),
        curves=lambda _: {"no gain": [(0, 1.0)]},
        look=Look.LOG_X,
    ),
    Experiment(
        key="MX-5",
        title="Gradients that fp16 loses",
        question="What percentage of the gradients becomes zero at scale 2^-10?",
        x_label="loss scale, as a power of 2",
        y_label="gradients lost (%)",
        unit="%",
        asked=reading.at("2^-10"),
        data=errors_at_ends,
        also={ZERO: None, "became inf or nan": "inf"},
    ),
    Experiment(
        key="MX-7",
        title="The scale during training",
        question="At about which scale will it settle?",
        x_label="training step",
        y_label="loss scale",
        unit="",
        curves=every_step,
        ends=around_the_ceiling,
        look=Look.UNJOINED | Look.LOG_Y | Look.BINARY,
    ),
    Experiment(
        key="MX-9",
        title="Memory of one training step",
        question="What percentage of fp32's memory does AMP need?",
        x_label="format",
        y_label="MiB: a step's peak, or on a CPU what is kept for backward",
        unit="%",
        asked=reading.ratio("AMP", "fp32", "MiB", factor=100),
        data=kept_with_amp,
        look=Look.BARS,
    ),
    Experiment(
        key="MX-6",
        title="Gradients that bf16 loses",
        question="What percentage of the gradients does bf16 lose at scale 1?",
        x_label="loss scale, as a power of 2",
        y_label="gradients lost (%)",
        unit="%",
        asked=reading.at("2^0"),
        also={ZERO: None, "became inf or nan": "inf"},
        look=Look.OPTIONAL,
    ),
    Experiment(
        key="MX-11",
        title="The same training in four formats",
        question="What is the final loss of fp16 without a scale?",
        x_label="training step",
        y_label="loss",
        unit="loss",
        asked=reading.at("fp16, step 200"),
        look=Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="MX-8",
        title="AMP time over fp32 time of a training step",
        question="From narrow to wide layers, does the ratio rise, stay flat, or fall?",
        x_label="width of the layers",
        y_label="AMP over fp32",
        curves=lambda _: {"no gain": [(0, 1.0)]},
        look=Look.LOG_X | Look.OPTIONAL,
    ),
    Experiment(
        key="MX-4",
        title="What 16 bits gain",
        question="From left to right, does the gain rise, stay flat, or fall?",
        x_label="operations per byte (fp32)",
        y_label="fp32 time over 16-bit time",
        curves=lambda _: {"half the bytes": [(0, 2.0)]},
        look=Look.LOG_X | Look.OPTIONAL,
    ),
    Experiment(
        key="MX-10",
        title="Relative error of a matrix product",
        question="What relative error do you expect of TF32?",
        x_label="format",
        y_label="relative error{how}",
        unit="",
        asked=reading.at("tf32"),
        look=Look.BARS | Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="MX-3",
        title="Rate of the ordinary cores",
        question="From 16 to 64 bits, does the rate rise, stay flat, or fall?",
        x_label="format",
        y_label="TFLOP/s",
        look=Look.BARS | Look.OPTIONAL,
    ),
    *reading.small_model(
        "MX-12",
        "MX-13",
        "bf16",
        "fp32",
        ("bf16", "fp32", "format"),
        {"size of a number in bf16": "bits of a number"},
    ),
)
