"""What is kept of a person is told, and then it is nobody's."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyterhub import orm
from typer.testing import CliRunner

from miglab_api.holders import LAB_LABEL
from miglab_hub import cli
from miglab_hub.errors import StartError
from miglab_hub.forget import collect_records, forget, has_records
from miglab_hub.home_volumes import home_volume
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger import people
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.tables import VERSION
from miglab_slurm.submissions import Stay, Submissions
from miglab_spawner.people import HomeNames, user_id_of

from .conftest import TICKET


def words_in(file: Path) -> str:
    """The file as it is, free pages and all."""
    return file.read_bytes().decode("latin-1")


def test_everything_is_told(used: Settings) -> None:
    """Account, tickets, messages, acts and home; nobody else's."""
    personal_data = collect_records(used, "ada")
    assert personal_data["hub"]["name"] == "ada"
    assert [token["note"] for token in personal_data["hub"]["tokens"]] == ["for my script"]
    ledger_rows = personal_data["ledger"]
    assert [row["id"] for row in ledger_rows["tickets"]] == [1]
    assert [row["text"] for row in ledger_rows["messages"]] == ["See me, ada"]
    assert {row["reason"] for row in ledger_rows["transitions"]} >= {
        "ada: enough",
        "moved by person:ada",
    }
    assert "person:adaline" not in {row["by"] for row in ledger_rows["transitions"]}
    assert personal_data["home"]["bytes"] == len("mine")


def test_a_renamed_users_home_is_theirs(used: Settings) -> None:
    """It has the name of before; whoever has that name now keeps theirs."""
    with closing(orm.new_session_factory(f"sqlite:///{used.hub_database}")()) as hub:
        ada = orm.User.find(hub, "ada")
        HomeNames(used.home_names).claim(user_id_of(hub, ada.id), "ada")
        ada.name = "lovelace"
        hub.add(orm.User(name="ada"))
        hub.commit()
        HomeNames(used.home_names).claim(user_id_of(hub, orm.User.find(hub, "ada").id), "ada")
        hub.get_bind().dispose()
    assert forget(used, "ada").home == "" and (used.homes / "ada").exists()
    assert forget(used, "lovelace").home == str(used.homes / "ada")
    assert not (used.homes / "ada").exists()
    assert json.loads(used.home_names.read_text()) == {}


def rename(settings: Settings, before: str, name: str) -> None:
    """The account is called so from now on; its home keeps the name of its first start."""
    with closing(orm.new_session_factory(f"sqlite:///{settings.hub_database}")()) as hub:
        account = orm.User.find(hub, before)
        HomeNames(settings.home_names).claim(user_id_of(hub, account.id), before)
        account.name = name
        hub.commit()
        hub.get_bind().dispose()


@pytest.mark.parametrize("has_new_bearer", [False, True])
def test_the_former_name_of_somebody_renamed_leads_to_no_home(
    used: Settings, has_new_bearer: bool
) -> None:
    """Neither where nobody bears the name now, nor where a new account has never started."""
    rename(used, "ada", "lovelace")
    if has_new_bearer:
        with closing(orm.new_session_factory(f"sqlite:///{used.hub_database}")()) as hub:
            hub.add(orm.User(name="ada"))
            hub.commit()
            hub.get_bind().dispose()
    assert collect_records(used, "ada")["home"] == {}
    assert forget(used, "ada").home == ""
    assert (used.homes / "ada").exists() and "ada" in json.loads(used.home_names.read_text())
    assert collect_records(used, "lovelace")["home"]["folder"] == str(used.homes / "ada")


def test_a_home_that_a_deleted_account_left_is_removed(used: Settings) -> None:
    """The name is kept for an id that no account has, which is all that the lab knows of it."""
    HomeNames(used.home_names).claim("999t1", "eve")
    (used.homes / "eve").mkdir()
    assert has_records(collect_records(used, "eve"))
    assert forget(used, "eve").home == str(used.homes / "eve")
    assert json.loads(used.home_names.read_text()) == {}


