"""Reservations ahead: when places are kept, and which leases would be in their way.  Reads only.

A lease is *in the way* of what is kept at a moment if more of it finds a place when the lease is
over by then.  Whose end, as it is set, lies behind the moment is reckoned to stay.  GPUs are looked
at as the layouts cut them when the class begins.
"""

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from zoneinfo import ZoneInfo

from miglab_api.leases import LeaseState
from miglab_pool.decisions import reservations_in_force
from miglab_pool.decisions.reservations_in_force import InForce
from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import Ground, Seat, clash
from miglab_pool.model.refused import Refused
from miglab_pool.model.reservations import in_words, kept_until, profiles, rule_of
from miglab_pool.model.rows import FULL, LeaseRow, ReservationRow
from miglab_pool.model.schedule import Occurrence, occurrences
from miglab_pool.rules import layout_times
from miglab_pool.rules.layout_plan import Kind
from miglab_pool.rules.layout_times import planned
from miglab_pool.rules.lease_length import stay_of
from miglab_pool.rules.reservation_seats import Spot, Wish, keep_for
from miglab_pool.state.store import Store

Key = tuple[str, str]


@dataclass(frozen=True)
class KeptTime:
    """A time at which a reservation keeps its places.

    Attributes:
        time: when the class takes place.
        begins: the lead before its start.
        ends: the end of its grace.
    """

    row: ReservationRow
    time: Occurrence
    begins: float
    ends: float


def kept_times(store: Store, since: float, until: float) -> list[KeptTime]:
    """When places are kept between two moments, the first in front."""
    lead_s = store.settings.pool.reserve_lead_s
    found = [
        KeptTime(row, time, time.starts_at - lead_s, kept_until(row, time))
        for row in store.state.reservations.values()
        for time in occurrences(rule_of(row), since, until + lead_s)
    ]
    kept = [one for one in found if one.begins < until and since < one.ends]
    return sorted(kept, key=lambda one: (one.begins, one.row.id))


def stays_until(store: Store, lease: LeaseRow) -> float:
    """Until when a lease is reckoned to stay; infinite without an end."""
    return stay_of(store.settings, lease).ends_at


def staying(store: Store, at: float) -> list[LeaseRow]:
    """The leases whose end, as it is set, lies behind a moment."""
    live = (lease for lease in store.state.leases.values() if _is_there(lease))
    return [lease for lease in live if stays_until(store, lease) > at]


def _is_there(lease: LeaseRow) -> bool:
    return lease.state != LeaseState.RELEASING


# -- in the way -----------------------------------------------------------------------------------


def check_end(store: Store, lease: LeaseRow, ends_at: float) -> None:
    """Refuse a later end of a lease that would be in the way of what is reserved.

    Raises:
        Refused: ``no-extension``, with what is reserved and until when it may be extended.
    """
    time = first_blocked(store, lease, ends_at)
    if time is not None:
        raise Refused("no-extension", _why_blocked(store, lease, time))


def first_blocked(store: Store, lease: LeaseRow, ends_at: float) -> KeptTime | None:
    """The first time that a lease would be in the way of if it ended so late, and is not now."""
    return Outlook(store, ends_at).first_blocked(lease, ends_at)


class Outlook:
    """The time ahead, for all who ask while nothing changes: what they share is worked out once.

    Args:
        store: the pool; when its version is another, so may be what is said here.
        until: how far to look, seconds since the epoch.
    """

    def __init__(self, store: Store, until: float) -> None:
        self.until = until
        self._store = store
        self._times = kept_times(store, store.now(), until)
        leases = (lease for lease in store.state.leases.values() if _is_there(lease))
        self._leases = [(stays_until(store, lease), lease) for lease in leases]
        self._moments: dict[float, _Moment] = {}

    def first_blocked(self, lease: LeaseRow, ends_at: float) -> KeptTime | None:
        """As the function of that name; ``ends_at`` is not beyond ``until``."""
        since = max(self._store.now(), lease.ends_at or 0.0)
        for time in self._times:
            is_in_time = time.begins < ends_at and since < time.ends
            at = max(since, time.begins)
            if is_in_time and self._without(lease, at).is_worse_with(lease):
                return time
        return None

    def _without(self, lease: LeaseRow, at: float) -> "_Moment":
        """A moment without a lease: one for all the leases that do not stay till then anyway."""
        stays = [one for until, one in self._leases if until > at]
        if any(one.id == lease.id for one in stays):
            return _Moment(self._store, at, [one for one in stays if one.id != lease.id])
        if at not in self._moments:
            self._moments[at] = _Moment(self._store, at, stays)
        return self._moments[at]


