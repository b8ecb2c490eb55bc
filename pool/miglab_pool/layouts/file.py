"""Layout files: strict, versioned YAML of how GPUs should be cut.

`read` knows the text alone, `resolve` the GPUs too; whatever is wrong it says with the
file, line and key where it stands, and with what would do.  Every scalar is taken as the text it
is, so that ``10:00`` is a time and not YAML's 600.  Pure: opens no file, asks nobody.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import yaml
from pydantic import ValidationError

from miglab_api import wording
from miglab_api.layouts import LAYOUT_NAME_MAX, LAYOUT_TIMES_MAX, LayoutSpec, LayoutTime
from miglab_api.reservations import WEEKDAYS
from miglab_pool.layouts import rules as layout_rules
from miglab_pool.layouts.checks import PartitionableGpu, in_one_clash
from miglab_pool.layouts.rules import Planned, overlap, schedule_of, why_no_time

VERSION = "1"
ALL = "all"
DEEPEST = 8
MOST_LAYOUTS = 32
LAYOUT_KEYS = ("gpus", "course", "when")
TIME_KEYS = ("weekdays", "date", "from", "to", "tz")
T = TypeVar("T")

INDEX = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
_DAYS = re.compile(rf"({'|'.join(WEEKDAYS)})(?:-({'|'.join(WEEKDAYS)}))?")


@dataclass(frozen=True)
class FilePosition:
    """Where something stands: file, line and the keys that lead to it."""

    file: str
    line: int
    key: str

    def below(self, node: yaml.Node, key: str) -> "FilePosition":
        """The spot of something within it."""
        return FilePosition(self.file, node.start_mark.line + 1, f"{self.key}.{key}".strip("."))

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.key}: " if self.key else f"{self.file}:{self.line}: "
        )


class LayoutError(Exception):
    """A layout file cannot be used; says where, why, and what would do."""

    def __init__(self, position: FilePosition, reason: str) -> None:
        super().__init__(f"{position}{reason}")
        self.position = position
        self.reason = reason


@dataclass(frozen=True)
class PartitionDraft:
    """What a file says of some GPUs: which, and into what."""

    position: FilePosition
    gpus: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class LayoutDraft:
    """A layout as the file has it, before it is known which GPUs there are."""

    position: FilePosition
    name: str
    course: str
    partitions: tuple[PartitionDraft, ...]
    when: tuple[tuple[FilePosition, LayoutTime], ...] = ()


# -- reading ------------------------------------------------------------------------------------


def read(text: str, file: str) -> list[LayoutDraft]:
    """The layouts of a file.

    Args:
        text: the file's.
        file: its name, for what is wrong.

    Raises:
        LayoutError: it is not such a file.
    """
    top = FilePosition(file, 1, "")
    found = _mapping(_document(text, top), top, ("version", "layouts"), ("version", "layouts"))
    position, node = found["version"]
    if _text(node, position) != VERSION:
        raise LayoutError(position, f"this miglab reads version {VERSION} of layout files.")
    position, node = found["layouts"]
    layouts = _mapping(node, position)
    if not 1 <= len(layouts) <= MOST_LAYOUTS:
        raise LayoutError(
            position, f"a file has 1 to {MOST_LAYOUTS} layouts, this has {len(layouts)}."
        )
    return [_draft(name, position, node) for name, (position, node) in layouts.items()]


def _draft(name: str, position: FilePosition, node: yaml.Node) -> LayoutDraft:
    found = _mapping(node, position, LAYOUT_KEYS, ("gpus",))
    where, gpus = found["gpus"]
    partitions = [_partition(key, at, below) for key, (at, below) in _mapping(gpus, where).items()]
    if not partitions:
        raise LayoutError(where, "name a GPU by index or UUID, or write all.")
    return LayoutDraft(
        position=position,
        name=name,
        course=_text(found["course"][1], found["course"][0]) if "course" in found else "",
        partitions=tuple(partitions),
        when=tuple(_times(*found["when"])) if "when" in found else (),
    )


def _partition(key: str, position: FilePosition, node: yaml.Node) -> PartitionDraft:
    if isinstance(node, yaml.ScalarNode):
        return PartitionDraft(position, key, _said(layout_rules.parse, node.value, position))
    names: tuple[str, ...] = ()
    for number, item in enumerate(
        _list(node, position, "profiles, such as 4g + 3x1g or [4g, 3x1g]")
    ):
        at = position.below(item, str(number))
        names += _said(layout_rules.parse, _text(item, at), at)
    return PartitionDraft(position, key, names)


def _times(position: FilePosition, node: yaml.Node) -> Iterator[tuple[FilePosition, LayoutTime]]:
    items = _list(node, position, "times, each with weekdays or date, from, to and tz")
    if not 1 <= len(items) <= LAYOUT_TIMES_MAX:
        raise LayoutError(
            position,
            f"it has {len(items)} times; 1 to {LAYOUT_TIMES_MAX} can be, leave it out for always.",
        )
    for number, item in enumerate(items):
        at = position.below(item, str(number))
        yield at, _time(at, _mapping(item, at, TIME_KEYS, ("from", "to", "tz")))


def _time(
    position: FilePosition, found: Mapping[str, tuple[FilePosition, yaml.Node]]
) -> LayoutTime:
    if ("weekdays" in found) is ("date" in found):
        raise LayoutError(
            position, "say either weekdays (mon-fri, or [tue, thu]) or date (2026-12-24)."
        )
    values = {key: _text(node, at) for key, (at, node) in found.items() if key != "weekdays"}
    days = _weekdays(*found["weekdays"]) if "weekdays" in found else ()
    try:
        return LayoutTime.model_validate(
            {
                "weekdays": days,
                "date": values.get("date"),
                "from_time": values["from"],
                "to_time": values["to"],
                "tz": values["tz"],
            }
        )
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0]).removesuffix("_time")
        expected = "a date such as 2026-12-24" if key == "date" else "a time such as 09:30"
        raise LayoutError(found[key][0], f"{_brief(values[key])} is not {expected}.") from error


def _weekdays(position: FilePosition, node: yaml.Node) -> tuple[str, ...]:
    parts = [node] if isinstance(node, yaml.ScalarNode) else _list(node, position, "weekdays")
    days: set[str] = set()
    for part in parts:
        for word in re.split(r"\s*,\s*|\s+", _text(part, position).strip().lower()):
            match = _DAYS.fullmatch(word)
            if match is None:
                raise LayoutError(
                    position, f"{_brief(word)} is no weekday: {', '.join(WEEKDAYS)} are."
                )
            first, last = WEEKDAYS.index(match[1]), WEEKDAYS.index(match[2] or match[1])
            days |= {WEEKDAYS[(first + n) % 7] for n in range((last - first) % 7 + 1)}
    return tuple(day for day in WEEKDAYS if day in days)


# -- YAML ---------------------------------------------------------------------------------------


def _document(text: str, top: FilePosition) -> yaml.Node:
    try:
        _check_plain(text, top)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context or "it cannot be read"
        raise LayoutError(
            FilePosition(top.file, line, ""), f"this is no YAML: {problem}."
        ) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise LayoutError(FilePosition(top.file, line, ""), "this is no YAML: no text.") from error
    if node is None:
        raise LayoutError(top, f"it is empty; begin with version: {VERSION}.")
    return node


def _check_plain(text: str, top: FilePosition) -> None:
    """No anchors, tags or second documents, and no deeper than a layout file can be."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        position = FilePosition(top.file, event.start_mark.line + 1 if event.start_mark else 1, "")
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise LayoutError(
                position, "anchors, aliases and tags mean nothing here: write it out."
            )
        if depth > DEEPEST or documents > 1:
            raise LayoutError(position, "a layout file is one document of version and layouts.")


