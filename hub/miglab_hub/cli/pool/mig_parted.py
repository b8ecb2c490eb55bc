"""mig-parted's files as layout files, and applied layouts as a mig-parted file.  Pure.

mig-parted's file is NVIDIA's: named configurations, each a list of device groups with the number of
slices of each profile (``version: v1``, ``mig-configs``).  It says which MIG mode a GPU is in, too;
the lab changes none, so a configuration that turns MIG off is refused.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from miglab_api.layouts import Layouts, LayoutState

VERSION = "v1"
CONFIGS = "mig-configs"
GROUP_KEYS = frozenset({"devices", "mig-enabled", "mig-devices", "device-filter"})


class MigPartedError(ValueError):
    """The file is none of mig-parted's, or says what a layout cannot; the message says where."""


def is_mig_parted(text: str) -> bool:
    """Whether a file is mig-parted's, and not a layout file."""
    return any(line.startswith(f"{CONFIGS}:") for line in text.splitlines())


def to_layout_file(text: str, file: str) -> str:
    """The layout file that says the same.

    Raises:
        MigPartedError: it cannot be said.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise MigPartedError(f"{file}: not YAML: {error}") from error
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise MigPartedError(f'{file}: a mig-parted file begins with "version: {VERSION}"')
    configs = data.get(CONFIGS)
    if not isinstance(configs, dict) or not configs:
        raise MigPartedError(f"{file}: {CONFIGS} names no configuration")
    layouts = {
        str(name): {"gpus": dict(_gpus(groups, f"{file}: {CONFIGS}.{name}"))}
        for name, groups in configs.items()
    }
    return _dumped({"version": 1, "layouts": layouts})


def _gpus(groups: Any, where: str) -> Iterator[tuple[str, list[str]]]:
    if not isinstance(groups, list) or not groups:
        raise MigPartedError(f"{where}: must be a list of device groups")
    for number, group in enumerate(groups):
        at = f"{where}[{number}]"
        if not isinstance(group, dict) or not group.keys() <= GROUP_KEYS:
            raise MigPartedError(f"{at}: its keys must be among {', '.join(sorted(GROUP_KEYS))}")
        if "device-filter" in group:
            raise MigPartedError(f"{at}: device-filter has no counterpart: name the devices")
        if group.get("mig-enabled") is not True:
            raise MigPartedError(f"{at}: the lab changes no MIG mode: mig-enabled must be true")
        yield _devices(group.get("devices"), at), list(_profiles(group.get("mig-devices"), at))


def _devices(devices: Any, at: str) -> str:
    if devices == "all":
        return "all"
    if isinstance(devices, list) and devices and all(type(one) is int for one in devices):
        return ", ".join(map(str, devices))
    raise MigPartedError(f'{at}.devices: must be "all" or a list of indexes')


def _profiles(devices: Any, at: str) -> Iterator[str]:
    if not isinstance(devices, Mapping):
        raise MigPartedError(f"{at}.mig-devices: must name profiles with their counts")
    for profile, count in devices.items():
        if type(count) is not int or count < 0:
            raise MigPartedError(f"{at}.mig-devices.{profile}: must be a count")
        if count:
            yield f"{count}x{profile}"


def from_layouts(layouts: Layouts) -> str:
    """A mig-parted file of what is applied, without courses and times, which it cannot say."""
    indexes = {gpu.gpu: gpu.index for gpu in layouts.gpus}
    ended = (LayoutState.OVER, LayoutState.REMOVED, LayoutState.REPLACED, LayoutState.REFUSED)
    configs = {
        layout.name: list(_groups(layout.gpus, indexes))
        for layout in layouts.layouts
        if layout.state not in ended
    }
    return _dumped({"version": VERSION, CONFIGS: configs})


def _groups(
    gpus: Mapping[str, Iterable[str]], indexes: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """GPUs with the same partition form one group."""
    partitions: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for uuid, profiles in gpus.items():
        if uuid in indexes:
            partition = tuple(Counter(profiles).items())
            partitions.setdefault(partition, []).append(indexes[uuid])
    for partition, devices in partitions.items():
        yield {"devices": sorted(devices), "mig-enabled": True, "mig-devices": dict(partition)}


def _dumped(data: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True))
