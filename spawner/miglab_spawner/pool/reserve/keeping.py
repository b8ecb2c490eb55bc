"""Where reserved places are kept.  Pure: what is wanted and what lies on the GPUs in, seats out.

A seat is kept where the fewest leases lie, so that few must end before it is empty.  Leases of the
class itself are counted first: it must not wait for its own.  If that leaves no seat for some, all
are chosen as `placement.packs` fills GPUs, whatever leases lie there: what fits is never given up
for a good first seat.  Which free slices exist plays no part: so cutting a seat never moves
another, and comes to an end.
Knows neither ledger nor clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from miglab_spawner.gpu.geometry import Placed
from miglab_spawner.pool.line.queue import Ground, clash
from miglab_spawner.pool.placing.placement import GpuState, place

FEW = 8  # slices; trying takes time that grows with a power of it

Key = tuple[int, ...]
Found = tuple[Key, int, Placed]  # how bad, on which GPU, where


@dataclass(frozen=True)
class Spot:
    """A GPU on which seats may be kept.

    Attributes:
        ground: as the queue sees it.
        leased: what of it will be free when a lease ends.
        drawn: the same of leases that are what places are kept for: unlikely to end in time.
    """

    ground: Ground
    leased: tuple[Placed, ...] = ()
    drawn: tuple[Placed, ...] = ()


class Wish(NamedTuple):
    """A lease that is to have a place: whose, and the profiles of its slices."""

    course: str
    profiles: Sequence[str]


@dataclass(frozen=True)
class Seat:
    """One slice's place, kept for a wish by its number."""

    wish: int
    gpu: str
    placed: Placed


@dataclass
class _Board:
    """The GPUs while seats are handed out; the best on each, worked out anew when it changed."""

    spots: Sequence[Spot]
    is_packing: bool = False
    kept: dict[str, tuple[Placed, ...]] = field(default_factory=dict)
    _best: dict[tuple[str, int], Found | None] = field(default_factory=dict)

    def seat(self, wish: int, name: str) -> Seat | None:
        found = [self._on(name, index) for index in range(len(self.spots))]
        best = min((one for one in found if one is not None), default=None, key=_how_bad)
        if best is None:
            return None
        _, index, placed = best
        gpu = self.spots[index].ground.state.gpu
        self.kept[gpu] = (*self.kept.get(gpu, ()), placed)
        self._best = {key: value for key, value in self._best.items() if key[1] != index}
        return Seat(wish, gpu, placed)

    def _on(self, name: str, index: int) -> Found | None:
        if (name, index) not in self._best:
            self._best[name, index] = min(self._seats(name, index), default=None, key=_how_bad)
        return self._best[name, index]

    def _seats(self, name: str, index: int) -> Iterable[Found]:
        spot = self.spots[index]
        state = spot.ground.state
        profile = state.geometry.by_name.get(name)
        if profile is None or not state.usable:
            return
        taken = (*spot.ground.fixed, *self.kept.get(state.gpu, ()))
        for placement in profile.placements:
            placed = Placed(profile, placement)
            if not any(clash(placed, other) for other in taken):
                yield self._key(spot, index, placed), index, placed

    def _key(self, spot: Spot, index: int, placed: Placed) -> Key:
        start = placed.placement.start
        if self.is_packing:
            return -start, index
        drawn = sum(clash(placed, other) for other in spot.drawn)
        leased = sum(clash(placed, other) for other in spot.leased)
        return drawn, leased, index, -start


def _how_bad(found: Found) -> Key:
    return found[0]


def is_same(one: Placed, other: Placed) -> bool:
    """Whether two slices have one profile and one place."""
    return one.profile.name == other.profile.name and one.placement == other.placement