def test_where_nobody_can_say_whose_home_is_whose_nothing_is_changed(used: Settings) -> None:
    """Neither told nor erased: the message names the file."""
    used.home_names.write_text("damaged")
    for act in (collect_records, forget):
        with pytest.raises(StartError, match=r"home-names\.json does not say"):
            act(used, "ada")
    assert (used.homes / "ada").exists()


def test_then_it_is_nobodys(used: Settings) -> None:
    """Account, home and messages are gone, rows are a pseudonym's, others' are as they were."""
    forgotten = forget(used, "ada")
    after = collect_records(used, "ada")
    assert after["hub"] is None and "ledger" in after and after["ledger"] == {}
    assert not (used.homes / "ada").exists() and (used.homes / "bob" / "work.txt").exists()
    ledger_rows = collect_records(used, forgotten.pseudonym)["ledger"]
    assert ledger_rows["tickets"][0]["message"] == f"{forgotten.pseudonym} gave it up"
    assert f"moved by person:{forgotten.pseudonym}" in {
        row["reason"] for row in ledger_rows["transitions"]
    }
    bob = collect_records(used, "bob")
    assert bob["hub"]["name"] == "bob"
    assert bob["ledger"]["tickets"][0]["message"] == "ada is his name as well"
    assert "person:adaline" in {row["by"] for row in bob["ledger"]["transitions"]}
    assert "See me" not in words_in(used.ledger) and "for my script" not in words_in(
        used.hub_database
    )
    assert forgotten.mentions == ("course everyone",)
    Ledger(used.ledger).close()


def test_on_slurm_the_home_is_the_sites(used: Settings) -> None:
    """No engine is asked; everything else is erased."""
    students = used.servers.model_copy(update={"spawner": "slurm"})
    on_slurm = used.model_copy(update={"servers": students})
    submissions = Submissions(used.slurm_jobs, used.lab_id)
    for job, user in ((1, "ada"), (2, "bob")):
        submissions.note_stay(Stay(job, user, "", "ml", "1g.5gb", "gpu:1g.5gb:1", 1.0, 2.0))
    assert [stay["job"] for stay in collect_records(on_slurm, "ada")["usage"]] == [1]
    forgotten = forget(on_slurm, "ada")
    assert (forgotten.home, forgotten.changed["hub account"]) == ("", 1)
    assert forgotten.changed["slurm usage"] == 1
    assert [stay.user for stay in submissions.stays()] == [forgotten.pseudonym, "bob"]
    assert "site" in collect_records(on_slurm, "ada")["home"]["where"]


