"""What the spawn page offers: shapes, what each is good for, how many are free, how long a wait.

It also says which shapes a waiting student could have at once, and which a student may ask for.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from miglab_api.offers import CPU, CourseOffers, Offers, QuotaLeft, ShapeOffer
from miglab_api.tickets import Headcount, Purpose, TicketRequest, WaitEstimate
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.gpu.shapes import Shape, ShapeError, profiles_of, resolve
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.queue import order as queue
from miglab_pool.queue.quotas import (
    LEAST_S,
    Limit,
    SliceClaim,
    applying_limits,
    describe_excess,
    longest_allowed_s,
    seconds_until_enough,
)
from miglab_pool.refused import Refused
from miglab_pool.reservations import checks, guarantees, slots
from miglab_pool.reservations.guarantees import GuaranteeLimit
from miglab_pool.settings import Course
from miglab_pool.state.fair_share import HOUR_S, LeaseUse
from miglab_pool.state.placement import (
    GpuOccupancy,
    could_ever_fit,
    course_gpus_first,
    fits,
    place,
    usable_by_course,
    without_reserved,
)
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance
from miglab_pool.state.wait_estimates import EstimateKey

MOST_COUNTED = 99
FEW_SMS, SOME_SMS = 20, 50


def current_estimate(view: PoolView, key: EstimateKey) -> WaitEstimate | None:
    """Return the last estimate of a wait, less the time since it was made; None without one."""
    estimate = view.estimates.of.get(key)
    if estimate is None:
        return None
    passed_s = max(0.0, view.at - view.estimates.at)
    lasts_s = ("low_s", "likely_s", "high_s")
    left_s = {name: max(0.0, getattr(estimate, name) - passed_s) for name in lasts_s}
    is_late = view.at > view.estimates.due.get(key, view.at)
    return estimate.model_copy(update={**left_s, "is_late": is_late})


def offers(view: PoolView, courses: Sequence[str], user: str | None = None) -> Offers:
    """Return the offers of these courses; a name that is no course is left out.

    Args:
        view: the pool.
        courses: the courses' names.
        user: the user whose quotas are read; None: nobody's.
    """
    all_rules = view.settings.courses
    course_rules = {name: all_rules[name] for name in courses if name in all_rules}
    return Offers(
        simulated=view.simulated,
        courses=tuple(
            _course_offers(view, name, rules, user) for name, rules in course_rules.items()
        ),
        paused=view.paused,
        people=headcount(view),
    )


@cached_on_instance
def headcount(view: PoolView) -> Headcount:
    """Return how many people hold and wait for slices, and how many of the smallest are free."""
    holding = {lease.user for lease in view.leases.values() if not lease.is_untaken}
    people = {
        "holding": len(holding),
        "offered": len({lease.user for lease in view.leases.values()} - holding),
        "waiting": len({ticket.user for ticket in view.queued}),
    }
    shape = _smallest_shape(view)
    if shape is None:
        return Headcount(**people)
    free, total = _count_now(view, shape, ""), _count_all(view, shape, "")
    return Headcount(shape=str(shape), free=free, total=total, **people)


def _smallest_shape(view: PoolView) -> Shape | None:
    """Return the smallest shape that any course offers and a GPU can hold."""
    shapes = offered_shapes(view)
    by_size = sorted(shapes, key=lambda shape: (shape.slice_count, _smallest_slice(view, shape)))
    return next((shape for shape in by_size if _count_all(view, shape, "")), None)


def _course_offers(view: PoolView, name: str, rules: Course, user: str | None) -> CourseOffers:
    course = name if _offers_differ(view) else ""  # otherwise one offer serves all courses
    shapes = [offer for text in rules.shapes if (offer := _offer(view, text, course)) is not None]
    if user is None or not queue.cannot_be_passed(view, user):
        shapes = [_without_longest(offer) for offer in shapes]
    return CourseOffers(
        course=name,
        title=rules.title,
        shapes=tuple(shapes),
        default=shape_in_profiles(view, rules.default),
        borrow=tuple(shape_in_profiles(view, text) for text in rules.lends),
        quotas=() if user is None else quotas_left(view, user, name),
        guaranteed_s=guaranteed_s(view, user or "", name),
    )


def _without_longest(offer: ShapeOffer) -> ShapeOffer:
    """Return an offer without a wait that is certain only for whom nobody can pass."""
    is_longest = offer.wait is not None and offer.wait.is_longest
    return offer.model_copy(update={"wait": None}) if is_longest else offer


@cached_on_instance
def _offers_differ(view: PoolView) -> bool:
    """Whether some courses are offered what others are not."""
    return bool(view.reservations) or any(gpu.course for gpu in view.gpus.values())


@cached_on_instance
def _offer(view: PoolView, text: str, course: str) -> ShapeOffer | None:
    """Return the offer of one shape to a course; None for a shape that no GPU here has."""
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
    sm_count, memory_mib = _smallest_slice(view, shape)
    limit, free = _guarantee_limit(view, shape, course), _free_now(view, shape, course)
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
        is_held=not free and _fits_without_hold(view, shape, course),
        reserved_s=None if free else _reserved_s(view, shape, course, limit),
        shortened=guarantees.describe_limit(view, limit) if free and limit else "",
        wait=None if free else current_estimate(view, profiles_of(name)),
    )


def _free_now(view: PoolView, shape: Shape, course: str) -> int:
    """Return how many members of a course could have a shape if they asked now."""
    limit, ready = (
        _guarantee_limit(view, shape, course),
        slots.count_ready(view, course, str(shape)),
    )
    return ready + (_count_now(view, shape, course) if limit is None or limit.is_enough else 0)


# -- the GPUs as somebody may use them ------------------------------------------------------------


@cached_on_instance
def _open_gpus(view: PoolView, course: str) -> list[GpuOccupancy]:
    """Return the GPUs as a course without a reservation may use them."""
    return usable_by_course(slots.open_gpus(view), course)


@cached_on_instance
def _gpus_for_newcomers(view: PoolView, course: str) -> list[GpuOccupancy]:
    """Return the GPUs open to a course, without the room held for the first in the queue."""
    gpus = slots.open_gpus(view)
    first = next(iter(queue.servable_without_slot(view)), None)
    return without_reserved(usable_by_course(gpus, course), queue.hold_for(first, gpus))


def _count_now(view: PoolView, shape: Shape, course: str) -> int:
    """Return how many members of a course without a reservation could have a shape now."""
    if shape.is_full:
        return len(slots.free_whole_gpus(view, course))
    return count_free(shape.profiles, _gpus_for_newcomers(view, course))


@cached_on_instance
def _count_all(view: PoolView, shape: Shape, course: str) -> int:
    """Return how many members of a course could have a shape if nothing were leased."""
    if shape.is_full:
        return sum(gpu.course in ("", course) for gpu in _whole_gpus(view))
    empty = [gpu.emptied for gpu in view.gpus.values() if gpu.emptied is not None]
    return count_free(shape.profiles, usable_by_course(empty, course))


def _fits_without_hold(view: PoolView, shape: Shape, course: str) -> bool:
    """Whether a shape would have room if nothing were held for the first in the queue."""
    return not shape.is_full and count_free(shape.profiles, _open_gpus(view, course)) > 0


@cached_on_instance
def _guarantee_limit(view: PoolView, shape: Shape, course: str) -> GuaranteeLimit | None:
    """Return until when the lease of a newcomer would be guaranteed.

    None if there is no reservation that could limit it, or no room for the lease.
    """
    if not view.reservations:
        return None
    key, pool = (course, str(shape)), view.settings.pool
    length_s = longest_allowed_s(
        view.settings.quotas, SliceClaim("", course, None, 0), pool.lease_s
    )
    lasts_s = pool.offer_s + pool.attach_s + length_s
    if shape.is_full:
        possible_choices = [gpu.whole for gpu in slots.free_whole_gpus(view, course)]
    else:
        gpus = course_gpus_first(_gpus_for_newcomers(view, course), course)
        unpromised = guarantees.without_promised_slots(view, gpus, key)
        choices = place(shape.profiles, unpromised) or place(shape.profiles, gpus)
        possible_choices = [choices] if choices else []
    until = view.at + lasts_s
    limits = [guarantees.grant_limit(view, "", key, choice, until) for choice in possible_choices]
    return max(limits, key=lambda limit: limit.until, default=None)


def _reserved_s(
    view: PoolView, shape: Shape, course: str, limit: GuaranteeLimit | None
) -> float | None:
    """Return for how long a class may keep what is free; None if no class keeps it."""
    if limit is not None and not limit.is_enough:
        return guarantees.next_release_time(view) - view.at
    if shape.is_full:
        free = sum(gpu.is_free_whole for gpu in _whole_gpus(view) if gpu.course in ("", course))
    else:
        free = count_free(shape.profiles, usable_by_course(view.occupancies, course))
        free -= count_free(shape.profiles, _open_gpus(view, course))
    return slots.remaining_reserved_s(view) if free else None


def good_for(sm_count: int, slices: int) -> str:
    """Return a sentence for the student on what such a slice is good for."""
    if slices > 1:
        return "Programs that use several GPUs side by side."
    if sm_count < FEW_SMS:
        return "First steps and small models."
    if sm_count < SOME_SMS:
        return "Training medium models."
    return "Large models and long runs."


def _whole_gpus(view: PoolView) -> list[GpuSnapshot]:
    return [gpu for gpu in view.gpus.values() if gpu.is_whole]


def _compute_slices(view: PoolView, shape: Shape) -> int:
    """Return the number of compute slices of a GPU that can hold the shape; 0 if GPUs differ."""
    counts = {
        max(profile.compute_slices for profile in geometry.profiles)
        for geometry in view.geometries
        if shape.is_full or set(shape.profiles) <= set(geometry.by_name)
    }
    return counts.pop() if len(counts) == 1 else 0


def _smallest_slice(view: PoolView, shape: Shape) -> tuple[int, int]:
    """Return the SMs and the memory, MiB, of the smallest slice of the shape."""
    if shape.is_full:
        rows = (gpu.row for gpu in _whole_gpus(view))
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
    """Return how many such leases could be granted in a row, at most `MOST_COUNTED`."""
    usable = [state for state in states if state.usable]
    if len(set(profiles)) == 1:
        free = sum(fits(state.geometry).count(state.occupied, profiles[0]) for state in usable)
        return min(free // len(profiles), MOST_COUNTED)
    count = 0
    while count < MOST_COUNTED:
        choices = place(profiles, usable)
        if choices is None:
            return count
        count += 1
        for choice in choices:
            placed_slice = ProfilePlacement(choice.profile, choice.placement)
            usable = [
                replace(s, live=(*s.live, placed_slice), warm=()) if s.gpu == choice.gpu else s
                for s in usable
            ]
    return count


def alternatives(view: PoolView, ticket: TicketRow) -> list[ShapeOffer]:
    """Return the shapes of its course that a ticket could have now, by leaving the queue.

    What was held for the ticket is then held for the next in the queue.
    """
    other_tickets = {number: row for number, row in view.tickets.items() if number != ticket.id}
    without_ticket = replace(view, tickets=other_tickets)
    return [
        offer
        for course in offers(view, [ticket.course]).courses
        for offer in course.shapes
        if offer.shape not in (CPU, ticket.shape)
        and _free_now(without_ticket, resolve(offer.shape, view.geometries), course.course)
    ]


@cached_on_instance
def offered_shapes(view: PoolView) -> list[Shape]:
    """Return the shapes that some course offers and a GPU here has, without ``cpu``."""
    shapes = set()
    for text in {text for rules in view.settings.courses.values() for text in rules.shapes}:
        with suppress(ShapeError):  # no GPU here has it
            shapes.add(resolve(text, view.geometries))
    return sorted((shape for shape in shapes if not shape.is_cpu), key=str)


def shape_in_profiles(view: PoolView, text: str) -> str:
    """Return a shape of lab.toml in profiles, as students read it; unchanged if no GPU has it."""
    try:
        return str(resolve(text, view.geometries))
    except ShapeError:
        return text


# -- quotas ---------------------------------------------------------------------------------------


def quotas_left(view: PoolView, user: str, course: str) -> tuple[QuotaLeft, ...]:
    """Return what a student's quotas leave in a course, for the spawn page."""
    if not view.settings.quotas:
        return ()
    now = view.at
    uses = view.lease_uses.all
    claim = SliceClaim(user, course, None, 1)
    return tuple(
        QuotaLeft(
            quota=limit.name,
            limit=limit.kind,
            is_shared=limit.quota.shared,
            allowed=limit.maximum,
            used=limit.used,
            more_in_s=_more_in_s(limit, claim, uses, now),
        )
        for limit in applying_limits(view.settings.quotas, claim, uses, now)
        if limit.kind != "lease_s"
    )


