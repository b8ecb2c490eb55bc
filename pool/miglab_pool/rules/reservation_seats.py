"""Where reserved places are kept.  Pure: what is wanted and what lies on the GPUs in, seats out.

A seat is kept where the fewest leases lie, so that few must end before it is empty.  Leases of the
class itself are counted first: it must not wait for its own.  If that leaves no seat for some, all
are chosen as `placement.packs` fills GPUs, whatever leases lie there: what fits is never given up
for a good first seat.  Which free slices exist plays no part: so cutting a seat never moves
another, and comes to an end.
Knows neither ledger nor clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import GpuOccupancy, Seat, clash
from miglab_pool.rules.placement.placement import place

FEW = 8  # slices; trying takes time that grows with a power of it


@dataclass(frozen=True)
class Spot:
    """A GPU on which seats may be kept.

    Attributes:
        occupancy: as the queue sees it.
        leased: what of it will be free when a lease ends.
        drawn: the same of leases that are what places are kept for: unlikely to end in time.
    """

    occupancy: GpuOccupancy
    leased: tuple[Placed, ...] = ()
    drawn: tuple[Placed, ...] = ()

    @cached_property
    def fixed_bits(self) -> int:
        """What no seat can have, as `Placed.bits`."""
        bits = 0
        for item in self.occupancy.fixed:
            bits |= item.bits
        return bits

    def lying_on(self, bits: int) -> tuple[int, int]:
        """How many drawn and leased slices lie on a place."""
        drawn, leased = self._lying_bits
        return sum(bool(bits & one) for one in drawn), sum(bool(bits & one) for one in leased)

    @cached_property
    def _lying_bits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(item.bits for item in self.drawn), tuple(item.bits for item in self.leased)


class Wish(NamedTuple):
    """A lease that is to have a place: whose, and the profiles of its slices."""

    course: str
    profiles: Sequence[str]


class _Place(NamedTuple):
    """Where a seat might be: its spot's number, its `Placed.bits`, and what would lie there."""

    spot: int
    bits: int
    placed: Placed


class _Board:
    """The GPUs while seats are handed out.

    What makes a place better than another stays as it is meanwhile, and what is taken stays taken:
    so a profile's places are gone through once, the best first.
    """

    def __init__(self, spots: Sequence[Spot], *, is_packing: bool = False) -> None:
        self._spots = spots
        self._is_packing = is_packing
        self._taken = [spot.fixed_bits for spot in spots]
        self._left: dict[str, Iterator[_Place]] = {}  # by profile: the places not looked at yet

    def seat(self, wish: int, name: str) -> Seat | None:
        """The best place left for a profile; None if there is none."""
        if name not in self._left:
            self._left[name] = iter(self._best_first(name))
        for index, bits, placed in self._left[name]:
            if not self._taken[index] & bits:
                self._taken[index] |= bits
                return Seat(wish, self._spots[index].occupancy.gpu, placed)
        return None

    def _best_first(self, name: str) -> Iterable[_Place]:
        if self._is_packing:
            return sorted(self._places(name), key=lambda place: -place.placed.placement.start)
        if any(spot.drawn or spot.leased for spot in self._spots):
            return sorted(self._places(name), key=self._on_leases)
        return self._places(name)

    def _on_leases(self, place: _Place) -> tuple[int, int]:
        return self._spots[place.spot].lying_on(place.bits)

    def _places(self, name: str) -> Iterator[_Place]:
        """The first GPU's first, on each the highest start first."""
        for index, spot in enumerate(self._spots):
            gpu = spot.occupancy
            if gpu.usable:
                for bits, placed in gpu.geometry.places.get(name, ()):
                    yield _Place(index, bits, placed)


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
    for course in sorted({spot.occupancy.course for spot in spots} - {""}):
        mine = {n: wish for n, wish in enumerate(wishes) if wish.course == course}
        own = [spot for spot in spots if spot.occupancy.course == course]
        found = _keep_numbered(mine, own)
        kept |= {n: seats for n, seats in found.items() if len(seats) == len(mine[n].profiles)}
    rest = {n: wish for n, wish in enumerate(wishes) if n not in kept}
    return kept | _keep_numbered(rest, [spot for spot in spots if not spot.occupancy.course])


def _keep_numbered(
    wishes: Mapping[int, Wish], spots: Sequence[Spot]
) -> dict[int, tuple[Seat, ...]]:
    numbers = list(wishes)
    kept: dict[int, tuple[Seat, ...]] = {}
    for seat in keep([wishes[number].profiles for number in numbers], spots):
        number = numbers[seat.wish]
        kept[number] = (*kept.get(number, ()), Seat(number, seat.gpu, seat.placed))
    return kept


def _has_media(wanted: Iterable[tuple[int, str]], spots: Iterable[Spot]) -> bool:
    names = {name for _, name in wanted}
    kinds = {spot.occupancy.geometry for spot in spots}
    return any(p.has_media and p.name in names for kind in kinds for p in kind.profiles)


def _placed(wanted: Sequence[tuple[int, str]], spots: Sequence[Spot]) -> tuple[Seat, ...] | None:
    """By trying: how GPUs are filled best is not known of ``+me``, of which each has one."""
    gpus = [replace(spot.occupancy, live=spot.occupancy.fixed, warm=()) for spot in spots]
    choices = place([name for _, name in wanted], gpus)
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
        orders |= spot.occupancy.geometry.packing_order
    wanted = [(wish, name) for wish, names in enumerate(wishes) for name in names]
    return sorted(wanted, key=lambda one: orders.get(one[1], (0, 0, False)))


def _seated(wanted: Iterable[tuple[int, str]], board: _Board) -> tuple[Seat, ...]:
    seats = (board.seat(wish, name) for wish, name in wanted)
    return tuple(seat for seat in seats if seat is not None)


def without(occupancy: GpuOccupancy, kept: Sequence[Placed]) -> GpuOccupancy:
    """The GPU for those who may not use the seats kept: no lease's end will free them."""
    if not kept:
        return occupancy
    warm = tuple(item for item in occupancy.warm if not any(clash(item, seat) for seat in kept))
    live, fixed = (*occupancy.live, *kept), (*occupancy.fixed, *kept)
    return replace(occupancy, live=live, warm=warm, fixed=fixed)


def is_empty(gpu: GpuOccupancy, placed: Placed) -> bool:
    """Whether nothing but warm slices lies on a place."""
    return not any(clash(placed, other) for other in gpu.live)
