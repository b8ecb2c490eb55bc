"""What each container of images/compose.yaml is given; the file is tried in tests/docker."""

from pathlib import Path
from typing import Any

import pytest
import yaml

FILE = Path(__file__).parents[3] / "images" / "compose.yaml"
COMPOSE: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def test_the_proxy_is_given_its_own_secret_alone() -> None:
    """It faces the internet: no state, no socket, nothing to write to, and no capability."""
    mounts = [mount.rsplit(":", 2) for mount in SERVICES["proxy"]["volumes"]]
    assert {mode for *_, mode in mounts} == {"ro"}
    assert {place for _, place, _ in mounts} == {"/srv/miglab/proxy", "/etc/miglab"}
    assert SERVICES["proxy"]["tmpfs"] == ["/etc/miglab/backups"], "which have all secrets in them"
    assert SERVICES["proxy"]["cap_drop"] == ["ALL"]
    assert SERVICES["proxy"]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_containers_log_is_bounded(name: str) -> None:
    """Four files of 10 MB each; and none is privileged."""
    logging = SERVICES[name]["logging"]
    assert logging == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "4"}}
    assert "privileged" not in SERVICES[name]


def test_hub_and_pool_do_not_take_the_hosts_memory() -> None:
    """Whoever makes one of them grow ends that one, and no student's server."""
    limits = {name: SERVICES[name].get("mem_limit") for name in ("hub", "pool")}
    assert limits == {"hub": "2g", "pool": "1g"}


@pytest.mark.parametrize("project", ["miglab", "zoo"])
def test_the_labs_own_network_comes_first(project: str) -> None:
    """Docker takes the first in the alphabet for ports and names, whoever is joined to what.

    A student's network before it cut all connections, and no hub found the proxy's API any more.
    """
    name = COMPOSE["networks"]["inside"]["name"].replace("${COMPOSE_PROJECT_NAME}", project)
    assert name < "a-student-ada-net"
