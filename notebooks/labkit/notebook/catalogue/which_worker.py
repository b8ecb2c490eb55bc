"""Notebook 7: which clock betrays a slow worker, and whether the loss would have told."""

from __future__ import annotations

import statistics

from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Experiment, Look, Points

SLOW, COMPUTING, WAITING = "worker 5", "own computing", "waiting for the first message"
FAULTY, REPAIRED = "with the fault", "repaired"


def slow_over_others(points: Points) -> Data:
    """What the throttled worker's step, computing and waiting are over the others' median."""
    facts = {point.label: reading.facts(point) for point in points}
    series = {}
    for name in ("step", COMPUTING, WAITING):
        healthy = [values[name] for label, values in facts.items() if label != SLOW]
        typical = statistics.median(healthy)
        ratio = facts[SLOW][name] / typical if typical else 1.0  # nobody waits, nobody less
        series[f"{name} of {SLOW} over the others'"] = [ratio]
    return series


def faulty_over_repaired(points: Points) -> Data:
    """The loss with the fault over that without, and what the repaired cluster has learned."""
    bits = {point.label: point.value for point in points}
    at_restart = reading.facts(reading.at(REPAIRED)(points))["at restart"]
    return {
        f"loss {FAULTY} over {REPAIRED}": [bits[FAULTY] / bits[REPAIRED]],
        "loss repaired over that at the restart": [bits[REPAIRED] / at_restart],
    }


EXPERIMENTS = (
    Experiment(
        key="WL-1",
        title="A step of each worker by the clock; worker 5 is throttled",
        question="Worker 5 computes four times as long. How many times worker 0's is its step?",
        x_label="worker",
        y_label="ms of a step (median)",
        unit="x",
        asked=reading.ratio(SLOW, "worker 0", "ms"),
        data=slow_over_others,
        also={"whole step": None, COMPUTING: COMPUTING, WAITING: WAITING},
        look=Look.UNJOINED | Look.LOG_Y,
    ),
    Experiment(
        key="WL-2",
        title="Your cluster's loss on held-out text, with its fault and repaired",
        question="In percent of the repaired cluster's: with which loss does yours end?",
        x_label="your cluster",
        y_label="bits per byte on held-out text",
        unit="%",
        asked=reading.ratio(FAULTY, REPAIRED, "bits", 100),
        data=faulty_over_repaired,
        look=Look.BARS,
    ),
)
