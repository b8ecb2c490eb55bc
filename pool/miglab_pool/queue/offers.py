"""What the spawn page offers: shapes, what each is good for, how many are free, how long a wait.

And what somebody who waits could have at once by leaving the queue, and what may be asked for.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from miglab_api.offers import CPU, CourseOffers, Offers, QuotaLeft, ShapeOffer
from miglab_api.tickets import Headcount, Purpose, TicketRequest, WaitEstimate
from miglab_pool.gpu.geometry import Placed
from miglab_pool.gpu.shapes import Shape, ShapeError, profiles_of, resolve
from miglab_pool.leases import rules as lease_rules
from miglab_pool.leases.rules import Asked, Limit, longest_set_s
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.rules import HOUR_S, Asker, Use
from miglab_pool.refused import Refused
from miglab_pool.reservations import promises, slots
from miglab_pool.reservations.promises import GuaranteeLimit
from miglab_pool.settings import Course
from miglab_pool.state.placement import (
    GpuOccupancy,
    could_ever_fit,
    course_gpus_first,
    place,
    usable_by_course,
    without_reserved,
)
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

MOST_COUNTED = 99
FEW_SMS, SOME_SMS = 20, 50


def told(view: PoolView, who: Asker) -> WaitEstimate | None:
    """How long a wait will last from now on, as it was said; None if that is not known (yet)."""
    said = view.estimates.of.get(who)
    if said is None:
        return None
    passed_s = max(0.0, view.at - view.estimates.at)
    lasts_s = ("low_s", "likely_s", "high_s")
    left_s = {name: max(0.0, getattr(said, name) - passed_s) for name in lasts_s}
    is_late = view.at > view.estimates.due.get(who, view.at)
    return said.model_copy(update={**left_s, "is_late": is_late})


def offers(view: PoolView, courses: Sequence[str], user: str | None = None) -> Offers:
    """The offers of these courses; a name that is no course is left out.

    Args:
        view: the pool.
        courses: the courses' names.
        user: whose quotas are looked at; None: nobody's.
    """
    known = {name: view.settings.courses[name] for name in courses if name in view.settings.courses}
    return Offers(
        simulated=view.simulated,
        courses=tuple(_course(view, name, known[name], user) for name in known),
        paused=view.paused,
        people=headcount(view),
    )


@cached_on_instance
def headcount(view: PoolView) -> Headcount:
    """How full the lab is, in people: every page that says so takes it from here."""
    people = {
        "holding": len({lease.user for lease in view.leases.values()}),
        "waiting": len({ticket.user for ticket in view.queued}),
    }
    shape = _smallest(view)
    if shape is None:
        return Headcount(**people)
    free, total = _count_now(view, shape, ""), _count_all(view, shape, "")
    return Headcount(shape=str(shape), free=free, total=total, **people)


def _smallest(view: PoolView) -> Shape | None:
    """The smallest shape that any course offers and a GPU can hold."""
    shapes = offered_shapes(view)
    by_size = sorted(shapes, key=lambda one: (one.slice_count, _per_slice(view, one)))
    return next((shape for shape in by_size if _count_all(view, shape, "")), None)


def _course(view: PoolView, name: str, rules: Course, user: str | None) -> CourseOffers:
    holder = name if _differs(view) else ""  # else they are all alike
    shapes = [offer for text in rules.shapes if (offer := _offer(view, text, holder)) is not None]
    return CourseOffers(
        course=name,
        title=rules.title,
        shapes=tuple(shapes),
        default=in_profiles(view, rules.default),
        borrow=tuple(in_profiles(view, text) for text in rules.lends),
        left=() if user is None else left(view, user, name),
        guaranteed_s=guaranteed_s(view, user or "", name),
    )


@cached_on_instance
def _differs(view: PoolView) -> bool:
    """Whether some courses are offered what others are not."""
    return bool(view.reservations) or any(gpu.course for gpu in view.gpus.values())


@cached_on_instance
def _offer(view: PoolView, text: str, course: str) -> ShapeOffer | None:
    """One shape's offer, to whom has reserved what; None for a shape that no GPU here has."""
    try:
        shape = resolve(text, view.geometries)
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
    name = str(shape)
    sm_count, memory_mib = _per_slice(view, shape)
    limit, free = _limit(view, shape, course), _free_now(view, shape, course)
    return ShapeOffer(
        shape=name,
        sm_count=sm_count,
        memory_mib=memory_mib,
        slices=shape.slice_count,
        compute_slices=_compute_slices(view, shape),
        good_for=good_for(sm_count, shape.slice_count),
        free_now=free,
        total=_count_all(view, shape, course),
        waiting=sum(ticket.shape == name for ticket in view.queued),
        is_held=not free and _fits(view, shape, course),
        reserved_s=None if free else _reserved_s(view, shape, course, limit),
        shortened=promises.shortened(view, limit) if free and limit else "",
        wait=None if free else told(view, profiles_of(name)),
    )


