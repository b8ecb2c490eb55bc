"""`miglab roster apply`: what is to be changed; tests/hub/test_lab_up.py has a hub do it."""

from pathlib import Path

import pytest

from miglab_hub.cli.roster import GroupChange, changes, left_aside
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings, load

LAB = """
[courses.everyone]
shapes = ["1g.5gb"]
[courses.vision]
shapes = ["1g.5gb"]
instructors = ["Ina"]
roster = "vision.csv"
"""


def settings_with(folder: Path, roster: str) -> Settings:
    (folder / "lab.toml").write_text(LAB)
    (folder / "vision.csv").write_text(roster)
    return load(folder / "lab.toml", {})


def test_who_joins_and_who_leaves(tmp_path: Path) -> None:
    """The group becomes what the roster says, staff included, in the hub's lower case."""
    settings = settings_with(tmp_path, "user\nAda\nemil\n")
    there = {"vision": ("ina", "bob", "ada"), "everyone": ("eve",)}
    assert changes(settings, there) == [GroupChange("vision", ("emil",), ("bob",))]


def test_a_column_that_nobody_reads_is_named(tmp_path: Path) -> None:
    """`Rolle` gives nobody a role, and whoever applies the roster is told."""
    settings = settings_with(tmp_path, "user;Rolle\nada;instructor\n")
    assert list(left_aside(settings)) == [
        "vision: columns not read: Rolle (only `user` and `role` are)"
    ]


def test_a_course_without_a_roster_is_left_alone(tmp_path: Path) -> None:
    """Its members may come from the authenticator, or from somebody's hand."""
    settings = settings_with(tmp_path, "user\nada\n")
    assert changes(settings, {"vision": ("ada", "ina"), "everyone": ("eve", "adam")}) == []


def test_a_group_that_is_missing_has_nobody(tmp_path: Path) -> None:
    """All of the roster join it."""
    settings = settings_with(tmp_path, "user\nada\n")
    assert changes(settings, {}) == [GroupChange("vision", ("ada", "ina"), ())]


def test_where_the_authenticator_fills_the_groups_a_roster_removes_nobody(tmp_path: Path) -> None:
    """It may name the staff alone; all students would leave."""
    settings = settings_with(tmp_path, "user\nada\n")
    file = settings.file
    file.write_text(f"{LAB}[authentication.config.Authenticator]\nmanage_groups = true\n")
    with pytest.raises(StartError, match="manage_groups"):
        changes(load(file, {}), {"vision": ("ada", "bob")})
