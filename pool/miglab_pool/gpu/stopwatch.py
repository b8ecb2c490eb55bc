"""How long the driver takes to make and to destroy a slice: told to whoever wants to know.

Nobody publishes these figures, so the lab measures its own.  Only calls that succeeded are told:
one that fails ends sooner, or later, for reasons that say nothing of the work itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

Told = Callable[[str, str, float], None]
"""Called with ``create`` or ``destroy``, the slice's profile, and the seconds it took."""


def nobody(*_what: object) -> None:
    """Tell nobody."""


class Stopwatch:
    """Times the driver's calls; ``told`` is whoever is told."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.told: Told = nobody
        self._clock = clock

    @contextmanager
    def time(self, kind: str, profile: str) -> Iterator[None]:
        """Tell how long what is inside took, unless it fails."""
        began = self._clock()
        yield
        self.told(kind, profile, self._clock() - began)
