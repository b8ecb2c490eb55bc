"""What is drawn for a student's job in notebook 6, such that every shape wins for somebody.

A job's length is that on a whole A100, in hours, so that the same numbers mean the same on every
device; the deadline is a multiple of it. A 3g.20gb takes as much memory as a 4g.20gb and has fewer
SMs: it can win only where the queue for it is shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.exercises.packing import A100

QUEUES: Mapping[str, tuple[float, ...]] = {
    "a class holds the larger slices": (0, 1, 4, 6, 8),
    "two classes hold slices, and one whole GPU is free soon": (0, 0.5, 4, 4, 1),
    "small slices are wanted, and few people ask for large ones": (0.5, 0, 2, 1, 1),
    "others wait for whole GPUs": (0.5, 1, 0.5, 6, 12),
}
"""The wait in hours for each shape, from the smallest to the largest, by the hour of the day."""

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "full_h": (0.1, 0.25, 4.0),
    "times_due": (2, 8, 10),
    "an_hour": (0.5, 2.0, 4.0),
    "queue": tuple(QUEUES),
}
"""Hours on a whole A100, how many times as many until the deadline, the slice-hours that an hour of
the student is worth, and the queue."""


def waits_h(queue: str) -> dict[str, float]:
    """The hours to wait for each shape in one of the queues."""
    return dict(zip(A100, map(float, QUEUES[queue]), strict=True))
