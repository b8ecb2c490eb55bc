"""Notebook 4c: what ranks hold and send when weights, gradients and moments are divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Experiment, Look, Points

MANY_UNITS, ONE_UNIT = "16 units", "one unit"


def peaks_by_units(points: Points) -> Data:
    """Ratios of your ways' peaks: what dividing gradients, and weights, leaves of the memory."""
    mib = {(point.label, point.series): point.value for point in points}
    series = {
        f"ZeRO-2 over ZeRO-1, in {units}": [mib["ZeRO-2", units] / mib["ZeRO-1", units]]
        for units in (MANY_UNITS, ONE_UNIT)
    }
    own_peaks = mib["ZeRO-3", MANY_UNITS], mib["ZeRO-2", MANY_UNITS]
    series[f"ZeRO-3 over ZeRO-2, in {MANY_UNITS}"] = [own_peaks[0] / own_peaks[1]]
    return series


def sent_over_plain(points: Points) -> Data:
    """What each way sends over plain's bytes, and how far its weights end from plain's."""
    plain = reading.at("plain")(points).value
    series = {f"bytes of {p.label} over plain": [p.value / plain] for p in points if p.records}
    apart = [reading.facts(point)["apart"] for point in points if "apart" in reading.facts(point)]
    return {**series, "plain's bytes over S": [plain], "distance from plain's weights": apart}


def few_and_many_units(points: Points) -> Data:
    """Seconds of a step with the fewest units and with the most, and whether the bytes agree."""
    by_units = sorted((p for p in points if p.label != "plain"), key=lambda point: point.x)
    coarsest, finest = by_units[0], by_units[-1]
    megabytes, messages = (
        cast("Mapping[str, float]", reading.facts(coarsest)[name]) for name in ("sent", "messages")
    )
    return {
        "fewest units": coarsest.records[0].samples_s,
        "most units": finest.records[0].samples_s,
        "bytes of most units over fewest": [megabytes[finest.label] / megabytes[coarsest.label]],
        "messages of most units over fewest": [messages[finest.label] / messages[coarsest.label]],
    }


EXPERIMENTS = (
    Experiment(
        key="SH-1",
        title="Most memory at one moment, by way and by units",
        question="In 16 units, what percentage of plain's peak does your ZeRO-3 need?",
        x_label="way",
        y_label="peak MiB of tensors, on a rank",
        unit="%",
        asked=reading.ratio("ZeRO-3", "plain", "MiB", 100),
        data=peaks_by_units,
        look=Look.BARS,
    ),
    Experiment(
        key="SH-2",
        title="Bytes that a rank sends in a step",
        question="How many times the gradient's size S does fully_shard send?",
        x_label="way",
        y_label="sent, in units of S (counted)",
        unit="S",
        asked=reading.at("fully_shard"),
        data=sent_over_plain,
        look=Look.BARS,
    ),
    Experiment(
        key="SH-3",
        title="A step of ZeRO-3, by the number of units",
        question="How many ms does a step take in 64 units?",
        x_label="units",
        y_label="ms",
        unit="ms",
        asked=reading.at("64 units"),
        data=few_and_many_units,
        look=Look.LOG_X | Look.LOG_Y,
    ),
)
