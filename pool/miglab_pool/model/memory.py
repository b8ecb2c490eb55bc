"""What only memory knows between two decisions, and may be forgotten at any moment: see state."""

from collections.abc import Sequence
from dataclasses import dataclass

from miglab_pool.gpu.readings import Health
from miglab_pool.model.gpu import Ground, Seat
from miglab_pool.model.rows import ReservationRow

Kept = dict[int, tuple[Seat, ...]]


@dataclass(frozen=True)
class Memo:
    """The places kept for reservations, and what they were worked out from."""

    wanted: tuple[tuple[int, int], ...]
    grounds: Sequence[Ground]
    kept: Kept


@dataclass(frozen=True)
class Past:
    """The reservations that were over when these were not: read anew when that changes."""

    live: frozenset[int]
    rows: tuple[ReservationRow, ...]


@dataclass(frozen=True, slots=True)
class Wellness:
    """What a GPU said, and when (seconds since the epoch)."""

    at: float
    health: Health
