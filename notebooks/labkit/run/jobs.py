"""The jobs that measurements send: described for the workers, run, and what was said meanwhile.

`Readings` sort the children's messages and make the records that follow from them, at any moment:
a run that is stopped, killed or reclaimed keeps its samples. Nothing here imports torch; the
devices are asked about in a child.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from labkit import errors
from labkit.arguments import name_of, public
from labkit.machine import device
from labkit.records import Borrowed, Device, Measurement, Tier, circumstances, from_data, now_text
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


def nobody_is_there() -> bool:
    """Whether this notebook is executed by a program (LAB_HEADLESS=1, or LAB_QUICK=1 in tests)."""
    return "1" in (os.environ.get("LAB_HEADLESS"), os.environ.get("LAB_QUICK"))


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
    packed_arguments = {
        name: source.pack_value(value, name, names[0]) for name, value in arguments.items()
    }
    job = {"kind": kind, "functions": packed, "arguments": packed_arguments, "backend": "gloo"}
    defaults = {"looks": [SAMPLES], "band": [0.0, 0.0], "budget_s": BUDGET_S, "cold": True}
    return {**job, **defaults, **options}


def distinct_names(functions: Sequence[Function]) -> list[str]:
    names = [name_of(function) for function in functions]
    if len(set(names)) == len(names):
        return names
    return [f"{name} {index}" for index, name in enumerate(names, 1)]


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
        lease = device.read_lease(os.environ)
        if await asyncio.to_thread(device.is_held, lease, os.environ) is False:
            raise errors.LeaseGone(
                f"The pool took back {lease.shape or 'your slice'} (lease {lease.lease}) "
                f"meanwhile. {readings.count()} samples taken before are kept, and marked as such. "
                "Ask for a slice again on the hub's page; the saved evidence stays readable "
                "meanwhile.",
                details=error.details,
            ) from error
        raise


@dataclass
class _RankReadings:
    """One rank's messages, sorted."""

    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    warm: Mapping[str, list[float]] = field(default_factory=dict)
    turns: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)


class Readings:
    """The messages of all ranks; `measurement` may be asked for at any time."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [_RankReadings() for _ in range(ranks)]
        self.over_budget_s: float | None = None
        self.backend = "gloo"  # of several ranks
        self.began = now_text()
        self.borrowed: Borrowed | None = None

    def take(self, rank: int, message: Mapping[str, Any]) -> None:
        """Sort one message in; unknown kinds are kept as facts of the rank."""
        readings, kind = self.ranks[rank], message["type"]
        if kind == "hello":
            readings.device = from_data(Device, message["device"])
            readings.versions = message["versions"]
        elif kind == "turns":
            for number, name, seconds, launch_s in message["turns"]:
                readings.turns.setdefault(name, {})[number] = (seconds, launch_s)
        elif kind == "print":
            readings.printed.append(message["text"])
        elif kind == "borrowed":
            self.borrowed = message["borrowed"]
        else:
            facts = {name: value for name, value in message.items() if name != "type"}
            readings.warm = facts.pop("samples", readings.warm)
            self.over_budget_s = facts.get("budget_s", self.over_budget_s)
            readings.facts |= facts

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the ranks that have said hello."""
        return tuple(rank.device for rank in self.ranks if rank.device is not None)

    @property
    def versions(self) -> Mapping[str, str]:
        return dict(self.ranks[0].versions)

    @property
    def tier(self) -> Tier:
        return device.tier_of(self.devices)

    @property
    def link(self) -> str:
        return device.link_of(self.tier, len(self.ranks))

    def rounds(self, name: str) -> list[int]:
        """The rounds of a function that every rank has finished."""
        finished = [set(rank.turns.get(name, {})) for rank in self.ranks]
        return sorted(set.intersection(*finished))

    def samples(self, name: str) -> tuple[float, ...]:
        """Seconds per call; with several ranks, the slowest rank's."""
        return tuple(
            max(rank.turns[name][number][0] for rank in self.ranks) for number in self.rounds(name)
        )

    def count(self) -> int:
        """How many samples there are in all."""
        return sum(len(self.samples(name)) for name in self.ranks[0].turns)

    def measurement(self, name: str, stopped: str | None = None, **fields: Any) -> Measurement:
        """The record of one function as it stands now.

        Args:
            name: the function.
            stopped: why the run ended early, in words.
            fields: what the caller knows beside the readings (dtype, flops, moved_bytes, setting).
        """
        first = self.ranks[0]
        if stopped is None and self.over_budget_s is not None:
            stopped = f"the time budget of {self.over_budget_s:g} s was spent"
        return Measurement(
            name=name,
            samples_s=self.samples(name),
            clock=first.facts.get("clock", "unknown"),
            cold=bool(first.facts.get("cold", False)),
            inner=first.facts.get("inner", 1),
            ranks=len(self.ranks),
            link=self.link,
            warmup_s=tuple(first.warm.get(name, ())),
            launch_s=tuple(first.turns[name][number][1] for number in self.rounds(name)),
            peak_mib=first.facts.get("peak_mib"),
            cpu_per_copy=first.facts.get("cpu_per_copy"),
            side_by_side=dict(first.facts.get("side_by_side", {})),
            date=self.began,
            stopped=stopped,
            **circumstances(self),
            **fields,
        )
