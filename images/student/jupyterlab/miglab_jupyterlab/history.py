"""How a server's slice was used since the server has had it: a point after each report."""

from collections.abc import Mapping
from typing import Any

from miglab_jupyterlab.state import sum_if_known

MOST = 240  # of points; beyond that every other one is left out


class History:
    """The points, oldest first: when, memory used (MiB), activity (percent), whether one ran."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float | None, float | None, bool]] = []

    def add(self, now: float, lease: Mapping[str, Any], *, runs: bool) -> None:
        """Add how the lease's slices stand, and whether a kernel runs something."""
        slices = lease.get("slices") or []
        used = sum_if_known(one.get("memory_used_mib") for one in slices)
        activity = sum_if_known(one.get("activity_pct") for one in slices)
        mean = None if activity is None else activity / len(slices)
        self._points.append((now, used, mean, runs))
        if len(self._points) > MOST:
            del self._points[1::2]

    def shown(self, now: float) -> list[list[Any]]:
        """Each point, with its age in seconds for the moment."""
        return [[round(now - at), *rest] for at, *rest in self._points]
