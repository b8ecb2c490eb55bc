"""Describe jobs for the workers and run them: what a measurement sends, and where to.

Nothing here imports torch; the devices are asked about in a child.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from labkit import errors
from labkit.arguments import name_of, public
from labkit.machine import lease
from labkit.machine.readings import Readings
from labkit.run import source
from labkit.run.borrowed import BorrowedCrew
from labkit.run.child import Crew

Function = Callable[..., Any]
Workers = AbstractAsyncContextManager[Crew | BorrowedCrew]
TIMEOUT_S = 120.0
BUDGET_S = 10.0
SAMPLES, QUICK_SAMPLES = 20, 5


@public
def is_quick() -> bool:
    """Whether LAB_QUICK asks for the small budget of a test run."""
    return os.environ.get("LAB_QUICK") == "1"


@public
def rounds() -> int:
    """How many rounds a sweep takes: as many as a measurement takes samples.

    20, or 5 under LAB_QUICK (too few for a verdict).
    """
    return QUICK_SAMPLES if is_quick() else SAMPLES


def make_job(
    kind: str, functions: Sequence[Function], arguments: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Describe a job for the worker."""
    names = distinct_names(functions)
    packed = {name: source.pack(function) for name, function in zip(names, functions, strict=True)}
    sent = {name: source.pack_value(value, name, names[0]) for name, value in arguments.items()}
    defaults = {
        "looks": [SAMPLES],
        "band": [0.0, 0.0],
        "budget_s": BUDGET_S,
        "cold": True,
    }
    return {
        "kind": kind,
        "functions": packed,
        "arguments": sent,
        "backend": "gloo",
        **defaults,
        **options,
    }


def distinct_names(functions: Sequence[Function]) -> list[str]:
    names = [name_of(function) for function in functions]
    return (
        names
        if len(set(names)) == len(names)
        else [f"{name} {index}" for index, name in enumerate(names, 1)]
    )


def workers(
    job: Mapping[str, Any],
    added: Sequence[Mapping[str, str]],
    timeout_s: float,
    shape: str | None = None,
) -> Workers:
    """The workers of a job: on what this server holds, or on slices of a shape borrowed for it.

    Args:
        job: what they do.
        added: for each of them, what its environment gets here.
        timeout_s: how long they may take.
        shape: what to borrow.
    """
    if shape is None:
        return Crew(job, added, timeout_s)
    return BorrowedCrew(job, len(added), shape, timeout_s)


async def run_job(
    starting: Workers, readings: Readings, on_update: Callable[[], None] = lambda: None
) -> None:
    """Let workers run to their end, filling `readings`.

    Raises:
        LabError: with `kept` left to the caller, who knows what record the readings make.
        LeaseGone: the pool says the slice was taken back, whatever CUDA made of that.
    """
    try:
        async with starting as crew:
            async for rank, message in crew.messages():
                readings.take(rank, message)
                if message["type"] in ("turns", "stage", "warm"):
                    on_update()
    except (
        errors.StudentError,
        errors.ChildKilled,
        errors.ChildTimeout,
        errors.NoRealSlice,
    ) as error:
        held = lease.from_environment(os.environ)
        if await asyncio.to_thread(lease.is_held, held, os.environ) is False:
            raise errors.LeaseGone(
                lease.gone_sentence(held, readings.count()), details=error.details
            ) from error
        raise