def test_once_more_does_the_rest(used: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted before the ledger was written, the second call does that."""
    with monkeypatch.context() as broken:
        broken.setattr(people, "forget", None)
        with pytest.raises(TypeError):
            forget(used, "ada")
    assert collect_records(used, "ada")["ledger"]["tickets"]
    forget(used, "ada")
    assert collect_records(used, "ada")["ledger"] == {}


@pytest.mark.parametrize("holding", ["ticket", "server"])
def test_not_while_something_is_held(used: Settings, holding: str) -> None:
    """A waiting ticket or a running server: refused, and nothing was changed."""
    if holding == "ticket":
        with closing(Ledger(used.ledger)) as ledger, ledger.write(1.0, durable=True) as tx:
            tx.put(replace(TICKET, id=3, state="waiting"))
    else:
        with closing(orm.new_session_factory(f"sqlite:///{used.hub_database}")()) as hub:
            user = orm.User.find(hub, "ada")
            hub.add(orm.Spawner(name="", user=user, server=orm.Server()))
            hub.commit()
            hub.get_bind().dispose()
    with pytest.raises(StartError, match=f"still has {holding}"):
        forget(used, "ada")
    assert collect_records(used, "ada")["hub"] and (used.homes / "ada").exists()


def test_the_command(used: Settings, tmp_path: Path) -> None:
    """It exports first, changes nothing unasked, and says what it did."""
    args = ["forget", "ada", "--export", str(tmp_path / "ada.json"), "--config", str(used.file)]
    export = CliRunner().invoke(cli.app, args)
    assert export.exit_code == 0 and "nothing was changed" in export.output
    assert json.loads((tmp_path / "ada.json").read_text())["user"] == "ada"
    assert "is that the name" not in export.output
    assert (tmp_path / "ada.json").stat().st_mode & 0o777 == 0o600
    args[3] = str(tmp_path / "again.json")
    erasure = CliRunner().invoke(cli.app, [*args, "--erase"])
    assert (
        erasure.exit_code == 0
        and "forgotten-" in erasure.output
        and "course everyone" in erasure.output
    )


def test_a_name_that_nobody_has_is_questioned(used: Settings, tmp_path: Path) -> None:
    """A misspelt name must not look as if the person had been forgotten."""
    args = ["forget", "adda", "--export", str(tmp_path / "adda.json"), "--config", str(used.file)]
    assert "is that the name at the hub?" in CliRunner().invoke(cli.app, args).output
    (used.homes / "adda").mkdir()
    args[3] = str(tmp_path / "again.json")
    stopped = CliRunner().invoke(cli.app, [*args, "--erase"])
    assert isinstance(stopped.exception, StartError) and (used.homes / "adda").exists()


def test_a_ledger_of_before_is_brought_up_to_date_first(used: Settings) -> None:
    """Until then nobody is forgotten in it; afterwards they are found there too."""
    with closing(sqlite3.connect(used.ledger)) as ledger, ledger:
        ledger.execute("DROP TABLE progress")
        ledger.execute("UPDATE schema_version SET version = ?", (VERSION - 1,))
    with pytest.raises(StartError, match="start the lab once"):
        forget(used, "ada")
    Ledger(used.ledger).close()
    assert {row["id"] for row in collect_records(used, "ada")["ledger"]["tickets"]} == {1}
    forget(used, "ada")
    assert "ledger" not in {name for name, rows in collect_records(used, "ada").items() if rows}


@pytest.mark.parametrize("user", ["a'b", "%", "x_y", "ада", "a/b;--", "[a-z]+"])
def test_a_name_is_no_pattern(used: Settings, user: str) -> None:
    """Odd names are matched as they are, and no others with them."""
    with closing(Ledger(used.ledger)) as ledger, ledger.write(1.0, durable=True) as tx:
        tx.put(replace(TICKET, id=4, user=user), cause=f"server:{user}/", reason=f"by {user}")
    with people.open_ledger(used.ledger) as file:
        people.register_targets(file, people.targets_of(file, user))
        assert set(people.forget(file, user, "forgotten")) == {"tickets", "transitions"}
        assert people.personal_rows(file, user).get("tickets") is None
        assert len(people.personal_rows(file, "ada")["tickets"]) == 1


def test_another_engine_has_no_homes_of_this_lab(
    used: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell without the lab's DOCKER_HOST is told so: no home counts as gone, none is removed.

    Nor is a volume that another lab has made on the lab's own engine.
    """
    removed: list[str] = []
    engine = SimpleNamespace(
        info=lambda: {"ID": "another"},
        inspect_volume=lambda _: {"Labels": {LAB_LABEL: "another"}},
        remove_volume=removed.append,
        close=lambda: None,
    )
    monkeypatch.setattr("miglab_hub.forget.docker.APIClient", lambda **_: engine)
    monkeypatch.setattr("miglab_hub.forget.remove_stale_measurements", lambda *_: None)
    in_docker = used.servers.model_copy(update={"spawner": "docker"})
    used = used.model_copy(update={"servers": in_docker})
    with closing(Ledger(used.ledger)) as ledger:
        ledger.keep_engine(1.0, "own")
    with pytest.raises(StartError, match="set DOCKER_HOST"):
        forget(used, "ada")
    assert not removed and collect_records(used, "ada")["hub"] is not None
    engine.info = lambda: {"ID": "own"}
    with pytest.raises(StartError, match='a home of the lab "another"'):
        forget(used, "ada")
    assert not removed
    engine.inspect_volume = lambda _: {"Labels": None}
    assert forget(used, "ada").home == home_volume(used, "ada")
    assert removed == [home_volume(used, "ada")]
    assert home_volume(used, "Ada.L") == "miglab-home--41da-2e-4c", "as DockerSpawner names it"
