"""Holders: the container or process behind a lease, and whether it exists.

``container:<id>`` or ``process:<pid>,<start time>,<boot id>``.  Only the answer *gone* ever frees a
slice.  Whatever could be an error, a race or a restart is *unknown*.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import docker.errors  # noqa: TID251
import requests

import docker  # noqa: TID251 - this is the pool's one room that talks to the Docker engine
from miglab_api.holders import (
    CONTAINER,
    GENERATION_LABEL,
    LAB_LABEL,
    LEASE_LABEL,
    LEDGER_LABEL,
    PROCESS,
    PROOF_LABEL,
    SLICES_LABEL,
    Liveness,
    kill_processes_of,
    parse_container,
    parse_process,
    probe_process,
    processes_of,
)

ENGINE_ERRORS = (docker.errors.DockerException, requests.RequestException, OSError)

ENGINE_S = 5  # an engine that takes longer answered *unknown*
STOP_S = 10  # as docker stop


@dataclass(frozen=True)
class LabelledContainer:
    """A container labelled with a lease.

    Attributes:
        holder: its name here.
        lease: what its label says; ``generation`` and ``ledger`` likewise, with None and an empty
            one where it was started before there were any.
        uuids: the slices it was given.
        is_running: whether it runs, and was not only created.
    """

    holder: str
    lease: int
    generation: int | None = None
    ledger: str = ""
    uuids: tuple[str, ...] = ()
    is_running: bool = False


class HostHolders:
    """Students' servers on this host: as local processes, and as containers of one engine.

    Args:
        engine: the engine's address, named by the site: docker-py's ``from_env`` would follow
            whatever context the shell is in.  Empty: there is none, and a container is unknown.
        lab: this lab's id; containers of other labs on the engine are none of our business.
        client: for tests.
    """

    def __init__(self, engine: str = "", lab: str = "", client: Any | None = None) -> None:
        self._url = engine
        self._lab = lab
        self._client = client
        self._expected = ""
        self._signalled: set[str] = set()

    def probe(self, holder: str) -> Liveness:
        """Whether the holder is there; never raises.

        Gone: that very process does not live; or the engine that a container is at answers 404 for
        that very id, and nothing of the container runs.
        """
        if _is_process(holder):
            return probe_process(holder)
        try:
            self._api().inspect_container(parse_container(holder))
        except docker.errors.NotFound:
            if self._expected and self.engine() != self._expected:
                return Liveness.UNKNOWN
            return Liveness.FORGOTTEN if processes_of(holder) else Liveness.GONE
        except ENGINE_ERRORS:
            return Liveness.UNKNOWN
        return Liveness.ALIVE

    def engine(self) -> str:
        """The engine's id, which survives its restarts; empty if it does not answer."""
        try:
            return str(self._api().info().get("ID") or "")
        except ENGINE_ERRORS:
            return ""

    def expect(self, engine: str) -> None:
        """Count a container as gone only if this engine lacks it; empty: whichever answers."""
        self._expected = engine

    def probably_gone(self, holders: Collection[str]) -> set[str]:
        """Return the holders worth a probe, by a cheap listing that may be wrong either way.

        They are the processes that are gone, and the containers that the engine does not list.
        """
        local = {holder for holder in holders if _is_process(holder)}
        gone_processes = {holder for holder in local if probe_process(holder) is Liveness.GONE}
        containers = set(holders) - local
        listed = self._list({}) if containers else None
        if listed is None:
            return gone_processes
        listed_ids = {container["Id"] for container in listed}
        return gone_processes | {
            holder for holder in containers if parse_container(holder) not in listed_ids
        }

    def labelled_containers(self) -> list[LabelledContainer] | None:
        """The containers of this lab with a lease in their labels; None when unknown."""
        if not self._url:
            return []
        listed = self._list({"label": [f"{LAB_LABEL}={self._lab}", LEASE_LABEL]})
        if listed is None:
            return None
        strays = (_parse_labels(item) for item in listed)
        return [stray for stray in strays if stray is not None]

    def remove(self, holder: str, *, force: bool) -> bool:
        """Remove the container; without force the engine refuses one that runs.

        A process leaves nothing to be removed.  Returns whether it is gone now, confirmed.
        """
        if not _is_process(holder):
            try:
                with contextlib.suppress(docker.errors.NotFound):
                    self._api().remove_container(parse_container(holder), force=force)
            except ENGINE_ERRORS:
                return False
        return self._is_gone(holder)

    def end(self, holder: str) -> bool:
        """Stop that very container as ``docker stop`` does, and remove it.

        A process is asked to end; where it was asked before, it is killed with its group.  Returns
        whether it is gone now, confirmed.
        """
        if _is_process(holder):
            number = signal.SIGKILL if holder in self._signalled else signal.SIGTERM
            self._signalled.add(holder)
            _signal(holder, number)
            return self._is_gone(holder)
        try:
            with contextlib.suppress(docker.errors.NotFound):
                self._api().stop(parse_container(holder), timeout=STOP_S)
        except ENGINE_ERRORS:
            return False
        return self.remove(holder, force=True)

    def end_proof(self, run: str) -> bool:
        """Remove the containers of a run of `miglab prove`; whether none is there, confirmed."""
        if not self._url:
            return True
        label = {"label": [f"{PROOF_LABEL}={run}"]}
        for container in self._list(label) or ():
            self.remove(f"{CONTAINER}:{container['Id']}", force=True)
        return self._list(label) == []

    def _is_gone(self, holder: str) -> bool:
        """Whether the holder is gone, after processes that its engine forgot were killed."""
        answer = self.probe(holder)
        if answer is Liveness.FORGOTTEN:
            return kill_processes_of(holder)
        return answer is Liveness.GONE

    def _api(self) -> Any:
        """The client, made on first use: an engine that is down now may be up later."""
        if not self._url:
            raise docker.errors.DockerException("this lab has no engine")
        if self._client is None:
            self._client = docker.APIClient(base_url=self._url, timeout=ENGINE_S, version="auto")
        return self._client

    def _list(self, filters: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        try:
            listed: list[dict[str, Any]] = self._api().containers(all=True, filters=filters)
        except ENGINE_ERRORS:
            return None
        return listed


def _is_process(holder: str) -> bool:
    return holder.startswith(f"{PROCESS}:")


def _signal(holder: str, number: signal.Signals) -> None:
    """Signal the very process a holder names, and the group that it leads."""
    pid = parse_process(holder)[0]
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if probe_process(holder) is not Liveness.ALIVE:  # the pid may be another's by now
                return
            if os.getpgid(pid) == pid:
                os.killpg(pid, number)
            else:
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def _parse_labels(container: Mapping[str, Any]) -> LabelledContainer | None:
    """Parse a container's labels; None if they name no lease."""
    labels = container["Labels"]
    lease = str(labels.get(LEASE_LABEL, ""))
    generation = str(labels.get(GENERATION_LABEL, ""))
    if not lease.isdecimal():
        return None
    return LabelledContainer(
        f"{CONTAINER}:{container['Id']}",
        int(lease),
        int(generation) if generation.isdecimal() else None,
        str(labels.get(LEDGER_LABEL, "")),
        tuple(uuid for uuid in str(labels.get(SLICES_LABEL, "")).split(",") if uuid),
        container.get("State") == "running",
    )
