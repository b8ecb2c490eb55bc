"""What only memory knows, and may be forgotten at any moment: see state.

How long to wait before something that failed is tried again.
"""

from dataclasses import dataclass, field

from miglab_pool.gpu.readings import Health


@dataclass(frozen=True, slots=True)
class Wellness:
    """What a GPU said, and when (seconds since the epoch)."""

    at: float
    health: Health


@dataclass
class Backoff:
    """When something may be tried again; the pause doubles with each failure.

    Attributes:
        first_s: the first pause.
        most_s: the longest.
    """

    first_s: float
    most_s: float
    _failures: dict[object, int] = field(default_factory=dict)
    _until: dict[object, float] = field(default_factory=dict)

    def fail(self, key: object, now: float) -> None:
        """It failed: pause."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._until[key] = now + min(self.most_s, self.first_s * 2 ** min(failures, 20))

    def pause(self, key: object, until: float) -> None:
        """Not before ``until``, without counting a failure."""
        self._until[key] = until

    def clear(self, key: object) -> None:
        """It went well."""
        self._failures.pop(key, None)
        self._until.pop(key, None)

    def move(self, by_s: float) -> None:
        """The clock was set: every pause lasts as long as it would have."""
        self._until = {key: until + by_s for key, until in self._until.items()}

    def is_due(self, key: object, now: float) -> bool:
        """Whether it may be tried now."""
        return self._until.get(key, float("-inf")) <= now

    def until(self, key: object) -> float | None:
        """When it may be tried again; None if it never failed."""
        return self._until.get(key)
