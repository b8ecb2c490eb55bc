"""The classes without a hub: threads, traits, entry points."""

import threading
from importlib.metadata import entry_points
from typing import Any

import pytest
from dockerspawner import DockerSpawner
from jupyterhub.spawner import Spawner
from traitlets.config import Config

from miglab_api.scopes import LEASE_SCOPE
from miglab_slurm.spawner import MIGSlurmSpawner
from miglab_spawner.docker import MIGDockerSpawner
from miglab_spawner.local import GatedProcessSpawner, MIGLocalSpawner, folder_name
from miglab_spawner.token_scopes import with_lease_scope

OURS = [
    (MIGDockerSpawner, DockerSpawner),
    (MIGLocalSpawner, GatedProcessSpawner),
    (MIGSlurmSpawner, Spawner),
]


def own_traits() -> set[str]:
    """The settings that are ours, of both classes."""
    names: set[str] = set()
    for own_class, base in OURS:
        names |= set(own_class.class_trait_names(config=True)) - set(base.class_trait_names())
    return names


@pytest.mark.parametrize("name", sorted(own_traits()))
def test_every_trait_has_help(name: str):
    """A setting without a word about it is no setting."""
    classes = [own_class for own_class, _ in OURS if name in own_class.class_trait_names()]
    assert all(own_class.class_traits()[name].help for own_class in classes)


def test_the_entry_points_lead_to_the_classes():
    """``mig-docker``, ``mig-local`` and ``mig-slurm`` can be named in a hub's configuration."""
    entry_point_by_name = {
        entry_point.name: entry_point for entry_point in entry_points(group="jupyterhub.spawners")
    }
    assert entry_point_by_name["mig-docker"].load() is MIGDockerSpawner
    assert entry_point_by_name["mig-local"].load() is MIGLocalSpawner
    assert entry_point_by_name["mig-slurm"].load() is MIGSlurmSpawner


def test_trap_5_a_slow_docker_call_holds_up_nobody(monkeypatch: pytest.MonkeyPatch):
    """While one call to the engine hangs, another one runs."""
    monkeypatch.setattr(MIGDockerSpawner, "_executor", None)
    spawner = MIGDockerSpawner()
    goes_on = threading.Event()
    hangs = spawner.executor.submit(goes_on.wait, 60)
    assert spawner.executor.submit(lambda: "served").result(timeout=60) == "served"
    assert not hangs.done()
    goes_on.set()
    spawner.executor.shutdown()


def test_a_limit_nobody_knows_is_refused():
    """A wrong key in ``shape_limits`` stops the hub's configuration, naming the key."""
    c = Config()
    c.MIGLocalSpawner.shape_limits = {"cpu": {"memory": 3}}
    with pytest.raises(Exception, match="memory"):
        MIGLocalSpawner(config=c)


def test_names_never_share_a_home():
    """Different names, different folders; none leads out of the folder of homes."""
    names = ["ada", "Ada", "a/da", "../ada", "a-da", "a-2dda", "ädä", ".", "..", "o'brien@x.y"]
    names += ["ü" * 128, "ü" * 127 + "u", "x" * 500]
    homes = [folder_name(name) for name in names]
    assert len(set(homes)) == len(names)
    assert not [home for home in homes if "/" in home or home in (".", "..")]
    assert max(len(home) for home in homes) <= 255


@pytest.mark.parametrize("theirs", [["read:users!user"], lambda _spawner: ["read:users!user"]])
def test_a_hub_without_the_scope_gets_the_sites_own(monkeypatch: pytest.MonkeyPatch, theirs: Any):
    """An unknown scope would break every start: it is added only where it is defined."""
    with_scope = with_lease_scope(theirs)
    monkeypatch.setattr("miglab_spawner.token_scopes.scope_definitions", {})
    assert with_scope(None) == ["read:users!user"]
    monkeypatch.setattr("miglab_spawner.token_scopes.scope_definitions", {LEASE_SCOPE: {}})
    assert with_scope(None) == ["read:users!user", f"{LEASE_SCOPE}!server"]
