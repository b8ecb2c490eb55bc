"""Layouts of a file against the GPUs there are, and layouts as the text of a file.  Pure.

What cannot be is said with the file, line and key where it stands, and with what would fit.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

import yaml
from pydantic import ValidationError

from miglab_api import wording
from miglab_api.layouts import LAYOUT_NAME_MAX, LayoutSpec, LayoutTime
from miglab_pool.decisions.layouts import Cuttable, in_one_clash
from miglab_pool.http.layout_files.reader import (
    ALL,
    INDEX,
    VERSION,
    Cut,
    FilePosition,
    LayoutDraft,
    LayoutError,
)
from miglab_pool.rules import layout_plan
from miglab_pool.rules.layout_times import Planned, overlap, schedule_of, why_no_time


def chosen(wishes: Sequence[LayoutDraft], names: Collection[str]) -> list[LayoutDraft]:
    """Those of these names; without names all.

    Raises:
        LayoutError: there is none of that name.
    """
    there = [wish.name for wish in wishes]
    for name in names:
        if name not in there:
            spot = FilePosition(wishes[0].spot.file, 1, "layouts")
            raise LayoutError(spot, f"there is no layout {name!r}; there are {', '.join(there)}.")
    return [wish for wish in wishes if not names or wish.name in names]


def resolve(
    wishes: Iterable[LayoutDraft], gpus: Sequence[Cuttable], courses: Collection[str], at: float
) -> list[LayoutSpec]:
    """What the wishes mean on these GPUs: each by UUID, profiles by their full names.

    Args:
        wishes: as `layouts.read` found them.
        gpus: all that can be cut.
        courses: the courses there are.
        at: now; a single time must not be over.

    Raises:
        LayoutError: something names what is not there, does not fit, or clashes with another.
    """
    found = [(wish, _spec(wish, gpus, courses, at)) for wish in wishes]
    plans = [(wish, _planned(number, spec)) for number, (wish, spec) in enumerate(found)]
    for (_, one), (wish, other) in combinations(plans, 2):
        time = overlap(one, other, at)
        if time is not None:
            raise LayoutError(wish.spot, in_one_clash(one, other, time.starts_at))
    return [spec for _, spec in found]


def _planned(number: int, spec: LayoutSpec) -> Planned:
    return Planned(number, spec.name, spec.course, spec.gpus, tuple(map(schedule_of, spec.when)))


def _spec(
    wish: LayoutDraft, gpus: Sequence[Cuttable], courses: Collection[str], at: float
) -> LayoutSpec:
    if wish.course and wish.course not in courses:
        names = ", ".join(sorted(courses)) or "none"
        raise LayoutError(wish.spot, f"there is no course {wish.course!r} here; courses: {names}.")
    for spot, time in wish.when:
        if why := why_no_time(time, at):
            raise LayoutError(spot, why)
    try:
        return LayoutSpec(
            name=wish.name,
            course=wish.course,
            gpus=dict(_cuts(wish, gpus)),
            when=tuple(time for _, time in wish.when),
        )
    except ValidationError as error:
        why = f"a name has letters, digits and . _ + -, at most {LAYOUT_NAME_MAX} of them."
        raise LayoutError(wish.spot, why) from error


def _cuts(wish: LayoutDraft, gpus: Sequence[Cuttable]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each GPU's cut; one that is named goes before `all`."""
    named: dict[str, Cut] = {}
    for cut in wish.cuts:
        for gpu in _named(cut, gpus):
            if gpu.uuid in named:
                other = named[gpu.uuid].spot.line
                raise LayoutError(cut.spot, f"GPU {gpu.index} is named in line {other} already.")
            named[gpu.uuid] = cut
    everywhere = next((cut for cut in wish.cuts if cut.gpus == ALL), None)
    for gpu in gpus:
        found = named.get(gpu.uuid, everywhere)
        if found is not None:
            yield gpu.uuid, _fitting(found, gpu)


def _named(cut: Cut, gpus: Sequence[Cuttable]) -> Iterator[Cuttable]:
    if not gpus:
        raise LayoutError(cut.spot, "there is no GPU that can be cut now.")
    for word in () if cut.gpus == ALL else cut.gpus.split(","):
        match = INDEX.fullmatch(word.strip())
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        found = [gpu for gpu in gpus if gpu.index in wanted or gpu.uuid == word.strip()]
        if not found or len(found) < len(wanted):
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            raise LayoutError(cut.spot, f"there is no such GPU that can be cut; there are {there}.")
        yield from found


def _fitting(cut: Cut, gpu: Cuttable) -> tuple[str, ...]:
    try:
        return layout_plan.resolve(cut.names, gpu.geometry)
    except layout_plan.CutError as error:
        raise LayoutError(cut.spot, f"GPU {gpu.index} ({gpu.name}): {error}.") from error


# -- writing ------------------------------------------------------------------------------------


def dump(specs: Iterable[LayoutSpec]) -> str:
    """Layouts as the text of a file; `layouts.read` and `resolve` make the same of it."""
    found = {spec.name: _plain(spec) for spec in specs}
    document = {"version": int(VERSION), "layouts": found}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _plain(spec: LayoutSpec) -> dict[str, object]:
    found: dict[str, object] = {"course": spec.course} if spec.course else {}
    found["gpus"] = {
        gpu: wording.in_words(reversed(cut)) if cut else [] for gpu, cut in spec.gpus.items()
    }
    if spec.when:
        found["when"] = [_plain_time(time) for time in spec.when]
    return found


def _plain_time(time: LayoutTime) -> dict[str, object]:
    days: dict[str, object] = (
        {"date": time.date.isoformat()} if time.date else {"weekdays": ", ".join(time.weekdays)}
    )
    return days | {"from": time.from_time, "to": time.to_time, "tz": time.tz}
