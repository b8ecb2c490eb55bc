"""Adds up how long each lease worked and did nothing, for reports of usage.

Memory only: what was not handed over when the service ends, at most a minute, is not known.
"""

from collections.abc import Callable

from miglab_pool.reclaimer.activity_states import Activity
from miglab_pool.transactions.activity import Spent

HAND_OVER_S = 60.0
IDLE = frozenset({Activity.IDLE_FREE, Activity.IDLE_HOLDING})


class ActivityTotals:
    """See the module.

    Args:
        clock: seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[int, Spent] = {}
        self._handed_over_at = clock()

    def add(self, lease: int, activity: Activity, for_s: float) -> None:
        """A lease was seen doing this, since the look before."""
        was = self._spent.get(lease, Spent(lease))
        self._spent[lease] = Spent(
            lease,
            was.active_s + (for_s if activity is Activity.ACTIVE else 0.0),
            was.idle_s + (for_s if activity in IDLE else 0.0),
            was.unknown_s + (for_s if activity is Activity.UNKNOWN else 0.0),
        )

    def due(self) -> list[Spent]:
        """What was added up, once a minute; else nothing."""
        now = self._clock()
        if now - self._handed_over_at < HAND_OVER_S:
            return []
        self._handed_over_at = now
        spent, self._spent = list(self._spent.values()), {}
        return spent
