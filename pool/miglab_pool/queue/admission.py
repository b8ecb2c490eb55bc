"""Whether a request may join the queue, and why not."""

from miglab_api.tickets import Purpose, TicketRequest
from miglab_pool.gpu.shapes import Shape, ShapeError, profiles, resolve
from miglab_pool.leases.rules import Asked
from miglab_pool.ledger.rows import TicketRow
from miglab_pool.queue import order as quota_checks
from miglab_pool.queue.order import as_waiting, size_of
from miglab_pool.refused import Refused
from miglab_pool.settings import Course
from miglab_pool.state.placement import GpuOccupancy, could_ever_fit
from miglab_pool.state.view import PoolView, once

# -- may it be asked for -------------------------------------------------------------------------


def judge(view: PoolView, asked: TicketRequest) -> tuple[str, Refused | None]:
    """The shape in profiles, and why nobody of that course may ask for it now."""
    rules = view.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(view.settings.courses)) or "none"
        message = f"There is no course {asked.course!r} here. Courses: {names}."
        return asked.shape, Refused("not-in-course", message, 403)
    try:
        shape = resolve(asked.shape, view.geometries)
    except ShapeError as error:
        if not view.geometries:
            return asked.shape, _gpus_unknown()
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
        return _gpus_unknown()
    if _is_possible(view, shape, asked.course):
        return None
    message = f"No GPU that {title} may use can ever hold {shape}. Choose a smaller shape."
    return Refused("impossible-shape", message, 422)


def in_profiles(view: PoolView, text: str) -> str:
    """A shape of lab.toml as it is said to students: a need is the profile that serves it here."""
    try:
        return str(resolve(text, view.geometries))
    except ShapeError:
        return text


def _gpus_unknown() -> Refused:
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


@once
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
    if _is_full(view, replaced):
        return _queue_full(view)
    size = size_of(view, profiles(shape))
    wants = Asked(asked.user, asked.course, asked.server, size)
    mine = (ticket for ticket in view.queued if ticket.user == asked.user)
    waiting = [as_waiting(view, ticket) for ticket in mine]
    said = quota_checks.why_not(view, wants, waiting)
    return None if said is None else Refused("over-quota", said, 403)


def _is_full(view: PoolView, replaced: TicketRow | None) -> bool:
    gives_way = replaced is not None and replaced.is_queued
    return len(view.queued) - gives_way >= view.settings.pool.queue_limit


def _queue_full(view: PoolView) -> Refused:
    return Refused(
        "queue-full",
        f"{view.settings.pool.queue_limit} are waiting already, the maximum. "
        "Try again later, or start without a GPU.",
        429,
    )
