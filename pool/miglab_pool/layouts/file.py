"""Layout files: a subset of the YAML of NVIDIA's mig-parted, version ``v1``.

`parse_layout` finds one configuration in a text, and `resolve` compares it with the GPUs.  An error
of either names the file, the line and the key, and says what would be right.  What mig-parted reads
and a layout cannot say (a MIG mode that changes) is refused where the configuration that is asked
for has it, and passed over in the others of the file.  A group with a ``device-filter`` names, of
its ``devices``, those with one of these PCI ids.  Pure: opens no file.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from miglab_api.gpus import LAYOUT_NAME_MAX, GpuLayout
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.refused import Refused
from miglab_pool.state.partition import PartitionError
from miglab_pool.state.partition import resolve as resolve_partition

VERSION = "v1"
CONFIGS = "mig-configs"
GROUP_KEYS = ("devices", "mig-enabled", "mig-devices")
FILTER = "device-filter"
ALL = "all"
MOST_SLICES = 64
DEEPEST = 8
PCI_ID = re.compile(r"(0x[0-9A-Fa-f]{8})(?::(0x[0-9A-Fa-f]{8}))?")
NAME = re.compile(rf"\w[\w.+ -]{{0,{LAYOUT_NAME_MAX - 1}}}")

Fields = dict[str, tuple["FilePosition", yaml.Node]]


@dataclass(frozen=True)
class FilePosition:
    """Where something stands: file, line and the keys that lead to it."""

    file: str
    line: int
    key: str

    def below(self, node: yaml.Node, key: str) -> "FilePosition":
        """The position of something within it."""
        return FilePosition(self.file, node.start_mark.line + 1, f"{self.key}.{key}".strip("."))

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}: {self.key}: " if self.key else f"{self.file}:{self.line}: "
        )


class LayoutError(Refused):
    """A layout file cannot be used; says where, why, and what would do."""

    def __init__(self, position: FilePosition, problem: str) -> None:
        super().__init__("bad-layout", f"{position}{problem}", 422)
        self.position, self.problem = position, problem


@dataclass(frozen=True)
class PciModel:
    """PCI ids, packed as NVML packs them: 0xDDDDVVVV; no subsystem stands for any."""

    device_id: int
    subsystem_id: int | None

    def is_of(self, gpu: "PartitionableGpu") -> bool | None:
        """Whether a GPU has these ids; None if it does not tell one that decides."""
        if gpu.pci_device_id is None:
            return None
        if gpu.pci_device_id != self.device_id or self.subsystem_id is None:
            return gpu.pci_device_id == self.device_id
        return None if gpu.pci_subsystem_id is None else gpu.pci_subsystem_id == self.subsystem_id


@dataclass(frozen=True)
class GroupDraft:
    """Some GPUs of a configuration: their indexes, None for all, and their profiles.

    Attributes:
        models: of the GPUs with these indexes only those of one of these; empty: of any.
    """

    position: FilePosition
    indexes: tuple[int, ...] | None
    profiles: tuple[str, ...]
    models: tuple[PciModel, ...] = ()


@dataclass(frozen=True)
class LayoutDraft:
    """A configuration as the file has it, before it is known which GPUs there are."""

    name: str
    groups: tuple[GroupDraft, ...]


@dataclass(frozen=True)
class PartitionableGpu:
    """A GPU that a layout may name; a PCI id is None if NVML does not tell it."""

    uuid: str
    index: int
    name: str
    geometry: Geometry
    pci_device_id: int | None = None
    pci_subsystem_id: int | None = None


# -- reading ------------------------------------------------------------------------------------


def parse_layout(text: str, file: str, name: str = "") -> LayoutDraft:
    """Parse one configuration of a file.

    Args:
        text: the file's.
        file: its name, for what is wrong.
        name: the configuration's; empty: the only one.

    Raises:
        LayoutError: it is not such a file, or the configuration is none that a layout can say.
    """
    top = FilePosition(file, 1, "")
    fields = _mapping(_document(text, top), top, ("version", CONFIGS), ("version", CONFIGS))
    position, node = fields["version"]
    if _text(node, position) != VERSION:
        raise LayoutError(position, f"this miglab reads version {VERSION} of mig-parted's files.")
    position, node = fields[CONFIGS]
    config_name, position, node = _choose_config(_mapping(node, position), position, name)
    groups = [
        _group(position.below(group_node, str(n)), group_node)
        for n, group_node in _items(node, position)
    ]
    if not groups:
        raise LayoutError(position, f"it has no group with {', '.join(GROUP_KEYS)}.")
    return LayoutDraft(config_name, tuple(groups))


def _choose_config(
    configs: Fields, position: FilePosition, name: str
) -> tuple[str, FilePosition, yaml.Node]:
    names = ", ".join(configs) or "none"
    if not name and len(configs) != 1:
        raise LayoutError(position, f"say which configuration is meant; there are {names}.")
    config_name = name or next(iter(configs))
    if config_name not in configs:
        raise LayoutError(position, f"there is no configuration {name!r}; there are {names}.")
    if NAME.fullmatch(config_name) is None:
        reason = f"a name has letters, digits and . _ + -, at most {LAYOUT_NAME_MAX} of them."
        raise LayoutError(configs[config_name][0], reason)
    return config_name, *configs[config_name]


def _group(position: FilePosition, node: yaml.Node) -> GroupDraft:
    fields = _mapping(node, position, (*GROUP_KEYS, FILTER), GROUP_KEYS[:2])
    if _text(fields["mig-enabled"][1], fields["mig-enabled"][0]) != "true":
        raise LayoutError(
            fields["mig-enabled"][0],
            "it must be true: the lab changes no MIG mode. Name only GPUs whose MIG mode is on.",
        )
    if "mig-devices" not in fields:
        raise LayoutError(position, "the key mig-devices is missing.")
    models = _models(*fields[FILTER]) if FILTER in fields else ()
    indexes, profiles = _indexes(*fields["devices"]), _profiles(*fields["mig-devices"])
    return GroupDraft(position, indexes, profiles, models)


def _models(position: FilePosition, node: yaml.Node) -> tuple[PciModel, ...]:
    nodes = [node] if isinstance(node, yaml.ScalarNode) else [n for _, n in _items(node, position)]
    matches = [PCI_ID.fullmatch(_text(item_node, position)) for item_node in nodes]
    if not matches:
        raise LayoutError(position, "it names no PCI device id: leave it out, or name some.")
    return tuple(_model(position, match) for match in matches)


def _model(position: FilePosition, match: re.Match[str] | None) -> PciModel:
    if match is None:
        raise LayoutError(
            position,
            'it must be a PCI device id such as "0x20B010DE", or with its subsystem '
            '"0x20B010DE:0x134F10DE", or a list of these.',
        )
    return PciModel(int(match[1], 16), None if match[2] is None else int(match[2], 16))


def _indexes(position: FilePosition, node: yaml.Node) -> tuple[int, ...] | None:
    if isinstance(node, yaml.ScalarNode) and node.value == ALL:
        return None
    texts = [
        _text(item_node, position.below(item_node, str(n)))
        for n, item_node in _items(node, position)
    ]
    if not texts or not all(text.isascii() and text.isdecimal() for text in texts):
        raise LayoutError(position, "it must be all, or a list of indexes such as [0, 1].")
    return tuple(map(int, texts))


def _profiles(position: FilePosition, node: yaml.Node) -> tuple[str, ...]:
    names: list[str] = []
    for name, (at, count) in _mapping(node, position).items():
        text = _text(count, at)
        if not (text.isascii() and text.isdecimal() and len(text) <= 3):
            raise LayoutError(at, "it must be a count such as 7.")
        names += [name] * int(text)
    if len(names) > MOST_SLICES:
        raise LayoutError(position, f"these are more than {MOST_SLICES} slices of one GPU.")
    return tuple(names)


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
            raise LayoutError(position, f"a layout file is one document, version and {CONFIGS}.")


def _mapping(
    node: yaml.Node, position: FilePosition, allowed: Sequence[str] = (), needed: Sequence[str] = ()
) -> Fields:
    """Return a mapping's values with their positions; ``allowed`` empty: any key."""
    if not isinstance(node, yaml.MappingNode):
        keys = ", ".join(allowed) or "names"
        raise LayoutError(position, f"it must be a mapping with the keys {keys}.")
    fields: Fields = {}
    for key_node, value in node.value:
        key = _text(key_node, position.below(key_node, "?"))
        at = position.below(key_node, key if key.isprintable() and len(key) <= 80 else "?")
        if key in fields:
            raise LayoutError(at, f"it stands there already, in line {fields[key][0].line}.")
        if allowed and key not in allowed:
            raise LayoutError(at, f"there is no such key; allowed here: {', '.join(allowed)}.")
        fields[key] = (at, value)
    for key in needed:
        if key not in fields:
            raise LayoutError(position, f"the key {key} is missing.")
    return fields