def _free_now(view: PoolView, shape: Shape, course: str) -> int:
    """How many of a course could have it if they asked now."""
    limit, ready = _limit(view, shape, course), slots.ready(view, course, str(shape))
    return ready + (_count_now(view, shape, course) if limit is None or limit.is_enough else 0)


# -- the GPUs as somebody may use them ------------------------------------------------------------


@cached_on_instance
def _states(view: PoolView, course: str) -> list[GpuOccupancy]:
    """The GPUs as a course may use them who has reserved nothing."""
    return usable_by_course(slots.open_gpus(view), course)


@cached_on_instance
def _for_newcomers(view: PoolView, course: str) -> list[GpuOccupancy]:
    """The same without the room that is held for the first in the queue."""
    gpus = slots.open_gpus(view)
    return without_reserved(
        usable_by_course(gpus, course),
        queue.hold_for(next(iter(queue.without_slot(view)), None), gpus),
    )


def _count_now(view: PoolView, shape: Shape, course: str) -> int:
    """How many of a course who have reserved nothing could have it now."""
    if shape.is_full:
        return len(slots.free_whole(view, course))
    return count_free(shape.profiles, _for_newcomers(view, course))


@cached_on_instance
def _count_all(view: PoolView, shape: Shape, course: str) -> int:
    """How many of a course could have it, were nothing leased."""
    if shape.is_full:
        return sum(gpu.course in ("", course) for gpu in _whole(view))
    empty = [replace(one, live=one.immovable) for one in view.occupancies]
    return count_free(shape.profiles, usable_by_course(empty, course))


def _fits(view: PoolView, shape: Shape, course: str) -> bool:
    """Whether there is room for it, were nothing kept for the first in the queue."""
    return not shape.is_full and count_free(shape.profiles, _states(view, course)) > 0


@cached_on_instance
def _limit(view: PoolView, shape: Shape, course: str) -> GuaranteeLimit | None:
    """Until when the lease of a newcomer would be guaranteed; None: no reservation, or no room."""
    if not view.reservations:
        return None
    key, pool = (course, str(shape)), view.settings.pool
    length_s = longest_set_s(view.settings.quotas, Asked("", course, None, 0), pool.lease_s)
    lasts_s = pool.offer_s + pool.attach_s + length_s
    if shape.is_full:
        where = [gpu.whole for gpu in slots.free_whole(view, course)]
    else:
        gpus = course_gpus_first(_for_newcomers(view, course), course)
        beside = promises.without_promised(view, gpus, key)
        where = [found for each in (beside, gpus) if (found := place(shape.profiles, each))][:1]
    limits = [promises.grant_limit(view, "", key, one, view.at + lasts_s) for one in where]
    return max(limits, key=lambda one: one.until, default=None)


