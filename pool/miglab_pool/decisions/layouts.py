"""Whether layouts can be applied, alone and beside what is promised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miglab_api import wording
from miglab_api.layouts import LayoutSpec
from miglab_pool.decisions import layout_conflicts
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.model.refused import Refused
from miglab_pool.model.rows import LayoutRow, ReservationRow
from miglab_pool.rules import layout_plan
from miglab_pool.rules.layout_plan import CutError
from miglab_pool.rules.layout_times import Planned, clashes, planned, why_no_time
from miglab_pool.state.store import Store


@dataclass(frozen=True)
class Cuttable:
    """A GPU that a layout may name."""

    uuid: str
    index: int
    name: str
    geometry: Geometry


def cuttable(store: Store) -> list[Cuttable]:
    """Every GPU that can be cut now, by index."""
    found = [
        Cuttable(row.uuid, row.idx, row.name, store.infos[row.uuid].geometry)
        for row in store.state.gpus.values()
        if store.is_cut(row)
    ]
    return sorted(found, key=lambda gpu: (gpu.index, gpu.uuid))


def plans(store: Store) -> list[Planned]:
    """Every layout that is planned or in force."""
    return [planned(row) for row in store.state.layouts.values()]


def resolved(store: Store, asked: Iterable[LayoutSpec]) -> list[LayoutSpec]:
    """The layouts with their cuts in full names.

    Raises:
        Refused: ``bad-layout``, with what would go.
    """
    return [one.model_copy(update={"gpus": _cuts(store, one, store.now())}) for one in asked]


def _cuts(store: Store, asked: LayoutSpec, at: float) -> dict[str, tuple[str, ...]]:
    if asked.course and asked.course not in store.settings.courses:
        names = ", ".join(sorted(store.settings.courses)) or "none"
        raise _bad(asked, f"there is no course {asked.course!r} here. Courses: {names}.")
    if not asked.gpus:
        raise _bad(asked, "it names no GPU.")
    for time in asked.when:
        if why := why_no_time(time, at):
            raise _bad(asked, why)
    return {gpu: _resolved(store, asked, gpu, names) for gpu, names in asked.gpus.items()}


def _resolved(store: Store, asked: LayoutSpec, gpu: str, names: Iterable[str]) -> tuple[str, ...]:
    row, geometry = store.state.gpus.get(gpu), store.geometry(gpu)
    if row is None or geometry is None or not store.is_cut(row):
        raise _bad(asked, f"GPU {gpu} is not one that can be cut now: {_why_uncut(store, gpu)}.")
    try:
        return layout_plan.resolve(names, geometry)
    except CutError as error:
        raise _bad(asked, f"GPU {row.idx} ({row.name}): {error}.") from error


def _why_uncut(store: Store, gpu: str) -> str:
    row = store.state.gpus.get(gpu)
    if row is None:
        return "the lab has no such GPU"
    if gpu not in store.infos:
        return row.why or "it has not answered yet"
    return "its MIG mode is off" if row.mig is False else "it has no MIG"


def _bad(asked: LayoutSpec, why: str) -> Refused:
    return Refused("bad-layout", f"Layout {asked.name}: {why}", 422)


def _check_together(store: Store, rows: Sequence[LayoutRow], at: float) -> None:
    mine = [planned(row) for row in rows]
    names = {row.name for row in rows}
    if len(names) < len(rows):
        raise Refused("bad-layout", "Two of the layouts have the same name.", 422)
    for one, other, time in clashes(mine, at):
        raise Refused("layout-clash", in_one_clash(one, other, time.starts_at))
    before = plans(store)
    after = [*(plan for plan in before if plan.name not in names), *mine]
    layout_conflicts.check(store, before, after, at)


def check_reserved(store: Store, row: ReservationRow, at: float) -> None:
    """Refuse a reservation that the layouts leave no places for.

    Raises:
        Refused: ``layout-clash``, saying when.
    """
    layout_conflicts.check_reserved(store, row, plans(store), at)


def in_one_clash(one: Planned, other: Planned, at: float) -> str:
    """Why two layouts do not go together, for people."""
    gpus = ", ".join(sorted(one.cuts.keys() & other.cuts.keys()))
    when = layout_conflicts.local(at, one.rules[0].tz) if one.rules else "any time"
    return (
        f"Layouts {one.name} and {other.name} both cut {gpus} at {when}: leave it out of one, or "
        "give them times that do not overlap."
    )


def _in_words(row: LayoutRow) -> str:
    cuts = planned(row).cuts
    return "; ".join(f"{gpu}: {wording.in_words(names)}" for gpu, names in cuts.items())


# -- removing -----------------------------------------------------------------------------------


def find(store: Store, name: str) -> LayoutRow:
    """The layout of this name that is planned or in force; Refused if there is none."""
    for row in store.state.layouts.values():
        if row.name == name:
            return row
    names = ", ".join(sorted(row.name for row in store.state.layouts.values())) or "none"
    raise Refused("unknown-layout", f"There is no layout {name!r}. There are: {names}.", 404)
