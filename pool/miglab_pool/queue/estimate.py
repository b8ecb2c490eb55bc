"""How long a wait is likely to last.  Pure: queue, GPUs and history in, ranges out.

The queue is simulated forward many times with the pool's own decision.  In each run, every live
lease ends at a time drawn from how long leases lasted lately, given how long it has lasted already,
but not after its last possible end.  A lease that is granted in the run lasts as long as some lease
of the history did.  New tickets arrive as often as they did lately, and may overtake by fair share
or a small shape.  A slot that is reserved now counts as a lease that begins; later reservations are
left out.  One run of forty lies below the range that is shown, and one above.

Servers keep slices for hours and measurements for seconds, so each kind has a history of its own.
If a kind that holds slices or waits has no history, the estimate is the wait that results if
everybody stays until the last possible end.  There is no estimate where leases have no such end, or
where the range is so wide that it says nothing.
"""

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from miglab_api.tickets import WaitEstimate
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.queue.order import first_that_fits, hold_for
from miglab_pool.queue.rules import WaitingTicket, queue_order
from miglab_pool.state.fair_share import FairShareUsage
from miglab_pool.state.placement import (
    Choice,
    GpuOccupancy,
    place,
    usable_by_course,
    without_reserved,
)
from miglab_pool.state.wait_estimates import EstimateKey

PlacedOn = tuple[str, ProfilePlacement]  # the GPU, and what lies there

LEAST_HISTORY = 5  # leases that are over; fewer are no history
HORIZON_S = 12 * 3600.0  # a day of classes: no estimate goes beyond it
RUNS = 60
LOW, HIGH = 0.025, 0.975  # quantiles; wider than documented, since no model is complete
SOON_S, HOURS_S = 3600.0, 4 * 3600.0  # a range from within the one to beyond the other says nothing
_BASIS_ENDS = (
    "if everyone keeps their slice until their time is up; "
    "how long leases really last is not known yet"
)


# -- the input -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holding:
    """Slices that are in use and will become free.

    Attributes:
        slices: the slices, each with its GPU.
        age_s: how long they have been held, since the grant.
        last_end_s: until its end if every extension is used; None for no end.
        idle_end_s: until it is reclaimed as idle, unless somebody says "I am still here".
        is_borrow: whether a measurement holds them, and not a server.
    """

    slices: tuple[PlacedOn, ...]
    age_s: float = 0.0
    last_end_s: float | None = None
    idle_end_s: float | None = None
    is_borrow: bool = False


@dataclass(frozen=True)
class RecentHistory:
    """How long leases lasted and how often tickets came in the last days.

    Attributes:
        lasted_s: how long servers' leases lasted, shortest first.
        arrivals: recent tickets, from which new ones are drawn with equal chance.
        interval_s: mean time between two arrivals; None if nobody comes.
        borrowed_s: how long measurements borrowed, shortest first: seconds, where servers' leases
            last hours.
    """

    lasted_s: tuple[float, ...] = ()
    arrivals: tuple[WaitingTicket, ...] = ()
    interval_s: float | None = None
    borrowed_s: tuple[float, ...] = ()

    def lengths_s(self, *, is_borrow: bool) -> tuple[float, ...]:
        """Return how long leases of one kind lasted, shortest first."""
        return self.borrowed_s if is_borrow else self.lasted_s


@dataclass(frozen=True)
class SimulationInput:
    """All that the simulation starts from.

    Attributes:
        queued: the waiting tickets in their order.
        prospective: shapes, in profiles, that a newcomer might ask for; each gets an estimate too.
        gpus: every GPU; the placements of ``holdings`` are part of ``live``.
        usage: recent use of courses and users; its ``now`` is the moment of the estimate.
        lease_s: the longest that a server's lease may last; None for no limit.
        borrow_s: the longest that a measurement may borrow.
        longest_wait_s: after which wait a measurement is refused.
    """

    queued: tuple[WaitingTicket, ...]
    gpus: tuple[GpuOccupancy, ...]
    holdings: tuple[Holding, ...]
    history: RecentHistory
    usage: FairShareUsage
    lease_s: float | None
    borrow_s: float
    longest_wait_s: float
    prospective: frozenset[tuple[str, ...]] = frozenset()

    @property
    def has_history(self) -> bool:
        """Whether each kind of lease that is live or waited for has enough history."""
        kinds = {holding.is_borrow for holding in self.holdings}
        kinds |= {ticket.is_borrow for ticket in self.queued}
        counts = (len(self.history.lengths_s(is_borrow=kind)) for kind in kinds or {False})
        return all(count >= LEAST_HISTORY for count in counts)


