"""mig-parted's files: read as layout files, and written from applied layouts."""

import pytest
import yaml

from miglab_api.layouts import GpuLayout, Layouts, LayoutState, LayoutView
from miglab_hub.cli.pool.mig_parted import (
    MigPartedError,
    from_layouts,
    is_mig_parted,
    to_layout_file,
)
from miglab_pool.layouts.file import read

# From the examples of NVIDIA's mig-parted.
EXAMPLE = """\
version: v1
mig-configs:
  all-1g.5gb:
    - devices: all
      mig-enabled: true
      mig-devices:
        "1g.5gb": 7
  custom-config:
    - devices: [0,1]
      mig-enabled: true
      mig-devices:
        "1g.5gb": 2
        "2g.10gb": 1
        "3g.20gb": 1
    - devices: [2]
      mig-enabled: true
      mig-devices: {}
"""
UUIDS = ("GPU-a", "GPU-b", "GPU-c")


def applied(**gpus: tuple[str, ...]) -> Layouts:
    """Layouts as the service answers them, with one that is over."""
    by_uuid = {uuid: gpus[key] for uuid, key in zip(UUIDS, "abc", strict=True) if key in gpus}
    views = [
        LayoutView(id=1, name=name, gpus=by_uuid, state=state, made_at=0.0)
        for name, state in (("mine", LayoutState.IN_FORCE), ("old", LayoutState.REPLACED))
    ]
    there = [GpuLayout(gpu=uuid, index=at, conforms=True) for at, uuid in enumerate(UUIDS)]
    return Layouts(at=0.0, layouts=tuple(views), gpus=tuple(there))


def test_nvidias_example_is_a_layout_file() -> None:
    """Every configuration becomes a layout that the service's strict reader takes."""
    assert is_mig_parted(EXAMPLE)
    found = read(to_layout_file(EXAMPLE, "config.yaml"), "config.yaml")
    assert [one.name for one in found] == ["all-1g.5gb", "custom-config"]
    text = yaml.safe_load(to_layout_file(EXAMPLE, "config.yaml"))["layouts"]
    assert text["custom-config"]["gpus"] == {
        "0, 1": ["2x1g.5gb", "1x2g.10gb", "1x3g.20gb"],
        "2": [],
    }


def test_what_is_applied_is_a_mig_parted_file() -> None:
    """GPUs with one partition are one group; a layout that is over is not in it."""
    layouts = applied(a=("1g.5gb",) * 7, b=("1g.5gb",) * 7, c=("3g.20gb", "2g.10gb"))
    assert yaml.safe_load(from_layouts(layouts)) == {
        "version": "v1",
        "mig-configs": {
            "mine": [
                {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
                {"devices": [2], "mig-enabled": True, "mig-devices": {"3g.20gb": 1, "2g.10gb": 1}},
            ]
        },
    }


def test_there_and_back() -> None:
    """What was written is read as the same partitions."""
    text = from_layouts(applied(a=("3g.20gb", "1g.5gb", "1g.5gb")))
    (layout,) = yaml.safe_load(to_layout_file(text, "f"))["layouts"].values()
    assert layout["gpus"] == {"0": ["1x3g.20gb", "2x1g.5gb"]}


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("{devices: all, mig-enabled: false}", "the lab changes no MIG mode"),
        ("{devices: all, mig-enabled: true, device-filter: [0x20B0]}", "device-filter"),
        ("{devices: 0, mig-enabled: true}", "a list of indexes"),
        ("{devices: all, mig-enabled: true, mig-devices: {1g.5gb: x}}", "must be a count"),
        ("{devices: all, mig-enabled: true, mig-devices: [1]}", "profiles with their counts"),
        ("{gpus: all}", "its keys must be among"),
        ("{devices: all, mig-enabled: true}]\n  a: [}", "not YAML"),
    ],
)
def test_what_cannot_be_said_is_refused(group: str, said: str) -> None:
    """The message names the file, the configuration and what is wrong."""
    with pytest.raises(MigPartedError, match=said):
        to_layout_file(f"version: v1\nmig-configs:\n  mine: [{group}]\n", "config.yaml")


@pytest.mark.parametrize(
    "text", ["mig-configs:\n", "version: v1\nmig-configs: {}\n", "version: v1"]
)
def test_a_file_without_configurations_is_refused(text: str) -> None:
    """So is one of another version."""
    with pytest.raises(MigPartedError):
        to_layout_file(text, "config.yaml")
    assert not is_mig_parted("version: 1\nlayouts: {}\n")
