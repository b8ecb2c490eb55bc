"""Chooses the placements of reserved slots.  Pure: from requests and the slices on the GPUs.

A slot is chosen where the fewest leases lie, so that few must end before it is empty.  Leases of
the class itself are counted first: it must not wait for its own.  If that leaves no slot for some,
all are chosen as GPUs are packed best, whatever leases lie there: what fits is never given
up for a good first slot.  Which free slices exist plays no part, so cutting a slot never moves
another, and cutting comes to an end.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.state.placement import GpuOccupancy, Slot, clash, place

FEW = 8  # slices; trying takes time that grows with a power of it


@dataclass(frozen=True)
class SlotCandidate:
    """A GPU on which slots may be chosen.

    Attributes:
        occupancy: as the queue sees it.
        leased: what of it will be free when a lease ends.
        drawn_leases: the same of leases for which slots are reserved: unlikely to end in time.
    """

    occupancy: GpuOccupancy
    leased: tuple[ProfilePlacement, ...] = ()
    drawn_leases: tuple[ProfilePlacement, ...] = ()

    @cached_property
    def immovable_bits(self) -> int:
        """The part of the GPU that no slot can have, as `ProfilePlacement.bits`."""
        bits = 0
        for placed_slice in self.occupancy.immovable:
            bits |= placed_slice.bits
        return bits

    @cached_property
    def free_placements(self) -> dict[str, tuple[tuple[int, ProfilePlacement], ...]]:
        """By profile, the placements beside what is immovable, as in `Geometry.placements`."""
        immovable = self.immovable_bits
        return {
            name: tuple(option for option in placements if not option[0] & immovable)
            for name, placements in self.occupancy.geometry.placements.items()
        }

    def count_leases_on(self, bits: int) -> tuple[int, int]:
        """How many drawn and leased slices lie on a placement."""
        drawn_bits, leased_bits = self._lease_bits
        return sum(bool(bits & lease_bits) for lease_bits in drawn_bits), sum(
            bool(bits & lease_bits) for lease_bits in leased_bits
        )

    @cached_property
    def _lease_bits(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        drawn_bits = tuple(placed_slice.bits for placed_slice in self.drawn_leases)
        return drawn_bits, tuple(placed_slice.bits for placed_slice in self.leased)


class SlotRequest(NamedTuple):
    """A lease that is to have slots: its course, and the profiles of its slices."""

    course: str
    profiles: Sequence[str]


class _SlotOption(NamedTuple):
    """A possible slot: its candidate's number, the bits of its placed slice, and that slice."""

    candidate: int
    bits: int
    placed_slice: ProfilePlacement


class _SlotPicker:
    """Picks slots one after another.

    The order of a profile's placements does not change meanwhile, and an occupied one stays
    occupied, so each profile's placements are tried once, the best first.
    """

    def __init__(self, candidates: Sequence[SlotCandidate], *, is_packing: bool = False) -> None:
        self._candidates = candidates
        self._is_packing = is_packing
        self._occupied = [candidate.immovable_bits for candidate in candidates]
        self._untried: dict[str, Iterator[_SlotOption]] = {}  # by profile

    def pick(self, request: int, name: str) -> Slot | None:
        """Occupy the best placement left for a profile; return its slot, None if none is left."""
        if name not in self._untried:
            self._untried[name] = iter(self._best_first(name))
        for index, bits, placed_slice in self._untried[name]:
            if not self._occupied[index] & bits:
                self._occupied[index] |= bits
                return Slot(request, self._candidates[index].occupancy.gpu, placed_slice)
        return None

    def _best_first(self, name: str) -> Iterable[_SlotOption]:
        if self._is_packing:
            return sorted(
                self._options(name), key=lambda option: -option.placed_slice.placement.start
            )
        if any(candidate.drawn_leases or candidate.leased for candidate in self._candidates):
            return sorted(self._options(name), key=self._count_leases)
        return self._options(name)

    def _count_leases(self, option: _SlotOption) -> tuple[int, int]:
        return self._candidates[option.candidate].count_leases_on(option.bits)

    def _options(self, name: str) -> Iterator[_SlotOption]:
        """Yield the possible slots of a profile, GPU by GPU, on each the highest start first."""
        for index, candidate in enumerate(self._candidates):
            if candidate.occupancy.usable:
                for bits, placed_slice in candidate.free_placements.get(name, ()):
                    yield _SlotOption(index, bits, placed_slice)


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
    slices = _in_packing_order(requests, candidates)
    slots = _pick_all(slices, _SlotPicker(candidates))
    if len(slots) < len(slices):
        packed = _pick_all(slices, _SlotPicker(candidates, is_packing=True))
        slots = packed if len(packed) > len(slots) else slots
    if len(slots) < len(slices) <= FEW and _need_engines(slices, candidates):
        slots = _choose_by_placing(slices, candidates) or slots
    return slots