def _reserved_s(
    view: PoolView, shape: Shape, course: str, limit: GuaranteeLimit | None
) -> float | None:
    """For how long a class may keep what is free; None if that is not why there is none."""
    if limit is not None and not limit.is_enough:
        return promises.kept_until(view) - view.at
    if shape.is_full:
        free = sum(gpu.is_free_whole for gpu in _whole(view) if gpu.course in ("", course))
    else:
        free = count_free(shape.profiles, usable_by_course(view.occupancies, course))
        free -= count_free(shape.profiles, _states(view, course))
    return slots.reserved_s(view) if free else None


def good_for(sm_count: int, slices: int) -> str:
    """One sentence for the student: what such a slice serves for; its size stands beside it."""
    if slices > 1:
        return "Programs that use several GPUs side by side."
    if sm_count < FEW_SMS:
        return "First steps and small models."
    if sm_count < SOME_SMS:
        return "Training medium models."
    return "Large models and long runs."


def _whole(view: PoolView) -> list[GpuSnapshot]:
    return [gpu for gpu in view.gpus.values() if gpu.is_whole]


def _compute_slices(view: PoolView, shape: Shape) -> int:
    """How many compute slices the GPUs have that can hold the shape; 0 if they differ."""
    found = {
        max(profile.compute_slices for profile in geometry.profiles)
        for geometry in view.geometries
        if shape.is_full or set(shape.profiles) <= set(geometry.by_name)
    }
    return found.pop() if len(found) == 1 else 0


def _per_slice(view: PoolView, shape: Shape) -> tuple[int, int]:
    """SMs and memory of the smallest slice of the shape."""
    if shape.is_full:
        rows = (gpu.row for gpu in _whole(view))
        return min(((row.sm_count or 0, row.memory_mib) for row in rows), default=(0, 0))
    profiles = [
        geometry.by_name[name]
        for name in shape.profiles
        for geometry in view.geometries
        if name in geometry.by_name
    ]
    smallest = min(profiles, key=lambda profile: (profile.sm_count, profile.memory_mib))
    return smallest.sm_count, smallest.memory_mib


def count_free(profiles: Sequence[str], states: Iterable[GpuOccupancy]) -> int:
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


def _count_on(name: str, state: GpuOccupancy) -> int:
    """How many of one profile fit beside what is live: runs of equal length, lowest start first."""
    count, taken = 0, state.occupied
    for bits, _ in reversed(state.geometry.placements.get(name, ())):
        if not bits & taken:
            count, taken = count + 1, taken | bits
    return count


def instead(view: PoolView, ticket: TicketRow) -> list[ShapeOffer]:
    """The other shapes of its course that a ticket could be for, and be served now.

    Whoever leaves gives back what was held for them; it is held for the next in the queue then.
    """
    others = {number: one for number, one in view.tickets.items() if number != ticket.id}
    left = replace(view, tickets=others)
    return [
        offer
        for course in offers(view, [ticket.course]).courses
        for offer in course.shapes
        if offer.shape not in (CPU, ticket.shape)
        and _free_now(left, resolve(offer.shape, view.geometries), course.course)
    ]


@cached_on_instance
def offered_shapes(view: PoolView) -> list[Shape]:
    """The shapes that somebody could ask for, of whatever course; ``cpu`` is none."""
    found = set()
    for text in {text for rules in view.settings.courses.values() for text in rules.shapes}:
        with suppress(ShapeError):  # no GPU here has it
            found.add(resolve(text, view.geometries))
    return sorted((shape for shape in found if not shape.is_cpu), key=str)


def in_profiles(view: PoolView, text: str) -> str:
    """A shape of lab.toml as it is said to students: a need is the profile that serves it here."""
    try:
        return str(resolve(text, view.geometries))
    except ShapeError:
        return text


# -- quotas ---------------------------------------------------------------------------------------


