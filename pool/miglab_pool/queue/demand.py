"""Who waits for what a lease would free.  Reads only; worked out once for all leases.

A ticket waits for it if one of its slices could lie where the lease's slices lie now, beside
everything else that is leased; and the first in the queue, if its hold lies there.  So does
a class whose reservation has a slot there: it counts as one more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from miglab_pool.gpu.geometry import Geometry, Placed, occupied_mask
from miglab_pool.ledger.rows import FULL, LeaseRow, SliceRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.backfill import outside_hold
from miglab_pool.reservations import slots as reserved_slots
from miglab_pool.state.once import once
from miglab_pool.state.placement import GpuOccupancy, open_to
from miglab_pool.state.view import PoolView

Wanted = tuple[tuple[str, ...], str]  # profiles, course


@dataclass(frozen=True)
class Demand:
    """What is waited for.

    Attributes:
        wanted: who waits for it, how often.
        whole: who waits for a whole GPU.
        first: who is the first in the queue.
        held: the memory slices of what is held for the first, by GPU, as bits.
        reserved: those of the reserved slots.
        gpus: the GPUs that are cut.
    """

    wanted: Mapping[Wanted, Counter[str]]
    whole: Counter[str]
    first: str
    held: Mapping[str, int]
    reserved: Mapping[str, int]
    gpus: Mapping[str, GpuOccupancy]

    @cached_property
    def by_shape(self) -> dict[tuple[str, ...], dict[str, "_Waiting"]]:
        """Who waits for some profiles, by the course whose GPUs would help; ``""``: all of them."""
        users: defaultdict[tuple[str, ...], dict[str, Counter[str]]] = defaultdict(dict)
        for (profiles, course), waiting in self.wanted.items():
            everyone = users[profiles].setdefault("", Counter())
            everyone.update(waiting)
            users[profiles][course] = waiting
        return {
            profiles: {course: _Waiting(one, one.total()) for course, one in of_course.items()}
            for profiles, of_course in users.items()
        }


class _Waiting(NamedTuple):
    users: Counter[str]
    total: int


@once
def demand(view: PoolView) -> Demand:
    """What is waited for now."""
    everyone = () if view.paused else queue.served(view)
    queued = [one for one in everyone if one.profiles != (FULL,)]
    wanted: defaultdict[Wanted, Counter[str]] = defaultdict(Counter)
    for one in queued:
        wanted[one.profiles, one.course][one.user] += 1
    is_reserving = bool(view.reservations)
    gpus = view.occupancies if queued or is_reserving else []
    states = outside_hold(queued[0].profiles, open_to(gpus, queued[0].course)) if queued else []
    after = reserved_slots.open_gpus(view) if is_reserving else []
    return Demand(
        wanted=wanted,
        whole=Counter(one.user for one in everyone if one.profiles == (FULL,)),
        first=queued[0].user if queued else "",
        held=_more(gpus, states),
        reserved=_more(gpus, after),
        gpus={occupancy.gpu: occupancy for occupancy in gpus},
    )


def others_waiting(view: PoolView, lease: LeaseRow) -> int:
    """How many tickets of other users wait for what this lease would free."""
    if not lease.is_held:
        return 0
    wanted, rows = demand(view), view.slices_of(lease)
    if any(row.profile == FULL for row in rows):
        return wanted.whole.total() - wanted.whole[lease.user]
    if not (wanted.wanted or wanted.reserved):
        return 0
    rooms = [room for row in rows if (room := _room(wanted, row, rows)) is not None]
    helped = (
        waiting
        for profiles, of_course in wanted.by_shape.items()
        for waiting in _helped(profiles, of_course, rooms)
    )
    count = sum(waiting.total - waiting.users[lease.user] for waiting in helped)
    is_first = wanted.first not in ("", lease.user) and _any(wanted.held, rows)
    return max(count, int(is_first)) + int(_any(wanted.reserved, rows))


class _Room(NamedTuple):
    """The place of a slice, all of its lease freed; what is taken beside it as `Placed.bits`."""

    geometry: Geometry
    taken: int
    mask: int
    course: str


def _room(wanted: Demand, row: SliceRow, freed: list[SliceRow]) -> _Room | None:
    """The place of a slice; None if nobody could get it."""
    occupancy = wanted.gpus.get(row.gpu)
    if occupancy is None or not occupancy.usable:
        return None
    gone = {(one.start, one.profile) for one in freed if one.gpu == row.gpu}
    taken = 0
    for one in occupancy.live:
        if (one.placement.start, one.profile.name) not in gone:
            taken |= one.bits
    return _Room(occupancy.geometry, taken, _mask(row), occupancy.course)


def _helped(
    profiles: tuple[str, ...], of_course: Mapping[str, _Waiting], rooms: Iterable[_Room]
) -> list[_Waiting]:
    """Those who wait for these profiles and could have one in one of the rooms."""
    courses = {room.course for room in rooms if _helps(profiles, room)}
    helped = {""} if "" in courses else courses
    return [of_course[course] for course in helped if course in of_course]


def _helps(profiles: tuple[str, ...], room: _Room) -> bool:
    """Whether one of the profiles could lie there."""
    places = room.geometry.placements
    return any(
        bits & room.mask and not bits & room.taken
        for name in profiles
        for bits, _ in places.get(name, ())
    )


def _any(held: Mapping[str, int], rows: Iterable[SliceRow]) -> bool:
    """Whether anything of what is kept lies where these slices are."""
    return any(held.get(row.gpu, 0) & _mask(row) for row in rows)


def _mask(row: SliceRow) -> int:
    return ((1 << row.size) - 1) << row.start


def _more(gpus: Sequence[GpuOccupancy], states: Sequence[GpuOccupancy]) -> dict[str, int]:
    """The memory slices of each GPU that are live in ``states`` beyond ``gpus``, as bits."""
    more = {}
    for occupancy, state in zip(gpus, states, strict=False):  # no states: nothing is kept
        added: tuple[Placed, ...] = state.live[len(occupancy.live) :]
        if added:
            more[state.gpu] = occupied_mask(added)
    return more
