"""Layouts and the pool: applied, removed, in force, cut ahead.

Applying is a decision in the ledger and ends no lease: from then on a GPU takes new leases only on
the seats of what is in force there, what is free and has no seat is destroyed, and a seat that has
emptied gets its slice at once.  Which layout is in force follows from the rows and the clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from miglab_spawner.gpu.geometry import Geometry, Placed
from miglab_spawner.layout_messages import LayoutSpec, LayoutState
from miglab_spawner.pool import leases
from miglab_spawner.pool.core import Core
from miglab_spawner.pool.ledger.ledger import Transaction
from miglab_spawner.pool.ledger.rows import LayoutRow, ReservationRow
from miglab_spawner.pool.line.queue import Ground
from miglab_spawner.pool.placing.placement import Choice
from miglab_spawner.pool.refused import Refused
from miglab_spawner.pool.waits import promises

from . import layout
from .layout import CutError
from .timetable import (
    Planned,
    clashes,
    cuts_text,
    hidden,
    in_force,
    phase,
    planned,
    times_text,
    why_no_time,
)


@dataclass(frozen=True)
class Cuttable:
    """A GPU that a layout may name."""

    uuid: str
    index: int
    name: str
    geometry: Geometry


def cuttable(core: Core) -> list[Cuttable]:
    """Every GPU that can be cut now, by index."""
    found = [
        Cuttable(row.uuid, row.idx, row.name, core.infos[row.uuid].geometry)
        for row in core.state.gpus.values()
        if core.is_cut(row)
    ]
    return sorted(found, key=lambda gpu: (gpu.index, gpu.uuid))


def plans(core: Core) -> list[Planned]:
    """Every layout that is planned or in force."""
    return [planned(row) for row in core.state.layouts.values()]


# -- the clock ----------------------------------------------------------------------------------


def look(core: Core, at: float) -> None:
    """Work out what is in force on each GPU; those where that changed are seen anew."""
    now = in_force(plans(core), at, core.settings.reserve_lead_s) if core.state.layouts else {}
    changed = {gpu for gpu in core.laid.keys() | now.keys() if core.laid.get(gpu) != now.get(gpu)}
    if changed:
        core.laid = now
        core.possible.clear()
        core.redraw(changed)


def note_phases(core: Core, tx: Transaction) -> None:
    """Put into the ledger what the clock has made of each, and see what is in force."""
    for row in list(core.state.layouts.values()):
        state = _state(planned(row), tx.at, core.settings.reserve_lead_s)
        if state != row.state:
            tx.put(replace(row, state=state), reason=_what_now(state))
    look(core, tx.at)


def _state(plan: Planned, at: float, lead_s: float) -> LayoutState:
    found = phase(plan, at, lead_s)
    if found.rank:
        return LayoutState.IN_FORCE
    return LayoutState.PLANNED if found.time else LayoutState.OVER


def _what_now(state: LayoutState) -> str:
    if state is LayoutState.IN_FORCE:
        return "from now on its GPUs are cut so"
    return "it is over for this time" if state is LayoutState.PLANNED else "it is over"


# -- cutting ------------------------------------------------------------------------------------


def cut(core: Core, tx: Transaction) -> None:
    """Destroy what is free and has no seat, and make what is missing on seats that are empty."""
    if not core.laid:
        return
    for ground in core.grounds():
        gpu = ground.state.gpu
        if core.laid_on(gpu) is None or core.cut_done.get(gpu) is ground:
            continue
        if ground.state.usable and core.cut_backoff.is_due(gpu, tx.at):
            _cut(core, tx, ground)


def _cut(core: Core, tx: Transaction, ground: Ground) -> None:
    gpu = ground.state.gpu
    todo, name = core.change(gpu), core.laid[gpu].name
    for item in todo.removes:
        leases.scrub(tx, core.state.slices[item.number], f"recut for layout {name}", remake=False)
    for seat in todo.ready:
        _make(core, tx, gpu, seat, f"cut for layout {name}")
    if not (todo.removes or todo.ready):
        core.cut_done[gpu] = ground


def _make(core: Core, tx: Transaction, gpu: str, seat: Placed, why: str) -> None:
    choice = Choice(gpu, seat.profile, seat.placement)
    tx.put(leases.new_slice(core, tx, gpu, choice, None, ""), reason=why)


# -- applying -----------------------------------------------------------------------------------


def lay(core: Core, asked: Sequence[LayoutSpec], by: str, reason: str = "") -> list[LayoutRow]:
    """Apply layouts, all or none; one of the same name is replaced.

    Args:
        core: the pool.
        asked: each with all its GPUs by UUID.
        by: who.
        reason: why, for the ledger.

    Raises:
        Refused: ``bad-layout`` or ``layout-clash``, with what would go; it is in the ledger too.
    """
    with core.write(durable=True) as tx:
        rows = [_row(core, tx, one, by, reason) for one in asked]
        why = None
        try:
            cuts = [cuts_text(one.gpus) for one in resolved(core, asked)]
            rows = [replace(row, cuts=cut) for row, cut in zip(rows, cuts, strict=True)]
            _check_together(core, rows, tx.at)
        except Refused as error:
            why = error
            rows = [replace(r, state=LayoutState.REFUSED, message=why.message) for r in rows]
        else:
            _replace(core, tx, rows, by)
        for row in rows:
            tx.put(row, by, row.message or _in_words(row), act="cut")
        if why is None:
            _retire(core, tx, by)
            note_phases(core, tx)
    if why is not None:
        raise why
    return [core.state.layouts.get(row.id, row) for row in rows]


def _row(core: Core, tx: Transaction, asked: LayoutSpec, by: str, reason: str) -> LayoutRow:
    return LayoutRow(
        id=core.ledger.new_id("layout"),
        name=asked.name,
        course=asked.course,
        cuts=cuts_text(asked.gpus),
        times=times_text(asked.when),
        made_by=by,
        made_at=tx.at,
        state=LayoutState.PLANNED,
        message=reason,
    )


def resolved(core: Core, asked: Iterable[LayoutSpec]) -> list[LayoutSpec]:
    """The layouts with their cuts in full names.

    Raises:
        Refused: ``bad-layout``, with what would go.
    """
    return [one.model_copy(update={"gpus": _cuts(core, one, core.now())}) for one in asked]


def _cuts(core: Core, asked: LayoutSpec, at: float) -> dict[str, tuple[str, ...]]:
    if asked.course and asked.course not in core.settings.courses:
        names = ", ".join(sorted(core.settings.courses)) or "none"
        raise _bad(asked, f"there is no course {asked.course!r} here. Courses: {names}.")
    if not asked.gpus:
        raise _bad(asked, "it names no GPU.")
    for time in asked.when:
        if why := why_no_time(time, at):
            raise _bad(asked, why)
    return {gpu: _resolved(core, asked, gpu, names) for gpu, names in asked.gpus.items()}


def _resolved(core: Core, asked: LayoutSpec, gpu: str, names: Iterable[str]) -> tuple[str, ...]:
    row, geometry = core.state.gpus.get(gpu), core.geometry(gpu)
    if row is None or geometry is None or not core.is_cut(row):
        raise _bad(asked, f"GPU {gpu} is not one that can be cut now: {_why_uncut(core, gpu)}.")
    try:
        return layout.resolve(names, geometry)
    except CutError as error:
        raise _bad(asked, f"GPU {row.idx} ({row.name}): {error}.") from error


def _why_uncut(core: Core, gpu: str) -> str:
    row = core.state.gpus.get(gpu)
    if row is None:
        return "the lab has no such GPU"
    if gpu not in core.infos:
        return row.why or "it has not answered yet"
    return "its MIG mode is off" if row.mig is False else "it has no MIG"


def _bad(asked: LayoutSpec, why: str) -> Refused:
    return Refused("bad-layout", f"Layout {asked.name}: {why}", 422)


def _check_together(core: Core, rows: Sequence[LayoutRow], at: float) -> None:
    mine = [planned(row) for row in rows]
    names = {row.name for row in rows}
    if len(names) < len(rows):
        raise Refused("bad-layout", "Two of the layouts have the same name.", 422)
    for one, other, time in clashes(mine, at):
        raise Refused("layout-clash", in_one_clash(one, other, time.starts_at))
    before = plans(core)
    after = [*(plan for plan in before if plan.name not in names), *mine]
    promises.check(core, before, after, at)


def check_reserved(core: Core, row: ReservationRow, at: float) -> None:
    """Refuse a reservation that the layouts leave no places for.

    Raises:
        Refused: ``layout-clash``, saying when.
    """
    promises.check_reserved(core, row, plans(core), at)


def in_one_clash(one: Planned, other: Planned, at: float) -> str:
    """Why two layouts do not go together, for people."""
    gpus = ", ".join(sorted(one.cuts.keys() & other.cuts.keys()))
    when = promises.local(at, one.rules[0].tz) if one.rules else "any time"
    return (
        f"Layouts {one.name} and {other.name} both cut {gpus} at {when}: leave it out of one, or "
        "give them times that do not overlap."
    )


def _replace(core: Core, tx: Transaction, rows: Sequence[LayoutRow], by: str) -> None:
    names = {row.name for row in rows}
    for old in [row for row in core.state.layouts.values() if row.name in names]:
        _end(tx, old, LayoutState.REPLACED, by, "one of the same name was applied")


def _retire(core: Core, tx: Transaction, by: str) -> None:
    """End what nothing is left of: without times, and a later one on each of its GPUs."""
    for plan in hidden(plans(core)):
        why = "a later layout holds on each of its GPUs"
        _end(tx, core.state.layouts[plan.number], LayoutState.REPLACED, by, why)


def _end(tx: Transaction, row: LayoutRow, state: LayoutState, by: str, why: str) -> None:
    tx.put(replace(row, state=state, message=why), by, why, act="cut")


def _in_words(row: LayoutRow) -> str:
    cuts = planned(row).cuts
    return "; ".join(f"{gpu}: {layout.in_words(names)}" for gpu, names in cuts.items())


# -- removing -----------------------------------------------------------------------------------


def find(core: Core, name: str) -> LayoutRow:
    """The layout of this name that is planned or in force; Refused if there is none."""
    for row in core.state.layouts.values():
        if row.name == name:
            return row
    names = ", ".join(sorted(row.name for row in core.state.layouts.values())) or "none"
    raise Refused("unknown-layout", f"There is no layout {name!r}. There are: {names}.", 404)


def unlay(core: Core, name: str, by: str, reason: str = "") -> LayoutRow:
    """End a layout: its GPUs are cut on demand again, or by the layout beneath it.

    Raises:
        Refused: ``unknown-layout``, or ``layout-clash``: a class counts on it.
    """
    why = None
    with core.write(durable=True) as tx:
        row = find(core, name)
        try:
            before = plans(core)
            promises.check(core, before, [one for one in before if one.number != row.id], tx.at)
        except Refused as error:
            why = error
            tx.note(row, by, f"not removed: {error.message}", "refused")
        else:
            _end(tx, row, LayoutState.REMOVED, by, reason or f"{by} removed it.")
            note_phases(core, tx)
    if why is not None:
        raise why
    return replace(row, state=LayoutState.REMOVED)
