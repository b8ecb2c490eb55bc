"""Which networks a sweep takes for a server's."""

from typing import Any

from docker.errors import NotFound

from miglab_api.holders import LAB_LABEL
from miglab_spawner.containers import networks
from miglab_spawner.containers.server_labels import ServerLabels


class EngineWithoutContainers:
    """Every container is gone; old networks are there, with these labels."""

    def __init__(self, labels: dict[str, dict[str, str]]) -> None:
        self.networks_there = {
            name: {"Id": name, "Name": name, "Labels": of_name, "Created": "2020-01-01T00:00:00Z"}
            for name, of_name in labels.items()
        }

    def networks(self, **_: Any) -> list[dict[str, Any]]:
        return list(self.networks_there.values())

    def inspect_network(self, name: str) -> dict[str, Any]:
        return self.networks_there[name]

    def inspect_container(self, name: str) -> None:
        raise NotFound(name)

    def remove_network(self, name: str) -> None:
        del self.networks_there[name]


def test_a_shared_network_is_no_servers_whatever_its_name() -> None:
    """A site may have shared ``miglab-net`` before each server got a network of its own."""
    shared, of_server = {LAB_LABEL: "lab"}, ServerLabels("lab", "ada", "").as_labels()
    engine = EngineWithoutContainers({"miglab-net": shared, "lab-ada-net": of_server})
    assert networks.remove_unused(engine, "lab") == ["lab-ada-net"]
    assert list(engine.networks_there) == ["miglab-net"]
