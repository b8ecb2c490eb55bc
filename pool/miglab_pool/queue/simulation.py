"""One future of the queue, by the pool's own decision.  Pure.

What is reserved takes its course too: when its slots are first kept they are closed, its students
who wait already get them, others take up theirs when the class begins or do not, and at the end of
the grace what is left is open to all.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf

from miglab_pool.gpu.geometry import Placed
from miglab_pool.queue.backfill import first_that_fits, hold_for
from miglab_pool.queue.rules import Asker, FairShareUsage, Waiting, in_order
from miglab_pool.state.placement import Choice, GpuOccupancy, beside, open_to, place, without
from miglab_pool.state.slot_choice import is_empty

PlacedOn = tuple[str, Placed]  # the GPU, and what lies there

LEAST_KNOWN = 5  # leases over; fewer are no history
HORIZON_S = 12 * 3600.0  # a day of classes: whoever is not served in it is told this much


@dataclass(frozen=True)
class Holding:
    """What lies on the GPUs and will become free.

    Attributes:
        slices: its slices, each with its GPU.
        age_s: how long it has lasted.
        last_end_s: until its end if every extension is used; None for no end.
        idle_end_s: until it is reclaimed as idle, unless somebody says "I am still here".
        is_borrow: whether a measurement holds it, and not a server.
    """

    slices: tuple[PlacedOn, ...]
    age_s: float = 0.0
    last_end_s: float | None = None
    idle_end_s: float | None = None
    is_borrow: bool = False


@dataclass(frozen=True)
class Booking:
    """What a reservation keeps, now or later; all times in seconds from the moment on.

    Attributes:
        course: whose it is.
        profiles: of each lease.
        slots: those of each lease that it has yet to draw.
        begins_s: when they are first kept.
        starts_s: when the class begins.
        ends_s: when what is not taken up is free for all.
        coming: how many have a slot already, and are no longer in the queue.
    """

    course: str
    profiles: tuple[str, ...]
    slots: tuple[tuple[PlacedOn, ...], ...]
    begins_s: float
    starts_s: float
    ends_s: float
    coming: int = 0

    def is_for(self, one: Waiting) -> bool:
        """Whether somebody in the queue draws on it."""
        return (one.course, one.profiles) == (self.course, self.profiles)


@dataclass(frozen=True)
class Lately:
    """What happened in the last days.

    Attributes:
        lasted_s: how long servers' leases lasted, shortest first.
        comers: examples of who asks, each as likely as it is often here.
        every_s: mean time between two of them; None if nobody comes.
        borrowed_s: how long measurements borrowed, shortest first; seconds where servers' leases
            last hours, so that neither says anything of the other.
    """

    lasted_s: tuple[float, ...] = ()
    comers: tuple[Waiting, ...] = ()
    every_s: float | None = None
    borrowed_s: tuple[float, ...] = ()

    def of(self, *, is_borrow: bool) -> tuple[float, ...]:
        """How long leases of one kind lasted."""
        return self.borrowed_s if is_borrow else self.lasted_s


@dataclass(frozen=True)
class Scene:
    """All that the future is worked out from.

    Attributes:
        queued: who waits, first in front.
        asking: the profiles that a newcomer might ask for.
        gpus: every GPU; the placements of ``holdings`` are part of ``live``.
        usage: what everybody has used lately; its ``now`` is the moment of the estimate.
        lease_s: how long a lease lasts at most if nothing is known; None for no limit.
        borrow_s: the same of what is borrowed.
        longest_wait_s: no measurement waits longer: it is then refused.
        bookings: what is reserved, as far ahead as anybody waits.
    """

    queued: tuple[Waiting, ...]
    gpus: tuple[GpuOccupancy, ...]
    holdings: tuple[Holding, ...]
    lately: Lately
    usage: FairShareUsage
    lease_s: float | None
    borrow_s: float
    longest_wait_s: float
    asking: frozenset[tuple[str, ...]] = frozenset()
    bookings: tuple[Booking, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether there is enough to draw from, of each kind that holds slices or waits."""
        kinds = {one.is_borrow for one in self.holdings} | {one.is_borrow for one in self.queued}
        return all(len(self.lately.of(is_borrow=kind)) >= LEAST_KNOWN for kind in kinds or {False})


