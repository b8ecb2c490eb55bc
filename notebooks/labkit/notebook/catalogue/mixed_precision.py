"""Notebook 3: what 16 bits hold, their speed, their gradients, their memory."""

from __future__ import annotations

from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Points, PublishedRow

ZERO = "became zero"


def errors_at_ends(points: Points) -> Data:
    """How far fp16's gradients are from the true ones, at a small scale over at a big one."""
    off = {point.x: reading.facts(point)["error"] for point in points}
    return {"error at 2^-10 over that at 2^10": [off[-10] / max(off[10], 1e-12)]}


def traces(points: Points) -> tuple[list[float], list[float]]:
    """Both scales, step by step: the first point has all of them, older runs only its own."""
    known = reading.facts(points[0])
    if "trace" in known:
        return list(known["trace"]), list(known["torch trace"])  # type: ignore[call-overload]
    both = [reading.facts(point) for point in points]
    return [fact["scale"] for fact in both], [fact["torch"] for fact in both]


def every_step(points: Points) -> Curves:
    """The whole saw-tooth, and PyTorch's beside it."""
    if not points or "trace" not in reading.facts(points[0]):
        return {}
    own, torchs = traces(points)
    both = {"your scale, every step": own, "PyTorch's GradScaler": torchs}
    return {name: list(enumerate(scales)) for name, scales in both.items()}


AMP_OVER_FP32 = reading.AskedRatio("AMP", "fp32", factor=100)


def kept_with_amp(points: Points) -> Data:
    """What AMP keeps for the backward pass, over what pure bf16 keeps; no parameters in either."""
    kept = {point.label: reading.facts(point)["kept"] for point in points}
    return {"kept with AMP over pure bf16": [kept["AMP"] / kept["bf16"]]}


BF16_OVER_FP32 = reading.AskedRatio("bf16", "fp32")

EXPERIMENTS = (
    Experiment(
        key="MX-1",
        title="The largest number of each format",
        question="What is the largest number that fp16 can hold?",
        steps=(),
        x_label="format",
        y_label="largest number",
        unit="",
        asked=reading.at("fp16"),
        published=PublishedRow("Dettmers 2023", {"dettmers.fp16.max": "fp16"}),
        is_categorical=True,
        log_y=True,
    ),
    Experiment(
        key="MX-2",
        title="fp32 time over bf16 time of a matrix product",
        question="How many times as long does fp32 take with the biggest matrix?",
        steps=(),
        x_label="matrix size n",
        y_label="fp32 over bf16",
        unit="x",
        check="MX-2",
        data=reading.pair("fp32 time", "bf16 time", -1),
        curves=lambda _: {"no gain": [(0, 1.0)]},
        log_x=True,
    ),
    Experiment(
        key="MX-5",
        title="Gradients that fp16 loses",
        question="What percentage of the gradients becomes zero at scale 2^-10?",
        steps=(),
        x_label="loss scale, as a power of 2",
        y_label="gradients lost (%)",
        unit="%",
        asked=reading.at("2^-10"),
        check="MX-5",
        data=errors_at_ends,
        points_are=ZERO,
        also={"became inf or nan": lambda record: float(record.setting["inf"])},
    ),
    Experiment(
        key="MX-7",
        title="The scale during training",
        question="At about which scale will it settle?",
        steps=(),
        x_label="training step",
        y_label="loss scale",
        unit="",
        is_joined=False,
        curves=every_step,
        log_y=True,
    ),
    Experiment(
        key="MX-9",
        title="Memory of one training step",
        question="What percentage of fp32's memory does AMP need?",
        steps=(),
        x_label="format",
        y_label="kept for backward (MiB)",
        gpu_y_label="peak of a step (MiB)",
        points_unit="MiB",
        unit="%",
        asked=AMP_OVER_FP32.asked,
        height=AMP_OVER_FP32.height,
        check="MX-9",
        data=kept_with_amp,
        is_categorical=True,
    ),
    Experiment(
        key="MX-9-fits",
        title="Samples that fit a 1g.5gb (4.75 GiB)",
        question="How many samples fit with AMP?",
        steps=(),
        x_label="format",
        y_label="samples",
        unit="samples",
        asked=reading.at("AMP"),
        is_categorical=True,
    ),
    Experiment(
        key="MX-6",
        title="Gradients that bf16 loses",
        question="What percentage of the gradients does bf16 lose at scale 1?",
        steps=(),
        x_label="loss scale, as a power of 2",
        y_label="gradients lost (%)",
        unit="%",
        asked=reading.at("2^0"),
        is_optional=True,
        points_are=ZERO,
        also={"became inf or nan": lambda record: float(record.setting["inf"])},
    ),
    Experiment(
        key="MX-11",
        title="The same training in four formats",
        question="What is the final loss of fp16 without a scale?",
        steps=(),
        x_label="training step",
        y_label="loss",
        unit="loss",
        asked=reading.at("fp16, step 200"),
        is_optional=True,
        log_y=True,
    ),
    Experiment(
        key="MX-8",
        title="AMP time over fp32 time of a training step",
        question="From narrow to wide layers, does the ratio rise, stay flat, or fall?",
        steps=(),
        x_label="width of the layers",
        y_label="AMP over fp32",
        is_optional=True,
        curves=lambda _: {"no gain": [(0, 1.0)]},
        log_x=True,
    ),
    Experiment(
        key="MX-4",
        title="What 16 bits gain",
        question="From left to right, does the gain rise, stay flat, or fall?",
        steps=(),
        x_label="operations per byte (fp32)",
        y_label="fp32 time over 16-bit time",
        is_optional=True,
        curves=lambda _: {"half the bytes": [(0, 2.0)]},
        log_x=True,
    ),
    Experiment(
        key="MX-10",
        title="Relative error of a matrix product",
        question="What relative error do you expect of TF32?",
        steps=(),
        x_label="format",
        y_label="relative error{how}",
        unit="",
        asked=reading.at("tf32"),
        is_categorical=True,
        is_optional=True,
        log_y=True,
    ),
    Experiment(
        key="MX-3",
        title="Rate of the ordinary cores",
        question="From 16 to 64 bits, does the rate rise, stay flat, or fall?",
        steps=(),
        x_label="format",
        y_label="TFLOP/s",
        is_categorical=True,
        is_optional=True,
    ),
    Experiment(
        key="MX-12",
        title="A small model reads Python: bits per byte on held-out modules",
        question="How many bits per byte does bf16 end with?",
        steps=(),
        x_label="training step",
        y_label="bits per byte",
        unit="bits",
        asked=reading.at_the_end("bf16"),
        check="MX-12",
        data=reading.bits_at_the_end("bf16", "fp32"),
    ),
    Experiment(
        key="MX-13",
        title="Seconds to the lowest loss that every run reaches",
        question="How many times as long as fp32 does bf16 take to that loss?",
        steps=(),
        x_label="format",
        y_label="seconds of training",
        points_unit="s",
        unit="x",
        asked=BF16_OVER_FP32.asked,
        height=BF16_OVER_FP32.height,
        is_categorical=True,
    ),
)