def _items(node: yaml.Node, position: FilePosition) -> Iterator[tuple[int, yaml.Node]]:
    if not isinstance(node, yaml.SequenceNode):
        raise LayoutError(position, "it must be a list.")
    yield from enumerate(node.value)


def _text(node: yaml.Node, position: FilePosition) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise LayoutError(position, "it must be one word or text.")
    return str(node.value)


# -- on the lab's GPUs --------------------------------------------------------------------------


def resolve(draft: LayoutDraft, gpus: Sequence[PartitionableGpu]) -> dict[str, tuple[str, ...]]:
    """The profiles of each GPU that a configuration names, sorted, by UUID; none: on demand.

    Args:
        draft: as `parse_layout` found it.
        gpus: all that can be cut.

    Raises:
        LayoutError: it names what is not there or not possible, or a GPU twice.
    """
    partitions: dict[str, tuple[str, ...]] = {}
    for group in draft.groups:
        for gpu in _group_gpus(group, gpus):
            if gpu.uuid in partitions:
                raise LayoutError(group.position, f"GPU {gpu.index} is named twice.")
            partitions[gpu.uuid] = _partition_for(group, gpu)
    if not partitions:
        ids = ", ".join(f"GPU {gpu.index} has {_pci_id(gpu)}" for gpu in gpus)
        reason = f"none of its groups names a GPU here by its {FILTER}; {ids}."
        raise LayoutError(draft.groups[0].position, reason)
    return partitions


