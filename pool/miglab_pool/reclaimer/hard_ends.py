"""Ends that activity does not move: class ends, maintenance, time limits."""

from dataclasses import dataclass

from miglab_api.leases import WarningKind

KEPT = "Your files are kept; what is in memory is lost."


@dataclass(frozen=True, slots=True)
class HardEnd:
    """An end that no activity puts off."""

    at: float
    kind: WarningKind
    reason: str