def left(view: PoolView, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """What a student has left in a course, for the spawn page."""
    if not view.settings.quotas:
        return ()
    now = view.at
    uses = view.usage.all
    asked = Asked(user, course, None, 1)
    return tuple(
        QuotaLeft(
            quota=limit.name,
            limit=limit.kind,
            is_shared=limit.quota.shared,
            most=limit.most,
            used=limit.used,
            more_in_s=_more_in_s(limit, asked, uses, now),
        )
        for limit in lease_rules.limits(view.settings.quotas, asked, uses, now)
        if limit.kind != "lease_s"
    )


def guaranteed_s(view: PoolView, user: str, course: str) -> float:
    """For how long somebody's lease in a course would be guaranteed, for the spawn page."""
    asked, settings = Asked(user, course, None, 1), view.settings
    return lease_rules.longest_set_s(settings.quotas, asked, settings.pool.lease_s)


def _more_in_s(limit: Limit, asked: Asked, uses: list[Use], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= lease_rules.LEAST_S / HOUR_S:
        return None
    return lease_rules.more_in_s(limit, asked, uses, now)


# -- may it be asked for --------------------------------------------------------------------------


def judge(view: PoolView, asked: TicketRequest) -> tuple[str, Refused | None]:
    """The shape in profiles, and why nobody of that course may ask for it now."""
    rules = view.settings.courses.get(asked.course)
    if rules is None:
        return asked.shape, promises.no_course(view, asked.course, 403)
    try:
        shape = resolve(asked.shape, view.geometries)
    except ShapeError as error:
        if not view.geometries:
            return asked.shape, promises.gpus_unknown()
        return asked.shape, Refused("bad-shape", str(error), 422)
    return str(shape), _judge_shape(view, asked, shape, rules)


def _judge_shape(
    view: PoolView, asked: TicketRequest, shape: Shape, rules: Course
) -> Refused | None:
    if shape.is_cpu:
        return Refused(
            "bad-shape", "'cpu' needs no slice: start the server without asking the pool.", 422
        )
    title = rules.title or asked.course
    lends = asked.purpose is Purpose.BORROW
    offered, verb = (rules.lends, "lend") if lends else (rules.shapes, "offer")
    asks = {str(shape), asked.shape}
    if not any(text in asks or in_profiles(view, text) in asks for text in offered):
        listed = ", ".join(offered) or "nothing"
        message = f"{title} does not {verb} {shape}; it {verb}s {listed}."
        return Refused("shape-not-offered", message, 403)
    if view.paused:
        return Refused("paused", f"New leases are paused: {view.paused}", 503)
    if not view.geometries:
        return promises.gpus_unknown()
    if _is_possible(view, shape, asked.course):
        return None
    message = f"No GPU that {title} may use can ever hold {shape}. Choose a smaller shape."
    return Refused("impossible-shape", message, 422)


@cached_on_instance
def _is_possible(view: PoolView, shape: Shape, course: str) -> bool:
    """Whether the GPUs that are not another course's can hold the shape."""
    mine = [one for one in view.facts.values() if one.course in ("", course)]
    if shape.is_full:
        return any(one.is_whole for one in mine)
    gpus = [
        GpuOccupancy(one.row.uuid, one.hardware)
        for one in mine
        if one.hardware is not None and not one.is_whole
    ]
    return could_ever_fit(shape.profiles, gpus)


def why_not_now(
    view: PoolView, asked: TicketRequest, shape: str, replaced: TicketRow | None
) -> Refused | None:
    """Why this user may not: the queue is full, or a quota is used up."""
    gives_way = replaced is not None and replaced.is_queued
    if len(view.queued) - gives_way >= view.settings.pool.queue_limit:
        message = (
            f"{view.settings.pool.queue_limit} are waiting already, the maximum. "
            "Try again later, or start without a GPU."
        )
        return Refused("queue-full", message, 429)
    if not view.settings.quotas:
        return None
    wants = Asked(asked.user, asked.course, asked.server, queue.size_of(view, profiles_of(shape)))
    mine = (queue.as_waiting(view, ticket) for ticket in view.queued if ticket.user == asked.user)
    uses = [*view.usage.all, *(queue.as_use(view, one) for one in mine)]  # as good as held already
    said = lease_rules.why_not(view.settings.quotas, wants, uses, view.at)
    return None if said is None else Refused("over-quota", said, 403)
