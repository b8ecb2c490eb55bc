"""When a user's home gets its name, where the spawner is Docker's; no engine is needed."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.hubs import hub_config_for
from traitlets.config import Config

from miglab_spawner.refusals import NotStarted

from .lab import URL, PoolLab

Hub = Any


@pytest.fixture
def names_file(tmp_path: Path) -> Path:
    return tmp_path / "home-names.json"


@pytest.fixture
def hub_config(
    lab: PoolLab, tmp_path: Path, names_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """Servers would be containers, of an engine that is not there."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    c = hub_config_for("mig-docker")
    c.MIGDockerSpawner.pool_url = URL
    c.MIGDockerSpawner.pool_secret_file = str(lab.secret_file)
    c.MIGDockerSpawner.home_names_file = str(names_file)
    return c


async def test_who_is_only_looked_at_claims_no_name(hub: Hub, names_file: Path) -> None:
    """The hub makes a spawner to show an account: that writes nothing."""
    assert hub.spawner("ada").object_name.endswith("-ada")
    assert not names_file.exists()


async def test_the_first_start_keeps_the_name_and_the_container_goes_by_it(
    hub: Hub, names_file: Path
) -> None:
    """Not by the one that was proposed when the account was looked at."""
    assert hub.spawner("ada").object_name.endswith("-ada")
    await hub.rename("ada", "lovelace")
    await hub.spawner("ada").keep_home_name()
    await hub.spawner("lovelace").keep_home_name()
    ids = {name: hub.spawner(name).user_id for name in ("ada", "lovelace")}
    assert json.loads(names_file.read_text()) == ids
    assert hub.spawner("lovelace").object_name.endswith("-lovelace")


async def test_an_account_is_shown_and_deleted_without_the_names(
    hub: Hub, names_file: Path
) -> None:
    """A damaged file keeps servers from starting, and nothing else."""
    names_file.write_text("damaged")
    assert hub.spawner("ada").object_name
    answer = await hub.ask("ada", "GET", "api/users/ada")
    assert answer.status_code == 200, answer.text
    assert (await hub.ask_as_admin("DELETE", "api/users/ada")).status_code == 204
    with pytest.raises(NotStarted) as refusal:
        await hub.spawner("bo").keep_home_name()
    assert refusal.value.reason == "home-unknown"
