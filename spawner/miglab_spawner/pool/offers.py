"""What the spawn page offers: shapes, what each is good for, how many are free, how long a wait."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from miglab_spawner.gpu.geometry import Placed, legal_placements
from miglab_spawner.gpu.shapes import Shape, ShapeError, resolve
from miglab_spawner.messages import CourseOffers, Offers, ShapeOffer

from .core import Core
from .ledger.rows import GpuRow
from .line import allowance, tickets
from .line.aside import (
    NOTHING,
    Ground,
    aside,
    open_to,
)
from .line.queue import Waiting
from .placing.placement import GpuState, place
from .reserve import reserved
from .settings import CourseRules
from .waits import forecast

MOST_COUNTED = 99
FEW_SMS, SOME_SMS = 20, 50


class Shelf:
    """The offers of every shape, worked out once per version of the pool."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._version = 0
        self._made: dict[tuple[str, str], ShapeOffer | None] = {}
        self._differs = False  # whether some courses are offered what others are not

    def get(self, courses: Sequence[str], user: str | None = None) -> Offers:
        """The offers of these courses; a name that is no course is left out.

        Args:
            courses: the courses' names.
            user: whose quotas are looked at; None: nobody's.
        """
        core = self._core
        if self._version != core.version:
            self._made.clear()
            self._version = core.version
            owned = any(core.course_of(row) for row in core.state.gpus.values())
            self._differs = owned or bool(core.state.reservations)
        known = [name for name in courses if name in core.settings.courses]
        return Offers(
            simulated=core.driver.simulated,
            courses=tuple(self._course(name, core.settings.courses[name], user) for name in known),
            paused=core.paused,
        )

    def _course(self, name: str, rules: CourseRules, user: str | None) -> CourseOffers:
        found = (self._offer(text, name) for text in rules.shapes)
        shapes = [offer for offer in found if offer is not None]
        return CourseOffers(
            course=name,
            title=rules.title,
            shapes=tuple(shapes),
            default=tickets.in_profiles(self._core, rules.default),
            left=() if user is None else allowance.left(self._core, user, name),
        )

    def _offer(self, text: str, course: str) -> ShapeOffer | None:
        holder = course if self._differs else ""  # else they are all alike
        if (text, holder) not in self._made:
            self._made[text, holder] = make_offer(self._core, text, holder)
        return self._made[text, holder]


def make_offer(core: Core, text: str, course: str = "") -> ShapeOffer | None:
    """One shape's offer, to whom has reserved what; None for a shape that no GPU here has."""
    try:
        shape = resolve(text, [info.geometry for info in core.infos.values()])
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
    sm_count, memory_mib = _per_slice(core, shape)
    free = _count_now(core, shape, course) + reserved.ready(core, core.now(), course, str(shape))
    return ShapeOffer(
        shape=str(shape),
        sm_count=sm_count,
        memory_mib=memory_mib,
        slices=shape.slice_count,
        good_for=good_for(sm_count, shape.slice_count),
        free_now=free,
        waiting=sum(ticket.shape == str(shape) for ticket in tickets.queued(core)),
        is_kept=not free and _fits(core, shape, course),
        reserved_s=None if free else _reserved_s(core, shape, course),
        next_end_s=None if free else _next_end_s(core, shape, course),
        wait=None if free else forecast.of_shape(core, str(shape)),
    )


def _count_now(core: Core, shape: Shape, course: str) -> int:
    """How many of a course who have reserved nothing could have it now."""
    if shape.is_full:
        return len(reserved.free_whole(core, core.now(), course))
    return count_free(shape.profiles, _for_newcomers(core, course))


def _fits(core: Core, shape: Shape, course: str) -> bool:
    """Whether there is room for it, were nothing kept for the first in line."""
    return not shape.is_full and count_free(shape.profiles, _states(core, course)) > 0


def _reserved_s(core: Core, shape: Shape, course: str) -> float | None:
    """For how long a class may keep what is free; None if that is not why there is none."""
    if shape.is_full:
        rows = [row for row in _whole(core) if core.course_of(row) in ("", course)]
        free = sum(core.whole_gpu(row) for row in rows)
    else:
        free = count_free(shape.profiles, [one.state for one in open_to(core.grounds(), course)])
        free -= count_free(shape.profiles, _states(core, course))
    return reserved.kept_s(core, core.now()) if free else None


def good_for(sm_count: int, slices: int) -> str:
    """One sentence for the student: what such a slice serves for; its size stands beside it."""
    if slices > 1:
        return "Programs that use several GPUs side by side."
    if sm_count < FEW_SMS:
        return "First steps and small models."
    if sm_count < SOME_SMS:
        return "Training medium models."
    return "Large models and long runs."


def _states(core: Core, course: str) -> list[GpuState]:
    return [one.state for one in open_to(reserved.grounds(core, core.now()), course)]


def _for_newcomers(core: Core, course: str) -> list[GpuState]:
    """The GPUs as a course may use them, without the place that is kept for the first in line."""
    return _without_kept(_first(core), reserved.grounds(core, core.now()), course)


def _first(core: Core) -> Waiting | None:
    return next(iter(tickets.unseated(core, core.now())), None)


def _without_kept(first: Waiting | None, grounds: Sequence[Ground], course: str) -> list[GpuState]:
    kept = aside(first.profiles, open_to(grounds, first.course)) if first else NOTHING
    return kept.states(open_to(grounds, course))


def _whole(core: Core) -> list[GpuRow]:
    return [row for row in core.state.gpus.values() if core.is_whole(row)]


def _per_slice(core: Core, shape: Shape) -> tuple[int, int]:
    """SMs and memory of the smallest slice of the shape."""
    if shape.is_full:
        return min(((row.sm_count or 0, row.memory_mib) for row in _whole(core)), default=(0, 0))
    found = [
        info.geometry.by_name[name]
        for name in shape.profiles
        for info in core.infos.values()
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


def _next_end_s(core: Core, shape: Shape, course: str) -> float | None:
    """Seconds until the first lease end after which the shape fits; None if no such end is set.

    It must fit beside the place kept for the first in line, unless that one wants the same shape:
    then the end is the line's next, and the page says how many wait.
    """
    if shape.is_full:
        ends = [lease.ends_at for lease in core.state.leases.values() if lease.shape == "full"]
        known = [end for end in ends if end is not None]
        return max(0.0, min(known) - core.now()) if known else None
    grounds = {ground.state.gpu: ground for ground in core.grounds()}
    first = _first(core)
    is_alike = first is not None and sorted(first.profiles) == sorted(shape.profiles)
    kept_for = None if is_alike else first
    for end, lease in sorted(
        (lease.ends_at, lease.id) for lease in core.state.leases.values() if lease.ends_at
    ):
        for row in core.state.slices_of(core.state.leases[lease]):
            if row.gpu in grounds:
                grounds[row.gpu] = _freed(grounds[row.gpu], core.placed(row))
        left = reserved.closed(core, core.now(), list(grounds.values()))
        if count_free(shape.profiles, _without_kept(kept_for, left, course)):
            return max(0.0, end - core.now())
    return None


def _freed(ground: Ground, placed: Placed) -> Ground:
    live = tuple(item for item in ground.state.live if item.placement != placed.placement)
    return replace(ground, state=replace(ground.state, live=live))
