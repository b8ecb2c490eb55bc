"""What the spawn page offers: shapes, what each is good for, how many are free, how long a wait."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from miglab_api.offers import CourseOffers, Offers, ShapeOffer
from miglab_pool.decisions import admission, estimates, queue, quota_checks, reserved_places
from miglab_pool.gpu.geometry import Placed, Placement, legal_placements
from miglab_pool.gpu.shapes import Shape, ShapeError, resolve
from miglab_pool.model.gpu import GpuState, Ground, open_to
from miglab_pool.model.queue import Waiting
from miglab_pool.model.rows import GpuRow, LeaseRow
from miglab_pool.rules.backfill import NOTHING, aside
from miglab_pool.rules.placement.placement import place
from miglab_pool.settings import Course
from miglab_pool.state.store import Store

MOST_COUNTED = 99
FEW_SMS, SOME_SMS = 20, 50


class Shelf:
    """The offers of every shape, worked out once per version of the pool."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version = 0
        self._made: dict[tuple[str, str], ShapeOffer | None] = {}
        self._differs = False  # whether some courses are offered what others are not

    def get(self, courses: Sequence[str], user: str | None = None) -> Offers:
        """The offers of these courses; a name that is no course is left out.

        Args:
            courses: the courses' names.
            user: whose quotas are looked at; None: nobody's.
        """
        store = self._store
        if self._version != store.version:
            self._made.clear()
            self._version = store.version
            owned = any(store.course_of(row) for row in store.state.gpus.values())
            self._differs = owned or bool(store.state.reservations)
        known = {
            name: store.settings.courses[name] for name in courses if name in store.settings.courses
        }
        look = Look(store)
        return Offers(
            simulated=store.simulated,
            courses=tuple(self._course(look, name, known[name], user) for name in known),
            paused=store.paused,
        )

    def _course(self, look: "Look", name: str, rules: Course, user: str | None) -> CourseOffers:
        found = (self._offer(look, text, name) for text in rules.shapes)
        shapes = [offer for offer in found if offer is not None]
        return CourseOffers(
            course=name,
            title=rules.title,
            shapes=tuple(shapes),
            default=admission.in_profiles(self._store, rules.default),
            left=() if user is None else quota_checks.left(self._store, user, name),
        )

    def _offer(self, look: "Look", text: str, course: str) -> ShapeOffer | None:
        holder = course if self._differs else ""  # else they are all alike
        if (text, holder) not in self._made:
            self._made[text, holder] = make_offer(look, text, holder)
        return self._made[text, holder]


class Look:
    """The pool at one moment: what the offers of all shapes and courses are made from.

    Attributes:
        store: the pool; nothing changes while it is looked at.
        at: the moment.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.at = store, store.now()
        self._states: dict[str, list[GpuState]] = {}
        self._for_newcomers: dict[str, list[GpuState]] = {}

    @cached_property
    def grounds(self) -> list[Ground]:
        """Every GPU without what is kept for reservations."""
        return reserved_places.grounds(self.store, self.at)

    @cached_property
    def first(self) -> Waiting | None:
        """The first in line for whom no reservation keeps a place."""
        return next(iter(queue.unseated(self.store, self.at)), None)

    def states(self, course: str) -> list[GpuState]:
        """The GPUs as a course may use them who has reserved nothing."""
        if course not in self._states:
            self._states[course] = [one.state for one in open_to(self.grounds, course)]
        return self._states[course]

    def for_newcomers(self, course: str) -> list[GpuState]:
        """The same without the place that is kept for the first in line."""
        if course not in self._for_newcomers:
            found = _without_kept(self.first, self.grounds, course)
            self._for_newcomers[course] = found
        return self._for_newcomers[course]


def make_offer(look: Look, text: str, course: str = "") -> ShapeOffer | None:
    """One shape's offer, to whom has reserved what; None for a shape that no GPU here has."""
    store = look.store
    try:
        shape = resolve(text, [info.geometry for info in store.infos.values()])
    except ShapeError:
        return None
    if shape.is_cpu:
        return ShapeOffer(
            shape="cpu",
            sm_count=0,
            memory_mib=0,
            slices=0,
            free_now=None,
            good_for="No GPU: reading, writing, small data; starts at once.",
        )
    sm_count, memory_mib = _per_slice(store, shape)
    free = _count_now(look, shape, course) + reserved_places.ready(
        store, look.at, course, str(shape)
    )
    return ShapeOffer(
        shape=str(shape),
        sm_count=sm_count,
        memory_mib=memory_mib,
        slices=shape.slice_count,
        good_for=good_for(sm_count, shape.slice_count),
        free_now=free,
        waiting=sum(ticket.shape == str(shape) for ticket in queue.queued(store)),
        is_held=not free and _fits(look, shape, course),
        reserved_s=None if free else _reserved_s(look, shape, course),
        next_end_s=None if free else _next_end_s(look, shape, course),
        wait=None if free else estimates.of_shape(store, str(shape)),
    )


def _count_now(look: Look, shape: Shape, course: str) -> int:
    """How many of a course who have reserved nothing could have it now."""
    if shape.is_full:
        return len(reserved_places.free_whole(look.store, look.at, course))
    return count_free(shape.profiles, look.for_newcomers(course))


