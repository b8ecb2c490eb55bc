"""The lines of a proof: a stable name and what is tried; and what came back, with its figures.

The names are part of the report's format and of docs/explanation/mig.md: they do not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

NOTHING: Mapping[str, Any] = MappingProxyType({})


class LineVerdict(StrEnum):
    """Whether a line held."""

    YES = "yes"
    NO = "no"
    UNTRIED = "could not be tried"


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a series of measurements, in its unit.

    Attributes:
        count: how many there are.
        p10: the tenth percentile; ``median`` and ``p90`` likewise.
    """

    count: int
    least: float
    p10: float
    median: float
    p90: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the quantiles of at least one value, by the nearest rank."""
        ranked = sorted(values)

        def at(share: float) -> float:
            return round(ranked[round(share * (len(ranked) - 1))], 3)

        return cls(len(ranked), at(0), at(0.1), at(0.5), at(0.9), at(1))

    def __str__(self) -> str:
        return f"{self.median:g} ms ({self.least:g} to {self.greatest:g})"


@dataclass(frozen=True)
class LineAnswer:
    """The answer to a line.

    Attributes:
        line: its name.
        verdict: whether it held.
        result: what came back, or why it could not be tried, as a clause.
        figures: series of milliseconds, by name.
        facts: what was read, as plain values.
    """

    line: str
    verdict: LineVerdict
    result: str
    figures: Mapping[str, Quantiles] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def judged(
        cls,
        line: str,
        holds: bool,
        result: str,
        figures: Mapping[str, Sequence[float]] = NOTHING,
        facts: Mapping[str, Any] = NOTHING,
    ) -> Self:
        """Return the answer of a tried line; series without a value are left out."""
        quantiles = {name: Quantiles.of(series) for name, series in figures.items() if series}
        return cls(
            line, LineVerdict.YES if holds else LineVerdict.NO, result, quantiles, dict(facts)
        )

    @classmethod
    def untried(cls, line: str, reason: str) -> Self:
        """Return the answer of a line that could not be tried."""
        return cls(line, LineVerdict.UNTRIED, reason)


class CannotTry(Exception):
    """The lines of a step cannot be tried here; the message is why, as a clause."""


@dataclass(frozen=True)
class Line:
    """One assumption that is tried.

    Attributes:
        name: stable; what reports and docs call it.
        tries: what is done, as a command.
    """

    name: str
    tries: str


LINES = (
    Line("versions", "Read the versions of miglab, Python, kernel, driver and CUDA"),
    Line("engine", "Ask the Docker engine for its version, GPU runtime and cgroup driver"),
    Line("cdi", "Look for a CDI specification that the engine would hand over instead of slices"),
    Line("mig-rights", "Open the capability without which no slice can be made"),
    Line("gpus", "Read each GPU's model, memory and MIG mode"),
    Line("geometry", "Compare each GPU's profiles with those of the simulated card"),
    Line("health", "Read each GPU's temperature, power, memory errors and Xid events"),
    Line("recovery-action", "Ask each GPU what its driver wants an operator to do (field 230)"),
    Line("lookup", "Open each GPU by UUID and by PCI address, and walk over its MIG devices"),
    Line("lookup-at-once", "Do that on all GPUs at the same time"),
    Line("create-destroy", "Make and destroy one slice over and over"),
    Line("uuid-at-once", "Read the UUID of each slice directly after it was made"),
    Line("uuid-repeats", "Compare the UUIDs and ids of slices made at the same placement"),
    Line("gone-at-once", "List the slices directly after a destroy that succeeded"),
    Line("ids", "Fill a GPU with its smallest profile, and note the ids that it gives"),
    Line("highest-start", "Make a GPU instance without a placement, and see where it lies"),
    Line("refusals", "Try acts that cannot be carried out, and note NVML's errors"),
    Line("all-gpus-at-once", "Make and destroy slices on all free GPUs at the same time"),
    Line("read-while-changing", "Make and destroy slices that are read each second meanwhile"),
    Line("other-process", "List a slice that another process makes, and destroys, meanwhile"),
    Line(
        "host-program",
        "Run a CUDA program of this host on an idle GPU, and look for it in NVML's list",
    ),
    Line("container-start", "Start a student's container on a slice that is seconds old"),
    Line("container-sees-slice", "List the GPUs in that container: exactly the leased slice"),
    Line("container-torch", "Ask PyTorch in that container: one device, of the slice's memory"),
    Line("container-refused", "Ask for its slice from a second container without a lease"),
    Line("process-is-holder", "Run a program in that container, and look for it in NVML's list"),
    Line("event-ids", "Let that program fail, and read the ids in the Xid event"),
    Line("end-to-destroy", "End the container, and time the way to a destroy that succeeds"),
    Line(
        "as-it-was",
        "Compare the GPUs that were cut with those before the run, and look for its containers",
    ),
)
"""In the order in which they are tried."""
