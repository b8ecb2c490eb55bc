"""Under which name each user's home goes."""

from pathlib import Path

import pytest

from miglab_spawner.people import HomeNames, HomeNamesDamaged


@pytest.fixture
def names(tmp_path: Path) -> HomeNames:
    return HomeNames(tmp_path / "homes.json")


def test_a_home_keeps_its_first_name(names: HomeNames, tmp_path: Path) -> None:
    """Whatever its user is called later, and whichever process asks."""
    assert names.propose("1t1", "ada") == "ada" and names.find_name("1t1") is None
    assert names.claim("1t1", "ada") == "ada"
    assert HomeNames(tmp_path / "homes.json").claim("1t1", "lovelace") == "ada"
    assert names.find_name("1t1") == "ada"


@pytest.mark.usefixtures("open_umask")
def test_nobody_else_reads_whose_homes_are_whose(names: HomeNames, tmp_path: Path) -> None:
    """Whatever the hub's umask is."""
    names.claim("1t1", "ada")
    assert (tmp_path / "homes.json").stat().st_mode & 0o777 == 0o600


def test_no_two_users_share_a_home(names: HomeNames) -> None:
    """Not with a former bearer of the name, nor by a name that looks like a home's."""
    homes = [
        names.claim("1t1", "ada"),
        names.claim("2t2", "ada-3t3"),
        names.claim("3t3", "ada"),
        names.claim("4t4", "ada"),
    ]
    assert homes == ["ada", "ada-3t3", "ada-3t3-3t3", "ada-4t4"]
    assert names.propose("5t5", "ada") == "ada-5t5"


def test_a_removed_home_leaves_its_name(names: HomeNames) -> None:
    """To the next account of that name; a name that is not kept is no error."""
    names.claim("1t1", "ada")
    names.drop("ada")
    names.drop("ada")
    assert names.claim("2t2", "ada") == "ada"


@pytest.mark.parametrize("content", ["", "[]", '{"ada": 1}', '{"ada": "1t1"'])
def test_a_damaged_file_gives_nobody_a_home(tmp_path: Path, content: str) -> None:
    """An empty home would look like lost work: the file is left, and the error names it."""
    (tmp_path / "homes.json").write_text(content)
    with pytest.raises(HomeNamesDamaged, match=r"homes\.json"):
        HomeNames(tmp_path / "homes.json").claim("1t1", "ada")
    assert (tmp_path / "homes.json").read_text() == content


def test_a_file_that_cannot_be_read_or_written_says_what_to_do(
    names: HomeNames, tmp_path: Path
) -> None:
    """A folder in its place; a full disk, where the names of before stay."""
    (tmp_path / "homes.json").mkdir()
    with pytest.raises(HomeNamesDamaged, match=r"cannot be read .*: give it to the user"):
        names.propose("1t1", "ada")
    (tmp_path / "homes.json").rmdir()
    names.claim("1t1", "ada")
    (tmp_path / "homes.json.new").symlink_to("/dev/full")
    with pytest.raises(HomeNamesDamaged, match=r"cannot be written \(No space left.*make room"):
        names.claim("2t2", "bo")
    assert names.find_name("1t1") == "ada" and names.find_name("2t2") is None
