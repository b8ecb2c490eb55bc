"""Whether layouts can be applied, alone and beside what is promised."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from miglab_api import wording
from miglab_api.layouts import LayoutSpec
from miglab_api.wording import day_and_time
from miglab_pool import reservations
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.layouts import rules as layout_rules
from miglab_pool.layouts.rules import PartitionError, Planned, clashes, planned, why_no_time
from miglab_pool.ledger.rows import LayoutRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.rules import in_words as words_of
from miglab_pool.state.view import PoolView, gpus_at


@dataclass(frozen=True)
class PartitionableGpu:
    """A GPU that a layout may name."""

    uuid: str
    index: int
    name: str
    geometry: Geometry


def partitionable(view: PoolView) -> list[PartitionableGpu]:
    """Every GPU that can be cut now, by index."""
    gpus = [
        PartitionableGpu(one.row.uuid, one.row.idx, one.row.name, one.hardware)
        for one in view.facts.values()
        if one.is_partitionable and one.hardware is not None
    ]
    return sorted(gpus, key=lambda gpu: (gpu.index, gpu.uuid))


def resolved(view: PoolView, asked: Iterable[LayoutSpec]) -> list[LayoutSpec]:
    """The layouts with their cuts in full names.

    Raises:
        Refused: ``bad-layout``, with what would go.
    """
    return [one.model_copy(update={"gpus": _partitions(view, one, view.at)}) for one in asked]


def _partitions(view: PoolView, asked: LayoutSpec, at: float) -> dict[str, tuple[str, ...]]:
    if asked.course and asked.course not in view.settings.courses:
        names = ", ".join(sorted(view.settings.courses)) or "none"
        raise _bad(asked, f"there is no course {asked.course!r} here. Courses: {names}.")
    if not asked.gpus:
        raise _bad(asked, "it names no GPU.")
    for time in asked.when:
        if reason := why_no_time(time, at):
            raise _bad(asked, reason)
    return {gpu: _resolved(view, asked, gpu, names) for gpu, names in asked.gpus.items()}


def _resolved(view: PoolView, asked: LayoutSpec, gpu: str, names: Iterable[str]) -> tuple[str, ...]:
    one = view.facts.get(gpu)
    if one is None or one.hardware is None or not one.is_partitionable:
        raise _bad(
            asked, f"GPU {gpu} is not one that can be cut now: {_why_not_partitionable(view, gpu)}."
        )
    try:
        return layout_rules.resolve(names, one.hardware)
    except PartitionError as error:
        raise _bad(asked, f"GPU {one.row.idx} ({one.row.name}): {error}.") from error


def _why_not_partitionable(view: PoolView, gpu: str) -> str:
    one = view.facts.get(gpu)
    if one is None:
        return "the lab has no such GPU"
    if one.hardware is None:
        return one.row.reason or "it has not answered yet"
    return "its MIG mode is off" if one.row.mig is False else "it has no MIG"


def _bad(asked: LayoutSpec, reason: str) -> Refused:
    return Refused("bad-layout", f"Layout {asked.name}: {reason}", 422)


def check_together(view: PoolView, rows: Sequence[LayoutRow]) -> None:
    """Refuse layouts that clash with each other, or with what is reserved.

    Raises:
        Refused: ``bad-layout`` or ``layout-clash``.
    """
    mine = [planned(row) for row in rows]
    names = {row.name for row in rows}
    if len(names) < len(rows):
        raise Refused("bad-layout", "Two of the layouts have the same name.", 422)
    for one, other, time in clashes(mine, view.at):
        raise Refused("layout-clash", in_one_clash(one, other, time.starts_at))
    _check_reserved(view, [*(plan for plan in view.plans if plan.name not in names), *mine])


def _check_reserved(view: PoolView, plans: Sequence[Planned]) -> None:
    """Refuse layouts that take slices from a reservation."""
    for one in reservations.broken_by(view, gpus_at(view, view.at, set(view.slices), plans)):
        raise Refused(
            "layout-clash",
            f"On {day_and_time(one.moment, one.row.tz)} reservation {one.row.id} "
            f"({words_of(one.row)}) would have {one.held} of its slices, and {one.before} without "
            "this. Cut more of that shape, leave a GPU out, or change the reservation.",
        )


def in_one_clash(one: Planned, other: Planned, at: float) -> str:
    """Why two layouts do not go together, for people."""
    gpus = ", ".join(sorted(one.partitions.keys() & other.partitions.keys()))
    when = day_and_time(at, one.rules[0].tz) if one.rules else "any time"
    return (
        f"Layouts {one.name} and {other.name} both cut {gpus} at {when}: leave it out of one, or "
        "give them times that do not overlap."
    )


def in_words(row: LayoutRow) -> str:
    """What a layout makes of each GPU, for the ledger."""
    partitions = planned(row).partitions
    return "; ".join(f"{gpu}: {wording.in_words(names)}" for gpu, names in partitions.items())


# -- removing -----------------------------------------------------------------------------------


def find(view: PoolView, name: str) -> LayoutRow:
    """The layout of this name that is planned or in force; Refused if there is none."""
    for row in view.layouts.values():
        if row.name == name:
            return row
    names = ", ".join(sorted(row.name for row in view.layouts.values())) or "none"
    raise Refused("unknown-layout", f"There is no layout {name!r}. There are: {names}.", 404)


def check_removed(view: PoolView, row: LayoutRow) -> None:
    """Refuse to remove a layout that a reservation counts on.

    Raises:
        Refused: ``layout-clash``.
    """
    _check_reserved(view, [one for one in view.plans if one.number != row.id])