def guaranteed_s(view: PoolView, user: str, course: str) -> float:
    """Return for how long a user's lease in a course would be guaranteed, in seconds."""
    claim, settings = SliceClaim(user, course, None, 1), view.settings
    return longest_allowed_s(settings.quotas, claim, settings.pool.lease_s)


def _more_in_s(limit: Limit, claim: SliceClaim, uses: list[LeaseUse], now: float) -> float | None:
    if limit.kind != "slice_hours_week" or limit.left >= LEAST_S / HOUR_S:
        return None
    return seconds_until_enough(limit, claim, uses, now)


# -- whether a shape may be asked for -------------------------------------------------------------


def judge_request(view: PoolView, request: TicketRequest) -> tuple[str, Refused | None]:
    """Return the shape in profiles, and why the course may not ask for it now, if so."""
    rules = view.settings.courses.get(request.course)
    if rules is None:
        return request.shape, checks.no_course_refusal(view, request.course, 403)
    try:
        shape = resolve(request.shape, view.geometries)
    except ShapeError as error:
        if not view.geometries:
            return request.shape, checks.gpus_unknown_refusal()
        return request.shape, Refused("bad-shape", str(error), 422)
    return str(shape), _judge_shape(view, request, shape, rules)


def _judge_shape(
    view: PoolView, request: TicketRequest, shape: Shape, rules: Course
) -> Refused | None:
    if shape.is_cpu:
        return Refused(
            "bad-shape", "'cpu' needs no slice: start the server without asking the pool.", 422
        )
    title = rules.title or request.course
    lends = request.purpose is Purpose.BORROW
    offered, verb = (rules.lends, "lend") if lends else (rules.shapes, "offer")
    asks = {str(shape), request.shape}
    if not any(text in asks or shape_in_profiles(view, text) in asks for text in offered):
        listed = ", ".join(offered) or "nothing"
        message = f"{title} does not {verb} {shape}; it {verb}s {listed}."
        return Refused("shape-not-offered", message, 403)
    if view.paused:
        return Refused("paused", f"New leases are paused: {view.paused}", 503)
    if not view.geometries:
        return checks.gpus_unknown_refusal()
    if _is_possible(view, shape, request.course):
        return None
    message = f"No GPU that {title} may use can ever hold {shape}. Choose a smaller shape."
    return Refused("impossible-shape", message, 422)


