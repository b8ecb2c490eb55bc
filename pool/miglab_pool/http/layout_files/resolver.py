"""Layouts of a file against the GPUs there are, and layouts as the text of a file.  Pure.

What cannot be is said with the file, line and key where it stands, and with what would fit.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

import yaml
from pydantic import ValidationError

from miglab_api import wording
from miglab_api.layouts import LAYOUT_NAME_MAX, LayoutSpec, LayoutTime
from miglab_pool.decisions.layouts import PartitionableGpu, in_one_clash
from miglab_pool.http.layout_files.reader import (
    ALL,
    INDEX,
    VERSION,
    FilePosition,
    LayoutDraft,
    LayoutError,
    PartitionDraft,
)
from miglab_pool.rules import layout_plan
from miglab_pool.rules.layout_times import Planned, overlap, schedule_of, why_no_time


def chosen(drafts: Sequence[LayoutDraft], names: Collection[str]) -> list[LayoutDraft]:
    """Those of these names; without names all.

    Raises:
        LayoutError: there is none of that name.
    """
    there = [draft.name for draft in drafts]
    for name in names:
        if name not in there:
            position = FilePosition(drafts[0].position.file, 1, "layouts")
            raise LayoutError(
                position, f"there is no layout {name!r}; there are {', '.join(there)}."
            )
    return [draft for draft in drafts if not names or draft.name in names]


def resolve(
    drafts: Iterable[LayoutDraft],
    gpus: Sequence[PartitionableGpu],
    courses: Collection[str],
    at: float,
) -> list[LayoutSpec]:
    """What the wishes mean on these GPUs: each by UUID, profiles by their full names.

    Args:
        drafts: as `layouts.read` found them.
        gpus: all that can be cut.
        courses: the courses there are.
        at: now; a single time must not be over.

    Raises:
        LayoutError: something names what is not there, does not fit, or clashes with another.
    """
    found = [(draft, _spec(draft, gpus, courses, at)) for draft in drafts]
    plans = [(draft, _planned(number, spec)) for number, (draft, spec) in enumerate(found)]
    for (_, one), (draft, other) in combinations(plans, 2):
        time = overlap(one, other, at)
        if time is not None:
            raise LayoutError(draft.position, in_one_clash(one, other, time.starts_at))
    return [spec for _, spec in found]


def _planned(number: int, spec: LayoutSpec) -> Planned:
    return Planned(number, spec.name, spec.course, spec.gpus, tuple(map(schedule_of, spec.when)))


def _spec(
    draft: LayoutDraft, gpus: Sequence[PartitionableGpu], courses: Collection[str], at: float
) -> LayoutSpec:
    if draft.course and draft.course not in courses:
        names = ", ".join(sorted(courses)) or "none"
        raise LayoutError(
            draft.position, f"there is no course {draft.course!r} here; courses: {names}."
        )
    for position, time in draft.when:
        if reason := why_no_time(time, at):
            raise LayoutError(position, reason)
    try:
        return LayoutSpec(
            name=draft.name,
            course=draft.course,
            gpus=dict(_partitions(draft, gpus)),
            when=tuple(time for _, time in draft.when),
        )
    except ValidationError as error:
        reason = f"a name has letters, digits and . _ + -, at most {LAYOUT_NAME_MAX} of them."
        raise LayoutError(draft.position, reason) from error


def _partitions(
    draft: LayoutDraft, gpus: Sequence[PartitionableGpu]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each GPU's cut; one that is named goes before `all`."""
    named: dict[str, PartitionDraft] = {}
    for partition in draft.partitions:
        for gpu in _named(partition, gpus):
            if gpu.uuid in named:
                other = named[gpu.uuid].position.line
                raise LayoutError(
                    partition.position, f"GPU {gpu.index} is named in line {other} already."
                )
            named[gpu.uuid] = partition
    everywhere = next((partition for partition in draft.partitions if partition.gpus == ALL), None)
    for gpu in gpus:
        found = named.get(gpu.uuid, everywhere)
        if found is not None:
            yield gpu.uuid, _fitting(found, gpu)


def _named(
    partition: PartitionDraft, gpus: Sequence[PartitionableGpu]
) -> Iterator[PartitionableGpu]:
    if not gpus:
        raise LayoutError(partition.position, "there is no GPU that can be cut now.")
    for word in () if partition.gpus == ALL else partition.gpus.split(","):
        match = INDEX.fullmatch(word.strip())
        wanted = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        found = [gpu for gpu in gpus if gpu.index in wanted or gpu.uuid == word.strip()]
        if not found or len(found) < len(wanted):
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            raise LayoutError(
                partition.position, f"there is no such GPU that can be cut; there are {there}."
            )
        yield from found


def _fitting(partition: PartitionDraft, gpu: PartitionableGpu) -> tuple[str, ...]:
    try:
        return layout_plan.resolve(partition.names, gpu.geometry)
    except layout_plan.PartitionError as error:
        raise LayoutError(partition.position, f"GPU {gpu.index} ({gpu.name}): {error}.") from error


# -- writing ------------------------------------------------------------------------------------


def dump(specs: Iterable[LayoutSpec]) -> str:
    """Layouts as the text of a file; `layouts.read` and `resolve` make the same of it."""
    found = {spec.name: _plain(spec) for spec in specs}
    document = {"version": int(VERSION), "layouts": found}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def _plain(spec: LayoutSpec) -> dict[str, object]:
    found: dict[str, object] = {"course": spec.course} if spec.course else {}
    found["gpus"] = {
        gpu: wording.in_words(reversed(partition)) if partition else []
        for gpu, partition in spec.gpus.items()
    }
    if spec.when:
        found["when"] = [_plain_time(time) for time in spec.when]
    return found


def _plain_time(time: LayoutTime) -> dict[str, object]:
    days: dict[str, object] = (
        {"date": time.date.isoformat()} if time.date else {"weekdays": ", ".join(time.weekdays)}
    )
    return days | {"from": time.from_time, "to": time.to_time, "tz": time.tz}
