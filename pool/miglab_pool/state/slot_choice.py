"""Which placements become reserved slots.  Pure: what is wanted and what lies on the GPUs in.

A slot is chosen where the fewest leases lie, so that few must end before it is empty.  Leases of
the class itself are counted first: it must not wait for its own.  If that leaves no slot for some,
all are chosen as GPUs are packed best, whatever leases lie there: what fits is never given
up for a good first slot.  Which free slices exist plays no part: so cutting a slot never moves
another, and comes to an end.
Knows neither ledger nor clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from miglab_pool.gpu.geometry import Placed
from miglab_pool.state.placement import GpuOccupancy, Slot, clash, place

FEW = 8  # slices; trying takes time that grows with a power of it


@dataclass(frozen=True)
class SlotCandidate:
    """A GPU on which slots may be chosen.

    Attributes:
        occupancy: as the queue sees it.
        leased: what of it will be free when a lease ends.
        drawn: the same of leases for which slots are reserved: unlikely to end in time.
    """

    occupancy: GpuOccupancy
    leased: tuple[Placed, ...] = ()
    drawn: tuple[Placed, ...] = ()

    @cached_property
    def fixed_bits(self) -> int:
        """What no slot can have, as `Placed.bits`."""
        bits = 0
        for item in self.occupancy.fixed:
            bits |= item.bits
        return bits

    @cached_property
    def free(self) -> dict[str, tuple[tuple[int, Placed], ...]]:
        """Each profile's placements beside what is fixed, as `Geometry.placements` has them."""
        fixed = self.fixed_bits
        return {
            name: tuple(one for one in placements if not one[0] & fixed)
            for name, placements in self.occupancy.geometry.placements.items()
        }

    def lying_on(self, bits: int) -> tuple[int, int]:
        """How many drawn and leased slices lie on a placement."""
        drawn, leased = self._lying_bits
        return sum(bool(bits & one) for one in drawn), sum(bool(bits & one) for one in leased)

    @cached_property
    def _lying_bits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(item.bits for item in self.drawn), tuple(item.bits for item in self.leased)


class SlotRequest(NamedTuple):
    """A lease that is to have slots: whose, and the profiles of its slices."""

    course: str
    profiles: Sequence[str]


class _Choice(NamedTuple):
    """Where a slot might be: its candidate's number, `Placed.bits`, and what would lie there."""

    candidate: int
    bits: int
    placed: Placed


class _Board:
    """The GPUs while slots are chosen.

    What makes a placement better than another stays as it is meanwhile, and what is taken stays
    taken: so a profile's placements are gone through once, the best first.
    """

    def __init__(self, candidates: Sequence[SlotCandidate], *, is_packing: bool = False) -> None:
        self._candidates = candidates
        self._is_packing = is_packing
        self._taken = [candidate.fixed_bits for candidate in candidates]
        self._left: dict[str, Iterator[_Choice]] = {}  # by profile: the placements not tried yet

    def slot(self, request: int, name: str) -> Slot | None:
        """The best placement left for a profile; None if there is none."""
        if name not in self._left:
            self._left[name] = iter(self._best_first(name))
        for index, bits, placed in self._left[name]:
            if not self._taken[index] & bits:
                self._taken[index] |= bits
                return Slot(request, self._candidates[index].occupancy.gpu, placed)
        return None

    def _best_first(self, name: str) -> Iterable[_Choice]:
        if self._is_packing:
            return sorted(self._choices(name), key=lambda choice: -choice.placed.placement.start)
        if any(candidate.drawn or candidate.leased for candidate in self._candidates):
            return sorted(self._choices(name), key=self._on_leases)
        return self._choices(name)

    def _on_leases(self, choice: _Choice) -> tuple[int, int]:
        return self._candidates[choice.candidate].lying_on(choice.bits)

    def _choices(self, name: str) -> Iterator[_Choice]:
        """The first GPU's first, on each the highest start first."""
        for index, candidate in enumerate(self._candidates):
            if candidate.occupancy.usable:
                for bits, placed in candidate.free.get(name, ()):
                    yield _Choice(index, bits, placed)