@cached_on_instance
def _is_possible(view: PoolView, shape: Shape, course: str) -> bool:
    """Whether a GPU that the course may use can hold the shape."""
    usable_gpus = [gpu for gpu in view.unpaused_gpus.values() if gpu.course in ("", course)]
    if shape.is_full:
        return any(gpu.is_whole for gpu in usable_gpus)
    gpus = [gpu.bare for gpu in usable_gpus if gpu.bare is not None]
    return could_ever_fit(shape.profiles, gpus)


def refusal_for_user(
    view: PoolView, request: TicketRequest, shape: str, replaced: TicketRow | None
) -> Refused | None:
    """Return why a user may not ask for a shape now: a full queue, or a used-up quota."""
    leaves_queue = replaced is not None and replaced.is_queued
    if len(view.queued) - leaves_queue >= view.settings.pool.queue_limit:
        message = (
            f"{view.settings.pool.queue_limit} are waiting already, the maximum. "
            "Try again later, or start without a GPU."
        )
        return Refused("queue-full", message, 429)
    if not view.settings.quotas:
        return None
    claim = SliceClaim(
        request.user, request.course, request.server, queue.shape_size(view, profiles_of(shape))
    )
    waiting_tickets = (
        queue.to_waiting_ticket(view, ticket)
        for ticket in view.queued
        if ticket.user == request.user
    )
    waiting_uses = (queue.use_if_granted(view, ticket) for ticket in waiting_tickets)
    uses = [*view.lease_uses.all, *waiting_uses]  # a waiting ticket counts as if it were granted
    refusal_message = describe_excess(view.settings.quotas, claim, uses, view.at)
    return None if refusal_message is None else Refused("over-quota", refusal_message, 403)
