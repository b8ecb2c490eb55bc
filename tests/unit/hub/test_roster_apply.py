"""`miglab roster apply`: what is to be changed; tests/hub/test_lab_up.py has a hub do it."""

from pathlib import Path

import pytest

from miglab_hub.cli.roster import GroupChange, changes, left_aside
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings

from .conftest import lab_with

LAB = """
[courses.everyone]
shapes = ["1g.5gb"]
[courses.vision]
shapes = ["1g.5gb"]
instructors = ["Ina"]
roster = "vision.csv"
"""


def settings_with(folder: Path, roster: str) -> Settings:
    (folder / "vision.csv").write_text(roster)
    return lab_with(folder, LAB)


@pytest.mark.parametrize(
    ("there", "asked"),
    [
        ({"vision": ("ina", "bob", "ada")}, [GroupChange("vision", ("emil",), ("bob",))]),
        ({"vision": ("ada", "emil", "ina"), "everyone": ("eve",)}, []),
        ({}, [GroupChange("vision", ("ada", "emil", "ina"), ())]),
    ],
)
def test_who_joins_and_who_leaves(
    tmp_path: Path, there: dict[str, tuple[str, ...]], asked: list[GroupChange]
) -> None:
    """The group becomes what the roster says, staff included, in the hub's lower case.

    A course without a roster is left alone, and a group that is missing has nobody.
    """
    assert changes(settings_with(tmp_path, "user\nAda\nemil\n"), there) == asked


def test_a_column_that_nobody_reads_is_named(tmp_path: Path) -> None:
    """`Rolle` gives nobody a role, and whoever applies the roster is told."""
    settings = settings_with(tmp_path, "user;Rolle\nada;instructor\n")
    assert list(left_aside(settings)) == [
        "vision: columns not read: Rolle (only `user` and `role` are)"
    ]


def test_where_the_authenticator_fills_the_groups_a_roster_removes_nobody(tmp_path: Path) -> None:
    """It may name the staff alone; all students would leave."""
    settings_with(tmp_path, "user\nada\n")
    filled = f"{LAB}[authentication.config.Authenticator]\nmanage_groups = true\n"
    with pytest.raises(StartError, match="manage_groups"):
        changes(lab_with(tmp_path, filled), {"vision": ("ada", "bob")})