# -- one run --------------------------------------------------------------------------------------


class LongestStays:
    """When leases end and tickets arrive: all stay to the last possible end, and nobody arrives."""

    def __init__(self, inputs: SimulationInput) -> None:
        self._lease_s, self._borrow_s = inputs.lease_s, inputs.borrow_s

    def end_s(self, holding: Holding) -> float | None:
        """Return in how many seconds a live lease ends; None for never."""
        return holding.last_end_s

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """Return how long a new lease lasts; None for ever."""
        return self._borrow_s if is_borrow else self._lease_s

    def arrivals(self) -> Iterator[tuple[float, WaitingTicket]]:
        """Who comes, and when."""
        return iter(())


class QueueSimulation:
    """One simulated run of the queue, until all are served or the horizon is reached."""

    def __init__(self, inputs: SimulationInput, source: LongestStays) -> None:
        self._inputs, self._source = inputs, source
        self._now = inputs.usage.now
        self._queued = list(inputs.queued)
        self._gpus = {occupancy.gpu: occupancy for occupancy in inputs.gpus}
        self._order = count()
        self._ends: list[tuple[float, int, Iterable[PlacedOn]]] = []
        self._prospective = set(inputs.prospective)
        self._may_serve = True  # something changed, so that a ticket may be served
        self._first_id: int | None = None
        self._owners = {occupancy.course for occupancy in inputs.gpus}
        self._refused: set[tuple[tuple[str, ...], str]] = set()
        self._unserved = {ticket.id for ticket in inputs.queued}
        self._waits: dict[EstimateKey, float] = {}
        for holding in inputs.holdings:
            self._free_later(source.end_s(holding), holding.slices)

    def run(self) -> dict[EstimateKey, float]:
        """Run the simulation; return how long each ticket waits.

        Tickets that are not served are missing.
        """
        arrivals = self._source.arrivals()
        arrival = next(arrivals, None)
        at_s = 0.0
        while (self._unserved or self._prospective) and at_s <= HORIZON_S:
            next_s = self._ends[0][0] if self._ends else inf
            if self._may_serve and next_s > at_s:
                self._serve(at_s)
                next_s = self._ends[0][0] if self._ends else inf
            if arrival is not None and arrival[0] < next_s:
                at_s = arrival[0]
                self._join(*arrival)
                arrival = next(arrivals, None)
            elif next_s < inf:
                at_s, _, slices = heapq.heappop(self._ends)
                self._free(slices)
            else:
                break
        return self._waits

    # -- leases -------------------------------------------------------------------------------

    def _free_later(self, at_s: float | None, slices: Iterable[PlacedOn]) -> None:
        if at_s is not None:
            heapq.heappush(self._ends, (at_s, next(self._order), slices))

    def _free(self, slices: Iterable[PlacedOn]) -> None:
        self._may_serve = True
        for gpu, placed_slice in slices:
            occupancy = self._gpus[gpu]
            live = list(occupancy.live)
            live.remove(placed_slice)  # once: a reserved slot where a lease still lies stays
            self._gpus[gpu] = replace(occupancy, live=tuple(live))

    def _occupy(self, ticket: WaitingTicket, choices: Sequence[Choice], at_s: float) -> None:
        slices = tuple(
            (choice.gpu, ProfilePlacement(choice.profile, choice.placement)) for choice in choices
        )
        for gpu, placed_slice in slices:
            occupancy = self._gpus[gpu]
            live = (*occupancy.live, placed_slice)
            free = {
                **occupancy.frees_at,
                placed_slice.placement.mask: self._latest_end(ticket, at_s),
            }
            self._gpus[gpu] = replace(occupancy, live=live, warm=(), frees_at=free)
        lasts_s = self._source.lasts_s(is_borrow=ticket.is_borrow)
        self._free_later(None if lasts_s is None else at_s + lasts_s, slices)

    def _latest_end(self, ticket: WaitingTicket, at_s: float) -> float:
        """Return the latest end of a lease that begins then, seconds since the epoch."""
        lease_s = self._inputs.borrow_s if ticket.is_borrow else self._inputs.lease_s
        return inf if lease_s is None else self._now + at_s + lease_s

    # -- the queue -----------------------------------------------------------------------------

    def _join(self, at_s: float, arrival: WaitingTicket) -> None:
        new = arrival._replace(id=-1 - next(self._order), since=self._now + at_s)
        usage = replace(self._inputs.usage, now=self._now + at_s)
        self._queued = queue_order([*self._queued, new], usage)
        is_same_first = self._queued[0].id == self._first_id
        self._may_serve = not is_same_first or self._request_kind(new) not in self._refused

    def _serve(self, at_s: float) -> None:
        gpus = list(self._gpus.values())
        while (grant := first_that_fits(self._queued, gpus)) is not None:
            ticket = next(ticket for ticket in self._queued if ticket.id == grant.ticket)
            self._queued.remove(ticket)
            if ticket.id in self._unserved:
                self._unserved.remove(ticket.id)
                self._waits[ticket.id] = at_s
            self._occupy(ticket, grant.choices, at_s)
            gpus = list(self._gpus.values())
        self._may_serve = False
        self._first_id = self._queued[0].id if self._queued else None
        self._refused = {self._request_kind(ticket) for ticket in self._queued}
        self._serve_prospective(at_s, gpus)

    def _request_kind(self, ticket: WaitingTicket) -> tuple[tuple[str, ...], str]:
        """Return what a ticket asks for and on which GPUs: equal kinds are refused together."""
        return ticket.profiles, ticket.course if ticket.course in self._owners else ""

    def _serve_prospective(self, at_s: float, gpus: Sequence[GpuOccupancy]) -> None:
        """Serve the prospective shapes that have room behind the queue.

        A shape that a refused ticket asks for waits with that ticket.  Prospective shapes belong
        to no course, so they get no GPU that is a course's own.
        """
        refused = {profiles for profiles, _ in self._refused}
        prospective = self._prospective - refused
        first = self._queued[0] if self._queued else None
        states = (
            without_reserved(usable_by_course(gpus, ""), hold_for(first, gpus))
            if prospective
            else []
        )
        for profiles in prospective:
            if place(profiles, states) is not None:
                self._waits[profiles] = at_s
                self._prospective.remove(profiles)


