"""How large a home is, and what its owner is told."""

import os
from pathlib import Path

import pytest

from miglab_spawner.home_size import GIB, measured, sizes_of, too_large


def test_the_owner_reads_what_to_delete() -> None:
    """How much there is, how much is allowed, what to do, and the largest things first."""
    said = too_large({"data": 9 * GIB, ".cache": 2 * GIB, "a": GIB, "notes": 1}, 10)
    assert said == (
        "Your files take 12.0 GiB, and this lab allows 10 GiB for each student. Start a server "
        "without a GPU, delete what you no longer need, and then choose this shape again. The "
        "largest: data (9.0 GiB), .cache (2.0 GiB), a (1.0 GiB)."
    )


@pytest.mark.parametrize("sizes", [{}, {"data": 10 * GIB}])
def test_within_the_limit_nothing_is_said(sizes: dict[str, int]) -> None:
    """Up to the limit, and where nothing is known."""
    assert too_large(sizes, 10) == ""


@pytest.mark.parametrize(
    ("printed", "sizes"),
    [
        ("", {}),
        ("4\t./a\0" "8\t./b c\0", {"a": 4096, "b c": 8192}),
        ("4\t./two\nlines\0", {"two\nlines": 4096}),
        ("du: cannot read\0x\t./a\0" "4\0", {}),
        ("4\t./ü<b>\0", {"ü<b>": 4096}),
    ],
)  # fmt: skip
def test_what_du_prints(printed: str, sizes: dict[str, int]) -> None:
    """A size and a path for each; any name, and nothing that is none."""
    assert sizes_of(printed) == sizes


def test_a_folder_is_measured_and_no_link_followed(tmp_path: Path) -> None:
    """With everything below it; a loop, a pipe and what a link leads to count nothing."""
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "data" / "deep").mkdir(parents=True)
    (home / "data" / "deep" / "file").write_bytes(os.urandom(300_000))
    outside.write_bytes(os.urandom(300_000))
    (home / "link").symlink_to(outside)
    (home / "data" / "loop").symlink_to(home)
    os.mkfifo(home / "pipe")
    sizes = measured(home)
    assert 300_000 <= sizes["data"] < 400_000
    assert sizes["link"] + sizes["pipe"] < 10_000
    assert measured(tmp_path / "nowhere") == {}
