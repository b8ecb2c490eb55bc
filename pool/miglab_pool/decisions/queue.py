"""The queue as it stands: who waits, in which order, who has been served."""

from dataclasses import replace

from miglab_pool.decisions import held_servers, quota_checks, reservations_in_force, reserved_places
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.model.queue import Standing, Waiting
from miglab_pool.model.reservations import profiles
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.lease_length import lasts_s
from miglab_pool.rules.queue_order import in_line
from miglab_pool.state.store import Store

# -- the line -----------------------------------------------------------------------------------


def standing(store: Store, at: float) -> Standing:
    """What everybody has used lately, and what the rule needs besides."""
    weights = {name: rules.weight for name, rules in store.settings.courses.items()}
    return store.uses.standing(at, weights, store.settings.pool.ageing_s)


def line(store: Store, at: float | None = None) -> list[Waiting]:
    """Everyone who waits, first in front: the order in which it is decided who is next."""
    at = store.now() if at is None else at
    return in_line(_everyone(store, at), standing(store, at))


def served(store: Store, at: float | None = None) -> list[Waiting]:
    """Those in line who may be served now, first in front.

    A server whose last lease is not over waits for that first: it never holds two.  A course that
    holds all it may waits until it holds less.
    """
    held = held_servers.servers(store)
    found = [
        one
        for one in line(store, at)
        if (one.user, store.state.tickets[one.ticket].server) not in held
    ]
    return list(quota_checks.let_by(store, found))


def waiting(store: Store, at: float | None = None) -> list[Waiting]:
    """Those of `served` who want slices of a cut GPU."""
    return [one for one in served(store, at) if one.profiles != (FULL,)]


def unseated(store: Store, at: float) -> list[Waiting]:
    """Those of `waiting` for whom no reservation keeps a place already."""
    seated = reserved_places.seated(store, at)
    return [one for one in waiting(store, at) if one.ticket not in seated]


def queued(store: Store) -> list[TicketRow]:
    """Everyone who waits, in no order."""
    return [ticket for ticket in store.state.tickets.values() if ticket.is_queued]


def _everyone(store: Store, at: float) -> list[Waiting]:
    """Everyone who waits, in order of arrival, those for whom something is reserved marked."""
    left = reservations_in_force.left(store, at)
    found = []
    for ticket in sorted(queued(store), key=lambda ticket: (ticket.created_at, ticket.id)):
        key = (ticket.course, ticket.shape)
        is_reserved = left[key] > 0
        if is_reserved:
            left[key] -= 1
        found.append(replace(as_waiting(store, ticket), reserved=is_reserved))
    return found


def as_waiting(store: Store, ticket: TicketRow) -> Waiting:
    """The ticket as the line sees it."""
    names = profiles(ticket.shape)
    return Waiting(
        ticket.id,
        names,
        ticket.created_at,
        ticket.course,
        ticket.user,
        size=size_of(store, names),
        lasts_s=lasts_s(store.settings, ticket.user, ticket.course),
        front=ticket.next_at,
    )


def size_of(store: Store, names: tuple[str, ...]) -> int:
    """The memory slices of a shape: of the largest GPU where GPUs differ."""
    if names not in store.sizes:
        geometries = [info.geometry for info in store.infos.values()]
        store.sizes[names] = sum(_slice_size(name, geometries) for name in names)
    return store.sizes[names]


def _slice_size(name: str, geometries: list[Geometry]) -> int:
    if name == FULL:
        return max((geometry.memory_slices for geometry in geometries), default=1)
    known = [g.by_name[name].size for g in geometries if name in g.by_name]
    return max(known, default=1)


def places(store: Store) -> dict[int, int]:
    """The place of everyone who waits, by ticket; worked out once per version.

    Not for use inside a transaction, which changes the line before it changes the version.
    """
    if store.places[0] != store.version:
        found = {one.ticket: place for place, one in enumerate(line(store), 1)}
        store.places = (store.version, found)
    return store.places[1]


def note_moves(store: Store) -> None:
    """Time alone moves people in line: when it has, that is a change like any other."""
    version, told = store.places
    if version == store.version and list(told) != [one.ticket for one in line(store)]:
        store.version += 1
