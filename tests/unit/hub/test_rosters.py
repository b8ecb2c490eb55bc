"""Rosters: what spreadsheets and campus systems write, what is said of others, what is applied."""

from pathlib import Path

import pytest

from miglab_hub.cli.roster import GroupChange, group_changes, unread_columns
from miglab_hub.errors import SettingsError, StartError
from miglab_hub.settings.lab_toml import Settings, load
from miglab_hub.settings.rosters import MOST_FAULTS, Roster, RosterError, parse_roster

from .conftest import lab_with

READ = {
    "one column": (b"user\nada\nbob\n", Roster(("ada", "bob"))),
    "roles": (
        b"user,role\nada,student\ntimo,Assistant\nina, instructor \nbob,\n",
        Roster(("ada", "bob"), ("timo",), ("ina",)),
    ),
    "Excel's mark before UTF-8": (b"\xef\xbb\xbfuser\nada\n", Roster(("ada",))),
    "a German spreadsheet": (
        b"Nachname;User;Role\r\nL;ada;student\r\n",
        Roster(("ada",), unread_columns=("Nachname",)),
    ),
    "tabs": (b"user\trole\nina\tinstructor\n", Roster(instructors=("ina",))),
    "other columns, empty lines": (
        b"Username,First name\n\nada,Ada\n,\nbob,\n",
        Roster(("ada", "bob"), unread_columns=("First name",)),
    ),
    "umlauts, addresses": ("user\nüte\no.b@x.org\n".encode(), Roster(("üte", "o.b@x.org"))),
    "quoted": (b'user,name\nada,"Lovelace, Ada"\n', Roster(("ada",), unread_columns=("name",))),
    "nobody": (b"user\n", Roster()),
    "no newline at the end": (b"user\nada", Roster(("ada",))),
    "short line": (b"name,user,role\nL,ada\n", Roster(("ada",), unread_columns=("name",))),
}


@pytest.mark.parametrize(("raw", "roster"), READ.values(), ids=READ)
def test_what_can_be_read(raw: bytes, roster: Roster) -> None:
    """Columns by name, three delimiters, UTF-8 with or without its mark."""
    assert parse_roster(raw, "r.csv") == roster


REFUSED = {
    "Latin-1": ("user\nada\nüte\n".encode("latin-1"), ["r.csv, line 3", "0xfc", "üte", "UTF-8"]),
    "UTF-16": ("user\nada\n".encode("utf-16"), ["r.csv", "UTF-16", "CSV UTF-8"]),
    "empty": (b"", ["r.csv, line 1", "`user`", "nothing"]),
    "only empty lines": (b"\n\n", ["`user`"]),
    "no head": (b"ada\nbob\n", ["r.csv, line 1", "`user`", "it reads: ada"]),
    "two user columns": (b"user,login\nada,ada\n", ["r.csv, line 1", "user, login"]),
    "twice": (b"user\nada\nbob\nada\n", ["r.csv, line 4", "'ada'", "already on line 2"]),
    "twice to the hub": (b"user\nada\nAda\n", ["r.csv, line 3", "'Ada'", "line 2"]),
    "twice with two roles": (
        b"user,role\nada,student\nada,instructor\n",
        ["r.csv, line 3", "already on line 2"],
    ),
    "unknown role": (
        b"user,role\nada,professor\n",
        ["r.csv, line 2", "'professor'", "student, assistant, instructor"],
    ),
    "no user": (b"user,role\n,student\n", ["r.csv, line 2", "no user"]),
    "no name": (b"user\n<script>\n", ["r.csv, line 2", "'<script>'", "not a user name"]),
    "control character": (b"user\na\x1b[31mda\n", ["r.csv, line 2", "not a user name"]),
    "endless name": (b"user\n" + b"x" * 256 + b"\n", ["r.csv, line 2", "not a user name"]),
    "open quote": (b'user\n"ada\nbob\n', ["r.csv, line 2", "not CSV"]),
    "a line after cells of several": (
        b'user,note\nada,"two\nlines"\n\nbob,\na/b,\n',
        ["line 6: 'a/b'"],
    ),
    "binary": (b"user\n\x00\n", ["r.csv", "line 2"]),
}


