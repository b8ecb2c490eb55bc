"""What a container may use of the host, by the shape it holds.  Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1024**3
DEFAULT = "default"

#: Starting points; a lab sets its own for its hosts.
SHAPE_LIMITS: dict[str, dict[str, float]] = {
    "cpu": {"mem_gib": 4, "cpus": 1, "pids": 1024, "shm_gib": 0.5},
    "borrow": {"mem_gib": 4, "cpus": 1, "pids": 1024, "shm_gib": 0.5},
    DEFAULT: {"mem_gib": 8, "cpus": 2, "pids": 1024, "shm_gib": 1},
    "full": {"mem_gib": 64, "cpus": 8, "pids": 4096, "shm_gib": 16},
}
_KEYS = {"mem_gib", "cpus", "pids", "shm_gib"}
_COUNTED = re.compile(r"^(\d+)x(.+)$")


@dataclass(frozen=True)
class ContainerLimits:
    """Bytes, cores, processes (with threads) and bytes of /dev/shm."""

    mem_bytes: int
    cpus: float
    pids: int
    shm_bytes: int


def checked(table: Mapping[str, Mapping[str, float]]) -> None:
    """Check a limits table.

    Raises:
        ValueError: an unknown key or a limit that is not above zero, naming shape and key.
    """
    for shape, row in table.items():
        for key, value in row.items():
            if key not in _KEYS:
                raise ValueError(f"limits of {shape!r}: no key {key!r}; allowed: {sorted(_KEYS)}")
            if value <= 0:
                raise ValueError(f"limits of {shape!r}: {key} must be above 0, not {value}")


def limits_of(shape: str, table: Mapping[str, Mapping[str, float]]) -> ContainerLimits:
    """The limits of a shape.

    The shape's own row; for ``2x1g.5gb`` without one, twice the row of ``1g.5gb``; for several
    kinds (``1g.5gb,2x2g.10gb``) their sum; else the row ``default``.  A key missing from a row
    comes from ``default``, and one missing there from `SHAPE_LIMITS`.
    """
    rows = {**SHAPE_LIMITS, **table}
    if shape in rows:
        return _as_limits(_filled(rows, shape))
    total: dict[str, float] = dict.fromkeys(_KEYS, 0)
    for part in shape.split(","):
        counted = _COUNTED.match(part)
        count, profile = (int(counted[1]), counted[2]) if counted else (1, part)
        row = _filled(rows, part) if part in rows else _times(count, _filled(rows, profile))
        total = {key: total[key] + row[key] for key in _KEYS}
    return _as_limits(total)


def _filled(rows: Mapping[str, Mapping[str, float]], shape: str) -> dict[str, float]:
    return {**SHAPE_LIMITS[DEFAULT], **rows[DEFAULT], **rows.get(shape, {})}


def _times(count: int, row: Mapping[str, float]) -> dict[str, float]:
    return {key: count * value for key, value in row.items()}


def _as_limits(row: Mapping[str, float]) -> ContainerLimits:
    return ContainerLimits(
        int(row["mem_gib"] * GIB), row["cpus"], int(row["pids"]), int(row["shm_gib"] * GIB)
    )
