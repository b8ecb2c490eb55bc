"""Whether a request may join the queue, and why not."""

from miglab_api.tickets import TicketRequest
from miglab_pool.decisions import quota_checks
from miglab_pool.decisions.not_yet import when_cut
from miglab_pool.decisions.queue import as_waiting, queued, size_of
from miglab_pool.gpu.shapes import Shape, ShapeError, resolve
from miglab_pool.model.gpu import GpuState
from miglab_pool.model.refused import Refused
from miglab_pool.model.reservations import profiles
from miglab_pool.model.rows import TicketRow
from miglab_pool.rules.placement.placement import could_ever_place
from miglab_pool.rules.quotas import Asked
from miglab_pool.state.store import Store

# -- may it be asked for -------------------------------------------------------------------------


def judge(store: Store, asked: TicketRequest) -> tuple[str, Refused | None]:
    """The shape in profiles, and why nobody of that course may ask for it now."""
    rules = store.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(store.settings.courses)) or "none"
        why = f"There is no course {asked.course!r} here. Courses: {names}."
        return asked.shape, Refused("not-in-course", why, 403)
    try:
        shape = resolve(asked.shape, [info.geometry for info in store.infos.values()])
    except ShapeError as error:
        if not store.infos:
            return asked.shape, _gpus_unknown()
        return asked.shape, Refused("bad-shape", str(error), 422)
    return str(shape), _judge_shape(store, asked, shape, rules.title, rules.shapes)


def _judge_shape(
    store: Store, asked: TicketRequest, shape: Shape, title: str, offered: tuple[str, ...]
) -> Refused | None:
    if shape.is_cpu:
        return Refused("bad-shape", "'cpu' needs no slice: start the server without asking.", 422)
    if not {str(shape), asked.shape} & {*offered, *(in_profiles(store, text) for text in offered)}:
        listed = ", ".join(offered) or "nothing"
        why = f"{title or asked.course} does not offer {shape}; it offers {listed}."
        return Refused("shape-not-offered", why, 403)
    if store.paused:
        return Refused("paused", f"New leases are paused: {store.paused}", 503)
    if not store.infos:
        return _gpus_unknown()
    key = (str(shape), asked.course)
    if key not in store.possible:
        store.possible[key] = _is_possible(store, shape, asked.course)
    return None if store.possible[key] else _impossible(store, shape, asked.course, title)


def _impossible(store: Store, shape: Shape, course: str, title: str) -> Refused:
    none = f"No GPU that {title or course} may use can"
    when = when_cut(store, shape, course)
    if when:
        why = f"{none} hold {shape} now. It can {when}: ask again then, or choose another shape."
        return Refused("not-yet", why)
    return Refused("impossible-shape", f"{none} ever hold {shape}. Choose a smaller shape.", 422)


def in_profiles(store: Store, text: str) -> str:
    """A shape of lab.toml as it is said to students: a need is the profile that serves it here."""
    try:
        return str(resolve(text, [info.geometry for info in store.infos.values()]))
    except ShapeError:
        return text


def _gpus_unknown() -> Refused:
    return Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)


def _is_possible(store: Store, shape: Shape, course: str) -> bool:
    """Whether the GPUs that are not another course's can hold the shape.

    Those that are another's but for the layout in force count as that layout cuts them.
    """
    whose = store.settings.assigned_course
    rows = {r.uuid: r for r in store.state.gpus.values() if whose(r.uuid, r.idx) in ("", course)}
    if shape.is_full:
        return any(store.is_whole(row) for row in rows.values())
    states = [
        GpuState(row.uuid, store.infos[row.uuid].geometry)
        for row in rows.values()
        if row.uuid in store.infos and not store.is_whole(row)
    ]
    lent = [one.state for one in store.grounds() if one.course == course]
    states += [state for state in lent if state.gpu not in rows]
    return could_ever_place(shape.profiles, states)


def why_not_now(
    store: Store, asked: TicketRequest, shape: str, replaced: TicketRow | None
) -> Refused | None:
    """Why this user may not: the line is full, or a quota is used up."""
    if _is_full(store, replaced):
        return _queue_full(store)
    size = size_of(store, profiles(shape))
    wants = Asked(asked.user, asked.course, asked.server, size)
    waiting = [as_waiting(store, ticket) for ticket in queued(store) if ticket.user == asked.user]
    said = quota_checks.why_not(store, wants, waiting)
    return None if said is None else Refused("over-quota", said, 403)


def _is_full(store: Store, replaced: TicketRow | None) -> bool:
    queued = sum(ticket.is_queued for ticket in store.state.tickets.values())
    gives_way = replaced is not None and replaced.is_queued
    return queued - gives_way >= store.settings.pool.queue_limit


def _queue_full(store: Store) -> Refused:
    return Refused(
        "queue-full",
        f"{store.settings.pool.queue_limit} are waiting already, which is as many as may. "
        "Try again later, or start without a GPU.",
        429,
    )