def keep(wishes: Sequence[Sequence[str]], spots: Sequence[Spot]) -> tuple[Seat, ...]:
    """Choose a seat for every slice of every wish.

    Args:
        wishes: the profiles of each lease that is to have a place, the most urgent first.
        spots: the GPUs.

    Returns:
        The seats, none overlapping another or what is fixed.  All of them if that is possible on
        the usable GPUs once their leases have ended (of more than `FEW` slices with ``+me`` among
        them: not surely); else as many as were found.
    """
    wanted = _in_packing_order(wishes, spots)
    found = _seated(wanted, _Board(spots))
    if len(found) < len(wanted):
        packed = _seated(wanted, _Board(spots, is_packing=True))
        found = packed if len(packed) > len(found) else found
    if len(found) < len(wanted) <= FEW and _has_media(wanted, spots):
        found = _placed(wanted, spots) or found
    return found


def keep_for(wishes: Sequence[Wish], spots: Sequence[Spot]) -> dict[int, tuple[Seat, ...]]:
    """Choose seats where some GPUs are courses' own.

    Returns:
        The seats of each wish, by its number: on its course's own GPUs if all of it fits there,
        else on those for all.
    """
    kept: dict[int, tuple[Seat, ...]] = {}
    for course in sorted({spot.ground.course for spot in spots} - {""}):
        mine = {n: wish for n, wish in enumerate(wishes) if wish.course == course}
        own = [spot for spot in spots if spot.ground.course == course]
        found = _keep_numbered(mine, own)
        kept |= {n: seats for n, seats in found.items() if len(seats) == len(mine[n].profiles)}
    rest = {n: wish for n, wish in enumerate(wishes) if n not in kept}
    return kept | _keep_numbered(rest, [spot for spot in spots if not spot.ground.course])


def _keep_numbered(
    wishes: Mapping[int, Wish], spots: Sequence[Spot]
) -> dict[int, tuple[Seat, ...]]:
    numbers = list(wishes)
    kept: dict[int, tuple[Seat, ...]] = {}
    for seat in keep([wishes[number].profiles for number in numbers], spots):
        number = numbers[seat.wish]
        kept[number] = (*kept.get(number, ()), replace(seat, wish=number))
    return kept


def _has_media(wanted: Iterable[tuple[int, str]], spots: Iterable[Spot]) -> bool:
    names = {name for _, name in wanted}
    kinds = {spot.ground.state.geometry for spot in spots}
    return any(p.has_media and p.name in names for kind in kinds for p in kind.profiles)


def _placed(wanted: Sequence[tuple[int, str]], spots: Sequence[Spot]) -> tuple[Seat, ...] | None:
    """By trying: how GPUs are filled best is not known of ``+me``, of which each has one."""
    states = [replace(spot.ground.state, live=spot.ground.fixed, warm=()) for spot in spots]
    choices = place([name for _, name in wanted], states)
    if choices is None:
        return None
    return tuple(
        Seat(wish, choice.gpu, Placed(choice.profile, choice.placement))
        for (wish, _), choice in zip(wanted, choices, strict=True)
    )


def _in_packing_order(
    wishes: Sequence[Sequence[str]], spots: Sequence[Spot]
) -> list[tuple[int, str]]:
    """Large ones first, of equals those with the fewest places; see `placement.packs`."""
    orders: dict[str, tuple[int, int, bool]] = {}
    for spot in spots:
        for profile in spot.ground.state.geometry.profiles:
            orders[profile.name] = (-profile.size, len(profile.starts), not profile.has_media)
    wanted = [(wish, name) for wish, names in enumerate(wishes) for name in names]
    return sorted(wanted, key=lambda one: orders.get(one[1], (0, 0, False)))


def _seated(wanted: Iterable[tuple[int, str]], board: _Board) -> tuple[Seat, ...]:
    seats = (board.seat(wish, name) for wish, name in wanted)
    return tuple(seat for seat in seats if seat is not None)


def without(ground: Ground, kept: Sequence[Placed]) -> Ground:
    """The GPU for those who may not use the seats kept: no lease's end will free them."""
    if not kept:
        return ground
    state = ground.state
    warm = tuple(item for item in state.warm if not any(clash(item, seat) for seat in kept))
    live = (*state.live, *kept)
    state = replace(state, live=live, warm=warm)
    return replace(ground, state=state, fixed=(*ground.fixed, *kept))


def is_empty(state: GpuState, placed: Placed) -> bool:
    """Whether nothing but warm slices lies on a place."""
    return not any(clash(placed, other) for other in state.live)