def choose_slots(
    requests: Sequence[Sequence[str]], candidates: Sequence[SlotCandidate]
) -> tuple[Slot, ...]:
    """Choose a slot for every slice of every request.

    Args:
        requests: the profiles of each lease that is to have slots, the most urgent first.
        candidates: the GPUs.

    Returns:
        The slots, none overlapping another or what is fixed.  All of them if that is possible on
        the usable GPUs once their leases have ended (of more than `FEW` slices, some of
        which need the same engines: not surely); else as many as were found.
    """
    if not requests:
        return ()
    wanted = _in_packing_order(requests, candidates)
    found = _choose_on(wanted, _Board(candidates))
    if len(found) < len(wanted):
        packed = _choose_on(wanted, _Board(candidates, is_packing=True))
        found = packed if len(packed) > len(found) else found
    if len(found) < len(wanted) <= FEW and _need_engines(wanted, candidates):
        found = _placed(wanted, candidates) or found
    return found


def choose_slots_for(
    requests: Sequence[SlotRequest], candidates: Sequence[SlotCandidate]
) -> dict[int, tuple[Slot, ...]]:
    """Choose slots where some GPUs are courses' own.

    Returns:
        The slots of each request, by its number: on its course's own GPUs if all of it fits there,
        else on those for all.
    """
    chosen: dict[int, tuple[Slot, ...]] = {}
    for course in sorted({candidate.occupancy.course for candidate in candidates} - {""}):
        mine = {n: request for n, request in enumerate(requests) if request.course == course}
        own = [candidate for candidate in candidates if candidate.occupancy.course == course]
        found = _choose_numbered(mine, own)
        chosen |= {n: slots for n, slots in found.items() if len(slots) == len(mine[n].profiles)}
    rest = {n: request for n, request in enumerate(requests) if n not in chosen}
    return chosen | _choose_numbered(
        rest, [candidate for candidate in candidates if not candidate.occupancy.course]
    )


def _choose_numbered(
    requests: Mapping[int, SlotRequest], candidates: Sequence[SlotCandidate]
) -> dict[int, tuple[Slot, ...]]:
    numbers = list(requests)
    chosen: dict[int, tuple[Slot, ...]] = {}
    for slot in choose_slots([requests[number].profiles for number in numbers], candidates):
        number = numbers[slot.request]
        chosen[number] = (*chosen.get(number, ()), Slot(number, slot.gpu, slot.placed))
    return chosen


def _need_engines(wanted: Iterable[tuple[int, str]], candidates: Iterable[SlotCandidate]) -> bool:
    names = {name for _, name in wanted}
    kinds = {candidate.occupancy.geometry for candidate in candidates}
    return any(p.engine_bits and p.name in names for kind in kinds for p in kind.profiles)


def _placed(
    wanted: Sequence[tuple[int, str]], candidates: Sequence[SlotCandidate]
) -> tuple[Slot, ...] | None:
    """By trying: how GPUs are filled best is not known of ``+me``, of which a GPU has one."""
    gpus = [
        replace(candidate.occupancy, live=candidate.occupancy.fixed, warm=())
        for candidate in candidates
    ]
    choices = place([name for _, name in wanted], gpus)
    if choices is None:
        return None
    return tuple(
        Slot(request, choice.gpu, Placed(choice.profile, choice.placement))
        for (request, _), choice in zip(wanted, choices, strict=True)
    )


def _in_packing_order(
    requests: Sequence[Sequence[str]], candidates: Sequence[SlotCandidate]
) -> list[tuple[int, str]]:
    """Large ones first, of equals those with the fewest placements."""
    orders: dict[str, tuple[int, int, bool]] = {}
    kinds = (candidate.occupancy.geometry for candidate in candidates)
    for geometry in {id(one): one for one in kinds}.values():
        orders |= geometry.packing_order
    wanted = [(request, name) for request, names in enumerate(requests) for name in names]
    return sorted(wanted, key=lambda one: orders.get(one[1], (0, 0, False)))


def _choose_on(wanted: Iterable[tuple[int, str]], board: _Board) -> tuple[Slot, ...]:
    slots = (board.slot(request, name) for request, name in wanted)
    return tuple(slot for slot in slots if slot is not None)


def is_empty(gpu: GpuOccupancy, placed: Placed) -> bool:
    """Whether nothing but warm slices lies on a slot."""
    return not any(clash(placed, other) for other in gpu.live)