# -- all runs -------------------------------------------------------------------------------------


class LeaseLengths:
    """The distribution of lease lengths, estimated after Kaplan and Meier (1958).

    A live lease counts as lasting longer than it has so far.  Without the live ones, leases would
    seem shorter than they are, because the long ones are the last to end.

    Args:
        lengths_s: how long each lease has lasted, and whether it is over.
        dice: the random numbers.
    """

    def __init__(self, lengths_s: Sequence[tuple[float, bool]], dice: random.Random) -> None:
        self._dice = dice
        self._lasted_s: list[float] = []
        self._shares: list[float] = []  # the share of leases that lasted at most so long
        alive = 1.0
        for at_risk, (lasted_s, is_over) in zip(
            range(len(lengths_s), 0, -1), sorted(lengths_s), strict=True
        ):
            if is_over:
                alive -= alive / at_risk
                self._lasted_s.append(lasted_s)
                self._shares.append(1.0 - alive)

    def draw(self, beyond_s: float = -1.0) -> float:
        """Draw a length that exceeds what a lease has lasted already.

        A lease that outlasts the history lasts as much longer as a lease drawn from it.
        """
        index_beyond = bisect_right(self._lasted_s, beyond_s)
        below = self._shares[index_beyond - 1] if index_beyond else 0.0
        index = bisect_left(self._shares, self._dice.uniform(below, 1.0), index_beyond)
        if index < len(self._lasted_s):
            return self._lasted_s[index]
        longest_s = max(beyond_s, *self._lasted_s[-1:], 0.0)
        return longest_s + (self._dice.choice(self._lasted_s) if self._lasted_s else 0.0)