class _Moment:
    """What is kept at a moment if these leases stay, and how much of it finds no place."""

    def __init__(self, store: Store, at: float, stays: Sequence[LeaseRow]) -> None:
        self._store, self._at, self._stays = store, at, stays
        self._found = reservations_in_force.found(store, at)
        self._drawn = reservations_in_force.drawn(stays)
        self._kept = _kept(self._found, self._drawn)
        self._spots = _spots(store, _begun(at, self._kept), stays) if self._found else []
        self._seats = _seats(self._kept, self._spots)
        self._missing = _missing(store, self._kept, self._seats, stays)

    def is_worse_with(self, lease: LeaseRow) -> bool:
        """Whether more finds no place if one more lease stays."""
        kept = _kept(self._found, self._drawn + reservations_in_force.drawn([lease]))
        if not kept:
            return False
        places = _by_gpu(self._store, [lease])
        if kept == self._kept and self._is_beside(lease, places):
            return False
        seats = _seats(kept, self._spots_with(lease, places, kept))
        return _missing(self._store, kept, seats, [*self._stays, lease]) > self._missing

    def _spots_with(
        self, lease: LeaseRow, places: Mapping[str, tuple[Placed, ...]], kept: Sequence[InForce]
    ) -> list[Spot]:
        """The GPUs with one more lease that stays; a layout may be cut otherwise around it."""
        if self._store.state.layouts:
            return _spots(self._store, _begun(self._at, kept), [*self._stays, lease])
        return [_closed(spot, places.get(spot.ground.state.gpu, ())) for spot in self._spots]

    def _is_beside(self, lease: LeaseRow, places: Mapping[str, Collection[Placed]]) -> bool:
        """Whether every seat is found and chosen again though the lease stays: it lies on none."""
        is_common = not self._store.state.layouts and not any(s.ground.course for s in self._spots)
        if self._missing or lease.shape == FULL or not is_common:
            return False
        return not any(
            clash(seat.placed, placed)
            for seat in self._seats
            for placed in places.get(seat.gpu, ())
        )


def _why_blocked(store: Store, lease: LeaseRow, time: KeptTime) -> str:
    row = time.row
    left_s = time.begins - max(store.now(), lease.ends_at or 0.0)
    clock = dt.datetime.fromtimestamp(time.begins, ZoneInfo(row.tz)).strftime("%H:%M")
    why = f"Its place is kept from {clock} on for reservation {row.id} ({in_words(row)}). "
    if left_s < 60:
        return f"{why}So it cannot be extended: save your work in time."
    return f"{why}It may be extended until then, by {int(left_s // 60)} minutes: ask for less."


def on_seats(
    store: Store,
    at: float,
    keeping: Sequence[InForce],
    stays: Sequence[LeaseRow],
    go: Sequence[LeaseRow],
) -> list[LeaseRow]:
    """Which leases lie on the places that would be kept, these chosen so that few do.

    Args:
        store: the pool.
        at: when.
        keeping: what places are kept for.
        stays: the leases that stay whatever comes.
        go: those that may go.
    """
    seats = _seats(keeping, _spots(store, _begun(at, keeping), stays, go))
    full = [lease for lease in go if lease.shape == FULL]
    too_few = _missing_whole(store, keeping, [*stays, *full])
    return [*full[:too_few], *(lease for lease in go if _lies_on(store, lease, seats))]


def keeping(store: Store, at: float, stays: Sequence[LeaseRow]) -> list[InForce]:
    """What keeps places at a moment if these leases live then."""
    return _kept(reservations_in_force.found(store, at), reservations_in_force.drawn(stays))


def _kept(found: Sequence[InForce], drawn: Mapping[Key, int]) -> list[InForce]:
    return [
        one for one in reservations_in_force.less_drawn(found, drawn) if one.is_kept and one.left
    ]


