"""What only memory knows, and may be forgotten at any moment: see state."""

from dataclasses import dataclass

from miglab_pool.gpu.readings import Health


@dataclass(frozen=True, slots=True)
class Wellness:
    """What a GPU said, and when (seconds since the epoch)."""

    at: float
    health: Health
