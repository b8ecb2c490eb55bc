"""The Docker network of a server: one for all that keeps them apart, or one for each."""

import math
import time

from traitlets import Bool, List, Unicode

from miglab_spawner.containers import networks
from miglab_spawner.containers.container_runner import ENGINE_ERRORS
from miglab_spawner.containers.host_config import SavedLease
from miglab_spawner.containers.server_labels import ServerLabels
from miglab_spawner.docker_engine import EngineCalls
from miglab_spawner.refusals import NotStarted

_SWEEP_S = 600.0


class ServerNetworks(EngineCalls):
    """Prepares a server's network before its start, and removes it after its end."""

    harden: bool
    lab_id: str
    grant: SavedLease | None
    name: str
    network_name: str
    use_internal_ip: bool
    object_name: str

    _checked_networks: set[str] = set()  # noqa: RUF012 - one for the process, as the client is
    _networks_swept_at = -math.inf

    network_per_server = Bool(
        False,
        help="""Give each server a Docker network of its own, created at start and removed at stop.

        This is for a hub that runs in a container itself; `network_name` is then not used.
        """,
    ).tag(config=True)

    joined_containers = List(
        Unicode(),
        help="""Containers that join each server's network under their own names: hub and proxy.

        Used only with `network_per_server`.
        """,
    ).tag(config=True)

    @property
    def _labels(self) -> ServerLabels:
        return ServerLabels(self.lab_id, self.escaped_name, self.name, self.grant)

    @property
    def _server_network(self) -> str:
        return f"{self.object_name}{networks.SUFFIX}"

    async def _prepare_network(self) -> None:
        if self.network_per_server:
            self.network_name, self.use_internal_ip = self._server_network, True
            network = (self._server_network, self._labels, self.joined_containers)
            try:
                await self._with_engine(networks.ensure_server_network, *network)
            except networks.NetworkTaken as taken:
                raise self._name_taken_error("network", self._server_network) from taken
            await self._remove_unused_networks()
        elif networks.can_be_created(self.network_name):
            await self._prepare_shared_network()

    async def _prepare_shared_network(self) -> None:
        if self.network_name in self._checked_networks:
            return
        network = await self._with_engine(
            networks.ensure_shared_network, self.network_name, self.lab_id
        )
        if self.harden and not networks.isolates_containers(network):
            self.log.error(
                "On the Docker network %s servers reach one another: it was made without %s. "
                "Remove it, and miglab makes it anew; or name another, or set `harden` to False.",
                self.network_name,
                f"{networks.ICC}=false",
            )
            raise NotStarted(
                "Your server was not started: on its network other students could reach it. Tell "
                "your instructor; the hub's log says what to do.",
                reason="open-network",
            )
        self._checked_networks.add(self.network_name)

    async def _remove_unused_networks(self) -> None:
        """Remove networks that servers left behind, every ten minutes; failures delay no start."""
        cls = ServerNetworks
        if time.monotonic() - cls._networks_swept_at < _SWEEP_S:
            return
        cls._networks_swept_at = time.monotonic()
        try:
            removed = await self._with_engine(networks.remove_unused, self.lab_id)
        except ENGINE_ERRORS as error:
            self.log.warning("Networks without a server may be left: %s", error)
        else:
            if removed:
                self.log.info("Removed networks without a server: %s", ", ".join(removed))

    async def _drop_network(self) -> None:
        if self.network_per_server:
            await self._with_engine(
                networks.remove_server_network, self._server_network, self._labels
            )

    def _name_taken_error(self, kind: str, name: str) -> NotStarted:
        self.log.error(
            "The %s %s was not made for this server, so it is left alone. Remove or rename it, or "
            "set c.MIGDockerSpawner.name_template to names that nobody else uses.",
            kind,
            name,
        )
        return NotStarted(
            "Your server was not started, because something else on the host goes by its name. "
            "Your files are kept. Tell your instructor; the hub's log says what to do.",
            reason="name-taken",
        )
