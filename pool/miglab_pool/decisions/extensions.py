"""How much longer a lease may be made at a time, for its holder to see before asking.  Reads only.

What is reserved may leave less than an extension's length, or nothing.  Asking works that out in
any case: so an answer is kept a while, and a round of all leases shares what is the same for them.
"""

from dataclasses import dataclass

from miglab_pool.decisions.reservations_ahead import Outlook
from miglab_pool.model.rows import LeaseRow
from miglab_pool.state.store import Store

KEPT_S = 60.0
LEAST_S = 60.0  # less is not worth a click


@dataclass(frozen=True)
class _Known:
    """An answer, when it was given, and for what."""

    most_s: float
    at: float
    ends_at: float
    reserved: frozenset[int]


class Lengthening:
    """What one extension may add to each lease, as far as reservations go."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, _Known] = {}
        self._version = 0
        self._outlook = Outlook(store, store.now())

    def most_s(self, lease: LeaseRow) -> float:
        """The most that one extension adds now, seconds; 0 for none."""
        store = self._store
        if lease.ends_at is None or not store.state.reservations:
            return store.settings.pool.extension_s
        known = self._known.get(lease.id)
        if known is None or not self._holds(known, lease.ends_at):
            self._forget()
            known = self._known[lease.id] = self._look(lease, lease.ends_at)
        return known.most_s

    def _holds(self, known: _Known, ends_at: float) -> bool:
        """Whether what was answered is still so, as far as it is seen at a glance."""
        asked = (ends_at, frozenset(self._store.state.reservations))
        age_s = self._store.now() - known.at
        return (known.ends_at, known.reserved) == asked and 0 <= age_s < KEPT_S

    def _look(self, lease: LeaseRow, ends_at: float) -> _Known:
        store = self._store
        begins = max(ends_at, store.now())
        longest_s = store.settings.pool.extension_s
        time = self._outlook_to(begins + longest_s).first_blocked(lease, begins + longest_s)
        most_s = longest_s if time is None else time.begins - begins
        reserved = frozenset(store.state.reservations)
        return _Known(most_s if most_s >= LEAST_S else 0.0, store.now(), ends_at, reserved)

    def _outlook_to(self, until: float) -> Outlook:
        """The time ahead; what all leases have in common is worked out once for a round of them."""
        store = self._store
        if self._version != store.version or until > self._outlook.until:
            ends = (lease.ends_at or 0.0 for lease in store.state.leases.values())
            furthest = max(until, *(end + store.settings.pool.extension_s for end in ends))
            self._version, self._outlook = store.version, Outlook(store, furthest)
        return self._outlook

    def _forget(self) -> None:
        """What is over."""
        for gone in self._known.keys() - self._store.state.leases.keys():
            del self._known[gone]
