"""How a server's slice was used since the server has had it: a point after each report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miglab_jupyterlab.state import sum_if_known

MOST = 240  # of points; beyond that every other one is left out


@dataclass(frozen=True)
class _Point:
    at: float
    used_mib: float | None
    activity_pct: float | None
    runs: bool


@dataclass
class History:
    """The points, oldest first."""

    _points: list[_Point] = field(default_factory=list)

    def add(self, now: float, lease: Mapping[str, Any], *, runs: bool) -> None:
        """Add how the lease's slices stand, and whether a kernel runs something."""
        slices = lease.get("slices") or []
        used = sum_if_known(one.get("memory_used_mib") for one in slices)
        activity = sum_if_known(one.get("activity_pct") for one in slices)
        mean = None if activity is None else activity / len(slices)
        self._points.append(_Point(now, used, mean, runs))
        if len(self._points) > MOST:
            del self._points[1::2]

    def shown(self, now: float) -> list[list[Any]]:
        """Each point as age (seconds), memory used (MiB), activity (percent), whether one ran."""
        return [
            [round(now - one.at), one.used_mib, one.activity_pct, one.runs] for one in self._points
        ]
