"""How large a home is and where, and what its owner is told."""

import os
from pathlib import Path
from typing import Any

import pytest
from docker.errors import NotFound

from miglab_api.holders import LAB_LABEL
from miglab_spawner.containers.home_volume import HomeTaken, ensure_home_volume, home_directory
from miglab_spawner.home_size import GIB, KIB, HomeUse, measure_folder, parse_use, size_problem

LARGEST = (("data", 9 * GIB), (".cache", 2 * GIB), ("a", GIB))
HOW = (
    "Start a server without a GPU, delete what you no longer need, and then choose this shape "
    "again."
)
SAID = [
    (HomeUse(), 10, ""),
    (HomeUse(10 * GIB, 3), 10, ""),
    (
        HomeUse(12 * GIB, 9), 10,
        f"Your files take 12.0 GiB, and this lab allows 10 GiB for each student. {HOW}",
    ),
    (
        HomeUse(12 * GIB, 9, LARGEST), 10,
        f"Your files take 12.0 GiB, and this lab allows 10 GiB for each student. {HOW} The "
        "largest: data (9.0 GiB), .cache (2.0 GiB), a (1.0 GiB).",
    ),
    (HomeUse(0, 2 * 65_536), 2, ""),
    (
        HomeUse(0, 2 * 65_536 + 1), 2,
        "You have more than 131,072 files and folders, and this lab allows no more for each "
        f"student. {HOW} In a terminal, `du --inodes -d1 ~` counts them by folder.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("use", "gib", "message"), SAID)
def test_the_owner_reads_what_to_delete(use: HomeUse, gib: int, message: str) -> None:
    """The largest first; of many files where to look; up to the limit or unknown, nothing."""
    assert size_problem(use, gib) == message


@pytest.mark.parametrize(
    ("printed", "use"),
    [
        ("2 12\n", HomeUse(12 * KIB, 2)),
        ("3 12\n12\t.\n8\t./b c\n4\t./a", HomeUse(12 * KIB, 3, (("b c", 8192), ("a", 4096)))),
        ("1 4\n4\t./ü<b>\t./x\n", HomeUse(4096, 1, (("ü<b>\t./x", 4096),))),
        ("1 4\nsort: killed\nx\t./a\n", HomeUse(4096, 1)),
        ("", None),
        ("7 \n", None),
        ("sh: find: not found\n0 0\n", None),
    ],
)  # fmt: skip
def test_what_the_container_prints(printed: str, use: HomeUse | None) -> None:
    """Files and KiB, then the largest, of any name; nothing where it was ended before that."""
    assert parse_use(printed) == use


def test_a_folder_is_measured_and_no_link_followed(tmp_path: Path) -> None:
    """With everything below it; a loop, a pipe and what a link leads to count nothing."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "data" / "deep").mkdir(parents=True)
    (home / "data" / "deep" / "file").write_bytes(os.urandom(300_000))
    outside.write_bytes(os.urandom(300_000))
    (home / "link").symlink_to(outside)
    (home / "data" / "loop").symlink_to(home)
    os.mkfifo(home / "pipe")
    use = measure_folder(home, 1)
    assert use.files == 6
    assert use.largest[0][0] == "data"
    assert 300_000 <= use.largest[0][1] <= use.size < 400_000
    assert measure_folder(tmp_path / "nowhere", 1) == HomeUse()


def test_counting_a_folder_ends_where_there_is_too_much(tmp_path: Path) -> None:
    """At the first file that is too many."""
    for number in range(100):
        (tmp_path / str(number)).touch()
    assert measure_folder(tmp_path, 64 / 65_536).files == 65


JUPYTERS = {"Env": ["PATH=/bin", "HOME=/home/jovyan"], "WorkingDir": "/home/jovyan/work"}


@pytest.mark.parametrize(
    ("image", "env", "home"),
    [
        (JUPYTERS, {}, "/home/jovyan"),
        (JUPYTERS, {"HOME": "/home/ada"}, "/home/ada"),
        ({"Env": ["HOME=/root"], "WorkingDir": "/home/ada"}, {}, "/root"),
        ({"Env": ["HOME=/home/a=b/"]}, {}, "/home/a=b"),
        ({"Env": None, "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME="], "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME=/"], "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME=here"], "WorkingDir": "/homes/ada"}, {}, ""),
        ({"Env": [], "WorkingDir": "/home/"}, {}, ""),
        ({"Env": [], "WorkingDir": "/home/../srv"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_where_the_home_is(image: dict[str, object], env: dict[str, str], home: str) -> None:
    """HOME, the site's before the image's; else the working directory if it lies under /home."""
    assert home_directory(image, env) == home


class EngineWithOneVolume:
    """The volume `home` is there with these labels; None: it is not there yet."""

    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels

    def inspect_volume(self, name: str) -> dict[str, Any]:
        if self.labels is None:
            raise NotFound(name)
        return {"Name": name, "Labels": self.labels or None}  # as the engine says that of none

    def create_volume(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        self.labels = labels
        return self.inspect_volume(name)


@pytest.mark.parametrize("labels", [None, {}, {LAB_LABEL: "lab"}])
def test_a_home_is_made_with_the_labs_label(labels: dict[str, str] | None) -> None:
    """One that is there is used as it is, with the lab's label or without any."""
    engine = EngineWithOneVolume(labels)
    ensure_home_volume(engine, "home", "lab", "ada")
    made = {LAB_LABEL: "lab", "miglab.home": "ada"}
    assert engine.labels == (made if labels is None else labels)


def test_another_labs_volume_is_no_home() -> None:
    """Its name alone says nothing; whose it is, the error says."""
    with pytest.raises(HomeTaken, match="another"):
        ensure_home_volume(EngineWithOneVolume({LAB_LABEL: "another"}), "home", "lab", "ada")
