"""A GPU against a layout, as it is drawn: what lies there now, what will, and what is in between.

Pure: views in, drawings out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from miglab_api.gpus import GpuView, SliceState
from miglab_api.layouts import GpuLayout, LayoutDrain
from miglab_api.wording import duration

Fate = Literal["stays", "goes", "held", "new", "gap", "other"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of memory slices, with what becomes of it."""

    start: int
    size: int
    what: str
    word: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class GpuChange:
    """One GPU, before and after.

    Attributes:
        layout: the layout's name; empty: none, it is cut on demand.
        then: as it is to be; empty where no layout says so.
        says: how far it is, in words.
        who: what is waited for, in words.
        blocked: what only a person can remove.
    """

    index: int
    memory_slices: int
    layout: str
    course: str
    conforms: bool
    now: tuple[Piece, ...]
    then: tuple[Piece, ...]
    says: str
    who: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


def changes(layouts: Iterable[GpuLayout], gpus: Sequence[GpuView], at: float) -> list[GpuChange]:
    """Each GPU against what is asked of it; one that is not there any more is left out."""
    there = {gpu.uuid: gpu for gpu in gpus}
    return [_change(one, there[one.gpu], at) for one in layouts if one.gpu in there]


def _change(one: GpuLayout, gpu: GpuView, at: float) -> GpuChange:
    return GpuChange(
        gpu.index,
        gpu.memory_slices,
        one.layout,
        one.course,
        one.conforms,
        _filled(_now(one, gpu), gpu.memory_slices),
        _filled(_then(one), gpu.memory_slices) if one.layout else (),
        _says(one, at),
        tuple(_waits(drain, at) for drain in one.drains),
        one.blocked,
    )


def _now(one: GpuLayout, gpu: GpuView) -> list[Piece]:
    held = {drain.slice_id: drain for drain in one.drains}
    goes = {(place.start, place.profile) for place in one.removes}
    found = []
    for item in gpu.slices:
        fate: Fate = "other" if item.state is SliceState.FOREIGN else "stays"
        word = item.user or item.state.value
        if item.slice_id in held:
            fate, word = "held", f"{_holder(held[item.slice_id])}, then removed"
        elif (item.start, item.profile) in goes:
            fate, word = "goes", "removed"
        found.append(Piece(item.start, item.size, item.profile, word, fate))
    return found


def _then(one: GpuLayout) -> list[Piece]:
    keeps = [Piece(p.start, p.size, p.profile, "stays", "stays") for p in one.keeps]
    return [*keeps, *(Piece(p.start, p.size, p.profile, "new", "new") for p in one.makes)]


def _filled(pieces: Iterable[Piece], memory_slices: int) -> tuple[Piece, ...]:
    """The pieces from the first memory slice to the last, with the gaps between them."""
    drawn: list[Piece] = []
    position = 0
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if piece.start > position:
            drawn.append(Piece(position, piece.start - position, "–", "no slice", "gap"))
        drawn.append(piece)
        position = max(position, piece.start + piece.size)
    if position < memory_slices:
        drawn.append(Piece(position, memory_slices - position, "–", "no slice", "gap"))
    return tuple(drawn)


def _says(one: GpuLayout, at: float) -> str:
    if not one.layout:
        return "No layout in force: partitioned on demand"
    if one.conforms:
        return "Conforms"
    parts = [
        f"{len(found)} to {what}"
        for found, what in ((one.makes, "create"), (one.removes, "remove"))
        if found
    ]
    if one.drains:
        number = len(one.drains)
        parts.append(f"waiting for {number} in use")
        parts.append(_ready(one, at))
    return ", ".join(parts) or "Does not conform"


def _ready(one: GpuLayout, at: float) -> str:
    if one.ready_at is None:
        return "a blocking lease has no end"
    return f"done in {duration(one.ready_at - at)} at the latest"


def _holder(drain: LayoutDrain) -> str:
    return drain.user or "somebody"


def _waits(drain: LayoutDrain, at: float) -> str:
    course = f" ({drain.course})" if drain.course else ""
    ends = "has no end" if drain.ends_at is None else f"ends in {duration(drain.ends_at - at)}"
    return f"{_holder(drain)}{course} holds {drain.profile}: the lease {ends}"