def choose_slots_for(
    requests: Sequence[SlotRequest], candidates: Sequence[SlotCandidate]
) -> dict[int, tuple[Slot, ...]]:
    """Choose slots where some GPUs are courses' own.

    Returns:
        The slots of each request, by its number: on its course's own GPUs if all of it fits there,
        else on those for all.
    """
    slots_by_request: dict[int, tuple[Slot, ...]] = {}
    for course in sorted({candidate.occupancy.course for candidate in candidates} - {""}):
        course_requests = {
            n: request for n, request in enumerate(requests) if request.course == course
        }
        course_gpus = [
            candidate for candidate in candidates if candidate.occupancy.course == course
        ]
        slots_on_own = _choose_numbered(course_requests, course_gpus)
        slots_by_request |= {
            n: slots
            for n, slots in slots_on_own.items()
            if len(slots) == len(course_requests[n].profiles)
        }
    shared_requests = {
        n: request for n, request in enumerate(requests) if n not in slots_by_request
    }
    return slots_by_request | _choose_numbered(
        shared_requests, [candidate for candidate in candidates if not candidate.occupancy.course]
    )


def _choose_numbered(
    requests: Mapping[int, SlotRequest], candidates: Sequence[SlotCandidate]
) -> dict[int, tuple[Slot, ...]]:
    numbers = list(requests)
    slots_by_request: dict[int, tuple[Slot, ...]] = {}
    for slot in choose_slots([requests[number].profiles for number in numbers], candidates):
        number = numbers[slot.request]
        slots_by_request[number] = (
            *slots_by_request.get(number, ()),
            Slot(number, slot.gpu, slot.placed_slice),
        )
    return slots_by_request


def _need_engines(slices: Iterable[tuple[int, str]], candidates: Iterable[SlotCandidate]) -> bool:
    names = {name for _, name in slices}
    kinds = {candidate.occupancy.geometry for candidate in candidates}
    return any(p.engine_bits and p.name in names for kind in kinds for p in kind.profiles)


def _choose_by_placing(
    slices: Sequence[tuple[int, str]], candidates: Sequence[SlotCandidate]
) -> tuple[Slot, ...] | None:
    """Choose slots by placing all slices: for ``+me``, one to a GPU, no packing order is known."""
    gpus = [
        replace(candidate.occupancy, live=candidate.occupancy.immovable, warm=())
        for candidate in candidates
    ]
    choices = place([name for _, name in slices], gpus)
    if choices is None:
        return None
    return tuple(
        Slot(request, choice.gpu, ProfilePlacement(choice.profile, choice.placement))
        for (request, _), choice in zip(slices, choices, strict=True)
    )


def _in_packing_order(
    requests: Sequence[Sequence[str]], candidates: Sequence[SlotCandidate]
) -> list[tuple[int, str]]:
    """Return all slices with their request's number, large ones first, then the least movable."""
    orders: dict[str, tuple[int, int, bool]] = {}
    kinds = (candidate.occupancy.geometry for candidate in candidates)
    for geometry in {id(geometry): geometry for geometry in kinds}.values():
        orders |= geometry.packing_order
    slices = [(request, name) for request, names in enumerate(requests) for name in names]
    return sorted(slices, key=lambda numbered: orders.get(numbered[1], (0, 0, False)))


def _pick_all(slices: Iterable[tuple[int, str]], picker: _SlotPicker) -> tuple[Slot, ...]:
    slots = (picker.pick(request, name) for request, name in slices)
    return tuple(slot for slot in slots if slot is not None)


def is_unleased(gpu: GpuOccupancy, placed_slice: ProfilePlacement) -> bool:
    """Whether only warm slices overlap a slot's placement."""
    return not any(clash(placed_slice, other) for other in gpu.live)
