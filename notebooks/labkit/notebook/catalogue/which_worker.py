"""Notebook 7: which clock betrays a slow worker, and whether the loss would have told."""

from __future__ import annotations

import statistics

from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Experiment, Look, Points

SLOW, NEXT = "worker 5", "worker 6"  # which waits for what the slow one sends
COMPUTING, WAITING = "own computing", "waiting for the first message"
FAULTY, REPAIRED = "with the fault", "repaired"


def slow_over_others(points: Points) -> Data:
    """What the slow worker's step and computing, and its neighbour's waiting, are over the others'.

    The others are the median of the six that are neither.
    """
    facts = {point.label: reading.facts(point) for point in points}
    series = {}
    for name, label in (("step", SLOW), (COMPUTING, SLOW), (WAITING, NEXT)):
        others = [values[name] for worker, values in facts.items() if worker not in (SLOW, NEXT)]
        typical = statistics.median(others)
        ratio = facts[label][name] / typical if typical else 1.0  # nobody waits, nobody more
        series[f"{name} of {label} over the others'"] = [ratio]
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
        question="Worker 5 computes for three to four times as long. How many times worker 0's is "
        "its step?",
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