class Longest:
    """What a future is made of; here everyone stays to the last end possible, and nobody comes."""

    def __init__(self, scene: Scene) -> None:
        self._lease_s, self._borrow_s = scene.lease_s, scene.borrow_s

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends; None for never."""
        return holding.last_end_s

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """How long a new lease lasts; None for ever."""
        return self._borrow_s if is_borrow else self._lease_s

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Who comes, and when."""
        return iter(())

    def comes(self) -> bool:
        """Whether somebody claims a reserved slot."""
        return True


class Future:
    """One future of the queue, until everybody is served or has waited too long."""

    def __init__(self, scene: Scene, source: Longest) -> None:
        self._scene, self._source = scene, source
        self._now = scene.usage.now
        self._queued = list(scene.queued)
        self._gpus = {occupancy.gpu: occupancy for occupancy in scene.gpus}
        self._order = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._asking = set(scene.asking)
        self._may_serve = True  # something has changed that lets somebody go
        self._first: int | None = None
        self._owners = {one.course for one in scene.gpus}
        self._refused: set[tuple[tuple[str, ...], str]] = set()
        self._left = {one.ticket for one in scene.queued}
        self._waits: dict[Asker, float] = {}
        for holding in scene.holdings:
            self._free_at(source.end_s(holding), holding.slices)
        for booking in scene.bookings:
            self._at(booking.begins_s, partial(self._keep, booking))

    def waits(self) -> dict[Asker, float]:
        """How long each ticket waits from now on; those not served are missing."""
        comers = self._source.comers()
        comer = next(comers, None)
        at_s = 0.0
        while (self._left or self._asking) and at_s <= HORIZON_S:
            next_s = self._events[0][0] if self._events else inf
            if self._may_serve and next_s > at_s:
                self._serve(at_s)
                next_s = self._events[0][0] if self._events else inf
            if comer is not None and comer[0] < next_s:
                at_s = comer[0]
                self._join(*comer)
                comer = next(comers, None)
            elif next_s < inf:
                at_s, _, happens = heapq.heappop(self._events)
                happens(at_s)
            else:
                break
        return self._waits

    def _at(self, at_s: float | None, happens: Callable[[float], None]) -> None:
        if at_s is not None:
            heapq.heappush(self._events, (at_s, next(self._order), happens))

    # -- leases -------------------------------------------------------------------------------

    def _free_at(self, at_s: float | None, slices: Iterable[PlacedOn]) -> None:
        self._at(at_s, lambda _: self._free(slices))

    def _free(self, slices: Iterable[PlacedOn]) -> None:
        self._may_serve = True
        for gpu, placed in slices:
            occupancy = self._gpus[gpu]
            live = _less(occupancy.live, placed)  # once: a slot kept by a reservation stays
            self._gpus[gpu] = replace(occupancy, live=live)

    def _take(self, one: Waiting, choices: Sequence[Choice], at_s: float) -> None:
        slices = tuple((one.gpu, Placed(one.profile, one.placement)) for one in choices)
        for gpu, placed in slices:
            occupancy = self._gpus[gpu]
            live = (*occupancy.live, placed)
            free = {**occupancy.frees_at, placed.placement.mask: self._set_end(one, at_s)}
            self._gpus[gpu] = replace(occupancy, live=live, warm=(), frees_at=free)
        self._free_at(self._over_s(at_s, is_borrow=one.is_borrow), slices)

    def _over_s(self, at_s: float, *, is_borrow: bool = False) -> float | None:
        """When a lease that begins then is over."""
        lasts_s = self._source.lasts_s(is_borrow=is_borrow)
        return None if lasts_s is None else at_s + lasts_s

    def _set_end(self, one: Waiting, at_s: float) -> float:
        """What will be set as the end of a lease that begins then."""
        lease_s = self._scene.borrow_s if one.is_borrow else self._scene.lease_s
        return inf if lease_s is None else self._now + at_s + lease_s

    # -- the queue -----------------------------------------------------------------------------

    def _join(self, at_s: float, comer: Waiting) -> None:
        new = comer._replace(ticket=-1 - next(self._order), since=self._now + at_s)
        usage = replace(self._scene.usage, now=self._now + at_s)
        self._queued = in_order([*self._queued, new], usage)
        is_same_first = self._queued[0].ticket == self._first
        self._may_serve = not is_same_first or self._kind(new) not in self._refused

    def _serve(self, at_s: float) -> None:
        gpus = list(self._gpus.values())
        while (grant := first_that_fits(self._queued, gpus)) is not None:
            one = next(one for one in self._queued if one.ticket == grant.ticket)
            self._leave_queue(one, at_s)
            self._take(one, grant.choices, at_s)
            gpus = list(self._gpus.values())
        self._may_serve = False
        self._first = self._queued[0].ticket if self._queued else None
        self._refused = {self._kind(one) for one in self._queued}
        self._serve_asking(at_s, gpus)

    def _kind(self, one: Waiting) -> tuple[tuple[str, ...], str]:
        """Who can go nowhere speaks for all who want the same on the same GPUs."""
        return one.profiles, one.course if one.course in self._owners else ""

    def _serve_asking(self, at_s: float, gpus: Sequence[GpuOccupancy]) -> None:
        """Let those who might ask stand at the end; who wants what a ticket wants waits with it.

        They are of no course: what is a course's own is not for them.
        """
        refused = {profiles for profiles, _ in self._refused}
        asking = self._asking - refused
        first = self._queued[0] if self._queued else None
        states = beside(open_to(gpus, ""), hold_for(first, gpus)) if asking else []
        for profiles in asking:
            if place(profiles, states) is not None:
                self._waits[profiles] = at_s
                self._asking.remove(profiles)

    def _leave_queue(self, one: Waiting, at_s: float) -> None:
        self._queued.remove(one)
        if one.ticket in self._left:
            self._left.remove(one.ticket)
            self._waits[one.ticket] = at_s

    # -- what is reserved ---------------------------------------------------------------------

    def _keep(self, booking: Booking, at_s: float) -> None:
        """Close its slots: its students in the queue have theirs, others come or do not."""
        claims = [one for one in self._queued if booking.is_for(one)]
        for number, slices in enumerate(booking.slots):
            begins_s = max(at_s, booking.starts_s)
            is_taken = number < booking.coming or bool(claims) or self._source.comes()
            if number >= booking.coming and claims:
                if all(is_empty(self._gpus[gpu], placed) for gpu, placed in slices):
                    begins_s = at_s
                self._leave_queue(claims.pop(0), begins_s)
            for gpu, placed in slices:
                self._gpus[gpu] = without(self._gpus[gpu], (placed,))
            over_s = self._over_s(begins_s) if is_taken else booking.ends_s
            self._at(over_s, partial(self._open, slices))
        self._may_serve = True

    def _open(self, slices: Iterable[PlacedOn], _at_s: float) -> None:
        """Let go of what was kept."""
        self._free(slices)
        for gpu, placed in slices:
            occupancy = self._gpus[gpu]
            self._gpus[gpu] = replace(occupancy, fixed=_less(occupancy.fixed, placed))


def _less(items: tuple[Placed, ...], one: Placed) -> tuple[Placed, ...]:
    """Without one of those that are equal to it."""
    left = list(items)
    left.remove(one)
    return tuple(left)