@pytest.mark.parametrize(("raw", "message_parts"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(raw: bytes, message_parts: list[str]) -> None:
    """File, line, what is wrong and what would be right; nothing of it is used."""
    with pytest.raises(RosterError) as refused:
        parse_roster(raw, "r.csv")
    for part in message_parts:
        assert part in str(refused.value)


def test_all_faults_are_told_at_once_but_not_thousands() -> None:
    """Whoever mends a file sees more than its first fault."""
    with pytest.raises(RosterError) as refused:
        parse_roster(b"user\n" + b"?\n" * 1000, "r.csv")
    lines = str(refused.value).splitlines()
    assert len(lines) == MOST_FAULTS + 1
    assert lines[0].startswith("r.csv, line 2:") and lines[-1] == "r.csv: and 990 more"


LAB = """
[courses.everyone]
shapes = ["1g.5gb"]
roster = "people/ml.csv"
members = ["eve", "ada"]
instructors = ["prof"]
"""


def lab(folder: Path, roster: bytes) -> Path:
    (folder / "people").mkdir()
    (folder / "people" / "ml.csv").write_bytes(roster)
    (folder / "lab.toml").write_text(LAB)
    return folder / "lab.toml"


def test_a_roster_comes_beside_lab_toml(tmp_path: Path) -> None:
    """Its people are the course's, each once; its path starts at lab.toml's folder."""
    file = lab(tmp_path, b"user,role\nada,\nbob,\nIna,instructor\ntimo,assistant\n")
    settings = load(file, {})
    course = settings.courses["everyone"]
    assert (course.title, course.members) == ("everyone", ("eve", "ada", "bob"))
    assert (course.instructors, course.assistants) == (("prof", "Ina"), ("timo",))
    staff = settings.role_book().courses["everyone"]
    assert "ina" in staff.instructors and "timo" in staff.assistants
    assert settings.teachers == {"prof", "Ina", "timo", "instructor"}


@pytest.mark.parametrize(("kind", "gives"), [("shared-password", False), ("pam", True)])
def test_groups_give_no_role_where_one_password_opens_all(
    tmp_path: Path, kind: str, gives: bool
) -> None:
    """Whoever is only in the hub group signs in with the students' printed password."""
    file = lab(tmp_path, b"user\nada\n")
    domains = 'lab.subdomain_host = "https://lab.test"\n'
    file.write_text(domains + file.read_text() + f'\n[authentication]\nclass = "{kind}"\n')
    book = load(file, {}).role_book()
    everyone = frozenset({"everyone"} if gives else ())
    assert book.courses_instructed("carol", ["everyone-instructors"], in_all=False) == everyone
    assert book.courses_assisted("carol", ["everyone-assistants"]) == everyone


def test_a_bad_roster_stops_the_lab_with_its_own_words(tmp_path: Path) -> None:
    """Exit 2 with file and line, as for lab.toml itself; so does one that is not there."""
    file = lab(tmp_path, b"user\nada\nada\n")
    with pytest.raises(SettingsError, match=r"people/ml\.csv, line 3: 'ada' is already on line 2"):
        load(file, {})
    (tmp_path / "people/ml.csv").unlink()
    with pytest.raises(SettingsError, match=r"people/ml\.csv: cannot be read: No such file"):
        load(file, {})


TWO = """
[courses.everyone]
shapes = ["1g.5gb"]
[courses.vision]
shapes = ["1g.5gb"]
instructors = ["Ina"]
roster = "vision.csv"
"""


def settings_with(folder: Path, roster: str) -> Settings:
    (folder / "vision.csv").write_text(roster)
    return lab_with(folder, TWO)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"vision": ("ina", "bob", "ada")}, [GroupChange("vision", ("emil",), ("bob",))]),
        ({"vision": ("ada", "emil", "ina"), "everyone": ("eve",)}, []),
        ({}, [GroupChange("vision", ("ada", "emil", "ina"), ())]),
    ],
)
def test_who_joins_and_who_leaves(
    tmp_path: Path, members: dict[str, tuple[str, ...]], expected: list[GroupChange]
) -> None:
    """The group becomes what the roster says, staff included, in the hub's lower case.

    A course without a roster is left alone, and a group that is missing has nobody.
    """
    assert group_changes(settings_with(tmp_path, "user\nAda\nemil\n"), members) == expected


def test_a_column_that_nobody_reads_is_named(tmp_path: Path) -> None:
    """`Rolle` gives nobody a role, and whoever applies the roster is told."""
    settings = settings_with(tmp_path, "user;Rolle\nada;instructor\n")
    assert list(unread_columns(settings)) == [
        "vision: columns not read: Rolle (only `user` and `role` are)"
    ]


def test_where_the_authenticator_fills_the_groups_a_roster_removes_nobody(tmp_path: Path) -> None:
    """It may name the staff alone; all students would leave."""
    settings_with(tmp_path, "user\nada\n")
    filled = f"{TWO}[authentication.config.Authenticator]\nmanage_groups = true\n"
    with pytest.raises(StartError, match="manage_groups"):
        group_changes(lab_with(tmp_path, filled), {"vision": ("ada", "bob")})