def _fits(look: Look, shape: Shape, course: str) -> bool:
    """Whether there is room for it, were nothing kept for the first in line."""
    return not shape.is_full and count_free(shape.profiles, look.states(course)) > 0


def _reserved_s(look: Look, shape: Shape, course: str) -> float | None:
    """For how long a class may keep what is free; None if that is not why there is none."""
    store = look.store
    if shape.is_full:
        rows = [row for row in _whole(store) if store.course_of(row) in ("", course)]
        free = sum(store.whole_gpu(row) for row in rows)
    else:
        free = count_free(shape.profiles, [one.state for one in open_to(store.grounds(), course)])
        free -= count_free(shape.profiles, look.states(course))
    return reserved_places.kept_s(store, look.at) if free else None


def good_for(sm_count: int, slices: int) -> str:
    """One sentence for the student: what such a slice serves for; its size stands beside it."""
    if slices > 1:
        return "Programs that use several GPUs side by side."
    if sm_count < FEW_SMS:
        return "First steps and small models."
    if sm_count < SOME_SMS:
        return "Training medium models."
    return "Large models and long runs."


def _without_kept(first: Waiting | None, grounds: Sequence[Ground], course: str) -> list[GpuState]:
    kept = aside(first.profiles, open_to(grounds, first.course)) if first else NOTHING
    return kept.states(open_to(grounds, course))


def _whole(store: Store) -> list[GpuRow]:
    return [row for row in store.state.gpus.values() if store.is_whole(row)]


def _per_slice(store: Store, shape: Shape) -> tuple[int, int]:
    """SMs and memory of the smallest slice of the shape."""
    if shape.is_full:
        return min(((row.sm_count or 0, row.memory_mib) for row in _whole(store)), default=(0, 0))
    found = [
        info.geometry.by_name[name]
        for name in shape.profiles
        for info in store.infos.values()
        if name in info.geometry.by_name
    ]
    smallest = min(found, key=lambda profile: (profile.sm_count, profile.memory_mib))
    return smallest.sm_count, smallest.memory_mib


def count_free(profiles: Sequence[str], states: Iterable[GpuState]) -> int:
    """How many such leases could be granted one after the other, at most `MOST_COUNTED`."""
    usable = [state for state in states if state.usable]
    if len(set(profiles)) == 1:
        free = sum(_count_on(profiles[0], state) for state in usable)
        return min(free // len(profiles), MOST_COUNTED)
    count = 0
    while count < MOST_COUNTED:
        choices = place(profiles, usable)
        if choices is None:
            return count
        count += 1
        for choice in choices:
            taken = Placed(choice.profile, choice.placement)
            usable = [
                replace(s, live=(*s.live, taken), warm=()) if s.gpu == choice.gpu else s
                for s in usable
            ]
    return count


def _count_on(name: str, state: GpuState) -> int:
    """How many of one profile fit beside what is live: runs of equal length, lowest start first."""
    profile = state.geometry.by_name.get(name)
    if profile is None:
        return 0
    count, end = 0, 0
    for placement in legal_placements(state.geometry, profile, state.live):
        if placement.start >= end:
            count, end = count + 1, placement.start + placement.size
    return min(count, 1) if profile.has_media else count


def _next_end_s(look: Look, shape: Shape, course: str) -> float | None:
    """Seconds until the first lease end after which the shape fits; None if no such end is set.

    It must fit beside the place kept for the first in line, unless that one wants the same shape:
    then the end is the line's next, and the page says how many wait.
    """
    leases = _by_end(look.store)
    if shape.is_full:
        ends = [end for end, lease in leases if lease.shape == "full"]
        return max(0.0, ends[0] - look.at) if ends else None
    is_alike = look.first is not None and sorted(look.first.profiles) == sorted(shape.profiles)

    def fits(number: int, kept_for: Waiting | None = None) -> bool:
        left = _left_after(look, [lease for _, lease in leases[:number]])
        return count_free(shape.profiles, _without_kept(kept_for, left, course)) > 0

    numbers = range(1, len(leases) + 1)  # room only grows, but what is kept for the first may move
    may_fit = numbers[bisect_left(numbers, True, key=fits) :]
    kept_for = None if is_alike else look.first
    found = next((number for number in may_fit if fits(number, kept_for)), None)
    return None if found is None else max(0.0, leases[found - 1][0] - look.at)


def _by_end(store: Store) -> list[tuple[float, LeaseRow]]:
    """The leases that have an end, the first to end in front."""
    leases = store.state.leases.values()
    ends = [(lease.ends_at, lease) for lease in leases if lease.ends_at is not None]
    return sorted(ends, key=lambda one: (one[0], one[1].id))


def _left_after(look: Look, over: Sequence[LeaseRow]) -> list[Ground]:
    """Every GPU when these leases are over, without what is kept for reservations."""
    store = look.store
    gone: defaultdict[str, set[Placement]] = defaultdict(set)
    for lease in over:
        for row in store.state.slices_of(lease):
            gone[row.gpu].add(Placement(row.start, row.size))
    freed = [_freed(ground, gone.get(ground.state.gpu, ())) for ground in store.grounds()]
    return reserved_places.closed(store, look.at, freed)


def _freed(ground: Ground, gone: Collection[Placement]) -> Ground:
    if not gone:
        return ground
    live = tuple(item for item in ground.state.live if item.placement not in gone)
    return replace(ground, state=replace(ground.state, live=live))