def _seats(kept: Sequence[InForce], spots: Sequence[Spot]) -> tuple[Seat, ...]:
    wishes = [
        Wish(one.row.course, profiles(one.row.shape))
        for one in kept
        if one.row.shape != FULL
        for _ in range(one.left)
    ]
    return tuple(chain.from_iterable(keep_for(wishes, spots).values())) if wishes else ()


def _missing(
    store: Store, kept: Sequence[InForce], seats: Sequence[Seat], stays: Sequence[LeaseRow]
) -> int:
    """How many slices of what is kept find no place beside these leases."""
    sliced = (one for one in kept if one.row.shape != FULL)
    wanted = sum(one.left * len(profiles(one.row.shape)) for one in sliced)
    return wanted - len(seats) + _missing_whole(store, kept, stays)


def _begun(at: float, keeping: Iterable[InForce]) -> float:
    """When the last class has begun of those for which places are kept at a moment."""
    return max((one.time.starts_at for one in keeping if one.time.starts_at > at), default=at)


def _spots(
    store: Store, at: float, stays: Sequence[LeaseRow], go: Sequence[LeaseRow] = ()
) -> list[Spot]:
    """The GPUs when all leases are over but these, as they are to be cut at that moment."""
    fixed, leased = _by_gpu(store, stays), _by_gpu(store, go)
    return [
        _closed(Spot(ground, leased.get(gpu, ())), fixed.get(gpu, ()))
        for ground in _grounds(store, at, [*stays, *go])
        for gpu in (ground.state.gpu,)
    ]


def _grounds(store: Store, at: float, there: Sequence[LeaseRow]) -> list[Ground]:
    """Every GPU as the layout of a moment cuts it, and whose it then is."""
    plans = [planned(row) for row in store.state.layouts.values()]
    if not plans:
        return store.grounds()
    then = layout_times.in_force(plans, at, store.settings.pool.reserve_lead_s)
    numbers = {number for lease in there for number in lease.slices}
    return [_recut(store, one, then.get(one.state.gpu), numbers) for one in store.grounds()]


def _recut(
    store: Store, ground: Ground, then: layout_times.InForce | None, there: Collection[int]
) -> Ground:
    gpu = ground.state.gpu
    laid = store.possible_on(gpu, then)
    lying = [one for one in store.lying(gpu) if one.number in there or one.kind is Kind.FIXED]
    geometry = store.geometry_under(gpu, laid, lying)
    assert geometry is not None
    course = store.course_under(store.state.gpus[gpu], laid)
    return replace(ground, state=replace(ground.state, geometry=geometry), course=course)


def _closed(spot: Spot, places: tuple[Placed, ...]) -> Spot:
    """The GPU without these places."""
    if not places:
        return spot
    ground = replace(spot.ground, fixed=(*spot.ground.fixed, *places))
    return replace(spot, ground=ground)


def _by_gpu(store: Store, leases: Iterable[LeaseRow]) -> dict[str, tuple[Placed, ...]]:
    """Where the slices of leases lie; whole GPUs are left out."""
    found: dict[str, tuple[Placed, ...]] = {}
    for lease in leases:
        for row in store.state.slices_of(lease):
            if row.profile != FULL:
                found[row.gpu] = (*found.get(row.gpu, ()), store.placed(row))
    return found


def _missing_whole(store: Store, kept: Iterable[InForce], stays: Sequence[LeaseRow]) -> int:
    """How many whole GPUs of what is kept are not there: free, and open to who has reserved."""
    full = [one for one in kept if one.row.shape == FULL]
    if not full:
        return 0
    wanted = Counter(course for one in full for course in [one.row.course] * one.left)
    held = {row.gpu for lease in stays for row in store.state.slices_of(lease)}
    free = Counter(
        store.course_of(row)
        for row in store.state.gpus.values()
        if store.is_whole(row) and row.uuid not in held
    )
    left = wanted - free  # of each course's own
    return max(0, left.total() - free[""])


def _lies_on(store: Store, lease: LeaseRow, seats: Collection[Seat]) -> bool:
    rows = [row for row in store.state.slices_of(lease) if row.profile != FULL]
    return any(
        row.gpu == seat.gpu and store.placed(row).placement.mask & seat.placed.placement.mask
        for row in rows
        for seat in seats
    )