def _group_gpus(group: GroupDraft, gpus: Sequence[PartitionableGpu]) -> Iterator[PartitionableGpu]:
    if not gpus:
        raise LayoutError(group.position, "there is no GPU that can be cut now.")
    by_index = {gpu.index: gpu for gpu in gpus}
    for index in by_index if group.indexes is None else group.indexes:
        if index not in by_index:
            available = ", ".join(map(str, by_index))
            raise LayoutError(
                group.position, f"there is no GPU {index} that can be cut; there are {available}."
            )
        if _is_of_a_model(group, by_index[index]):
            yield by_index[index]


def _pci_id(gpu: PartitionableGpu) -> str:
    return "an unknown id" if gpu.pci_device_id is None else f"0x{gpu.pci_device_id:08X}"


def _is_of_a_model(group: GroupDraft, gpu: PartitionableGpu) -> bool:
    answers = [model.is_of(gpu) for model in group.models]
    if None in answers and True not in answers:
        raise LayoutError(
            group.position,
            f"NVML does not tell the PCI ids of GPU {gpu.index}, which {FILTER} needs: name "
            "devices by index, without a filter.",
        )
    return not answers or True in answers


def _partition_for(group: GroupDraft, gpu: PartitionableGpu) -> tuple[str, ...]:
    try:
        return resolve_partition(group.profiles, gpu.geometry)
    except PartitionError as error:
        raise LayoutError(group.position, f"GPU {gpu.index} ({gpu.name}): {error}.") from error


# -- writing ------------------------------------------------------------------------------------


def dump(gpus: Iterable[GpuLayout]) -> str:
    """The layouts of GPUs as one configuration, named as mig-parted's ``export`` names it."""
    partitions: dict[tuple[str, ...], list[int]] = {}
    for gpu in gpus:
        partitions.setdefault(gpu.partition, []).append(gpu.index)
    groups = [
        {"devices": devices, "mig-enabled": True, "mig-devices": dict(Counter(partition))}
        for partition, devices in partitions.items()
    ]
    return yaml.safe_dump({"version": VERSION, CONFIGS: {"current": groups}}, sort_keys=False)