def _mapping(
    node: yaml.Node, position: FilePosition, allowed: Sequence[str] = (), needed: Sequence[str] = ()
) -> dict[str, tuple[FilePosition, yaml.Node]]:
    """The keys of a mapping, each once, with where they stand; ``allowed`` empty: any key."""
    if not isinstance(node, yaml.MappingNode):
        keys = ", ".join(allowed) or "names"
        raise LayoutError(position, f"it must be a mapping with the keys {keys}.")
    found: dict[str, tuple[FilePosition, yaml.Node]] = {}
    for key_node, value in node.value:
        key = _text(key_node, position.below(key_node, "?"))
        at = position.below(key_node, key if key.isprintable() and len(key) <= 80 else "?")
        if key in found:
            raise LayoutError(at, f"it stands there already, in line {found[key][0].line}.")
        if allowed and key not in allowed:
            raise LayoutError(at, f"there is no such key; allowed here: {', '.join(allowed)}.")
        found[key] = (at, value)
    for key in needed:
        if key not in found:
            raise LayoutError(position, f"the key {key} is missing.")
    return found


def _list(node: yaml.Node, position: FilePosition, what: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode):
        raise LayoutError(position, f"it must be a list of {what}.")
    return list(node.value)


def _text(node: yaml.Node, position: FilePosition) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise LayoutError(position, "it must be one word or text.")
    return str(node.value)


def _said(parse: Callable[[str], T], text: str, position: FilePosition) -> T:
    try:
        return parse(text)
    except layout_rules.PartitionError as error:
        raise LayoutError(position, str(error)) from error


def _brief(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


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
        return layout_rules.resolve(partition.names, gpu.geometry)
    except layout_rules.PartitionError as error:
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