class SampledStays(LongestStays):
    """When leases end and tickets arrive, drawn from recent history."""

    def __init__(self, inputs: SimulationInput, dice: random.Random) -> None:
        super().__init__(inputs)
        self._dice, self._history = dice, inputs.history
        self._lengths = {kind: _lengths(inputs, dice, is_borrow=kind) for kind in (False, True)}

    def end_s(self, holding: Holding) -> float | None:
        """Draw in how many seconds a live lease ends."""
        lengths = self._lengths[holding.is_borrow]
        end_s = lengths.draw(beyond_s=holding.age_s) - holding.age_s
        ends = [end_s] if holding.last_end_s is None else [end_s, holding.last_end_s]
        if holding.idle_end_s is not None and self._dice.random() < 0.5:  # nobody knows who stays
            ends.append(holding.idle_end_s)
        return max(0.0, min(ends))

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """Draw how long a new lease lasts."""
        return self._lengths[is_borrow].draw()

    def arrivals(self) -> Iterator[tuple[float, WaitingTicket]]:
        """Who comes, and when."""
        interval_s, arrivals = self._history.interval_s, self._history.arrivals
        at_s = 0.0
        while interval_s and arrivals:
            at_s += self._dice.expovariate(1 / interval_s)
            yield at_s, self._dice.choice(arrivals)


def _lengths(inputs: SimulationInput, dice: random.Random, *, is_borrow: bool) -> LeaseLengths:
    """Return the lengths of one kind of lease, resampled: the history is itself a sample."""
    lengths_s = [(lasted_s, True) for lasted_s in inputs.history.lengths_s(is_borrow=is_borrow)]
    alive = (holding for holding in inputs.holdings if holding.is_borrow == is_borrow)
    lengths_s += [(holding.age_s, False) for holding in alive]
    return LeaseLengths(dice.choices(lengths_s, k=len(lengths_s)) if lengths_s else [], dice)


def estimate_waits(inputs: SimulationInput, dice: random.Random) -> dict[EstimateKey, WaitEstimate]:
    """Estimate how long each ticket will wait.

    Args:
        inputs: queue, GPUs, leases and history at one moment.
        dice: the random numbers, seeded by the caller.

    Returns:
        The estimate of each ticket and each of ``prospective``; those without a
        meaningful estimate are missing.
    """
    is_sampled, estimates = inputs.has_history, {}
    sources = (
        [SampledStays(inputs, dice) for _ in range(RUNS)] if is_sampled else [LongestStays(inputs)]
    )
    runs = [QueueSimulation(inputs, source).run() for source in sources]
    for key, longest_s in _longest_waits_s(inputs).items():
        waits = sorted(min(run.get(key, longest_s), longest_s) for run in runs)
        low_s = _quantile(waits, LOW) if is_sampled else 0.0
        likely_s, high_s = _quantile(waits, 0.5), _quantile(waits, HIGH)
        if low_s >= SOON_S or high_s <= HOURS_S:
            basis = _basis(inputs.history) if is_sampled else _BASIS_ENDS
            estimates[key] = WaitEstimate(
                low_s=low_s, likely_s=likely_s, high_s=high_s, basis=basis
            )
    return estimates


def _longest_waits_s(inputs: SimulationInput) -> dict[EstimateKey, float]:
    """Return the longest wait of each ticket: the horizon, or when a measurement is refused."""
    refused_s = inputs.longest_wait_s - inputs.usage.now
    horizons_s: dict[EstimateKey, float] = dict.fromkeys(inputs.prospective, HORIZON_S)
    return horizons_s | {
        ticket.id: max(0.0, ticket.since + refused_s) if ticket.is_borrow else HORIZON_S
        for ticket in inputs.queued
    }


def _basis(history: RecentHistory) -> str:
    servers, borrowed = len(history.lasted_s), len(history.borrowed_s)
    samples = [f"{servers} leases"] if servers else []
    samples += [f"{borrowed} measurements on borrowed slices"] if borrowed else []
    return f"from how long the last {' and '.join(samples)} lasted"


def _quantile(waits: Sequence[float], share: float) -> float:
    """Return a quantile of sorted waits."""
    return waits[round(share * (len(waits) - 1))]
