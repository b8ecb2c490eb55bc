"""The right to create slices is the device node that the driver names, opened."""

from pathlib import Path

import pytest

from miglab_hub.mig_rights import examine_mig_rights

CAPABILITY = "DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
NULL = 3  # the minor number of /dev/null, a device that everybody may open


@pytest.fixture
def capability(tmp_path: Path) -> Path:
    """The driver's file, which names the device 3."""
    file = tmp_path / "config"
    file.write_text(CAPABILITY.format(minor=NULL))
    return file


def node(folder: Path, target: str) -> None:
    """Put a device in place of the driver's node: a link to one, which needs no root."""
    (folder / f"nvidia-cap{NULL}").symlink_to(target)


def test_the_driver_s_own_node_opens(tmp_path: Path, capability: Path) -> None:
    """The node is there, is the named device, and can be opened: slices can be created."""
    node(tmp_path, "/dev/null")
    assert not examine_mig_rights(capability, tmp_path).is_wrong


@pytest.mark.parametrize("target", ["/dev/zero", "config"])
def test_another_thing_in_its_place_is_no_right(
    tmp_path: Path, capability: Path, target: str
) -> None:
    """A device with another number, or a file."""
    node(tmp_path, target)
    assert "is not the device 3" in examine_mig_rights(capability, tmp_path).observation


def test_root_without_the_node_has_no_right(tmp_path: Path, capability: Path) -> None:
    """As in a container of which the engine asked by CDI; nobody's number says otherwise."""
    finding = examine_mig_rights(capability, tmp_path)
    assert finding.is_wrong and "nvidia-cap3: No such file" in finding.observation
    assert "./lab production restart" in finding.remedy


def test_a_driver_without_mig_gives_no_right(tmp_path: Path) -> None:
    """Its file is not there, or names nothing: unknown is not allowed."""
    file = tmp_path / "config"
    assert "No such file" in examine_mig_rights(file, tmp_path).observation
    file.write_text("nothing\n")
    assert "names no device" in examine_mig_rights(file, tmp_path).observation
