"""Holders: the container or process behind a lease, and whether it is there.

``container:<id>`` or ``process:<pid>,<start time>,<boot id>``.  One question, three answers; only
*gone* ever frees a slice.  Everything that could be an error, a race or a restart is *unknown*.
"""

import contextlib
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import docker.errors  # noqa: TID251
import requests

import docker  # noqa: TID251 - this is the pool's one room that talks to the Docker engine
from miglab_api.container_processes import kill_processes_of, processes_of
from miglab_api.holders import (
    CONTAINER,
    GENERATION_LABEL,
    LAB_LABEL,
    LEASE_LABEL,
    LEDGER_LABEL,
    SLICES_LABEL,
    Liveness,
    parse_container,
    parse_process,
    probe_process,
)
from miglab_pool.worker.holder import Holders, Stray

ENGINE_ERRORS = (docker.errors.DockerException, requests.RequestException, OSError)

STOP_S = 10  # as docker stop


class ProcessHolders:
    """Students' servers as local processes: the embedded default."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def probe(self, holder: str) -> Liveness:
        """Gone: no such pid, another start time, another boot, or a zombie."""
        return probe_process(holder)

    def missing(self, holders: Collection[str]) -> set[str]:
        """A probe is cheap here."""
        return {holder for holder in holders if self.probe(holder) is Liveness.GONE}

    def labelled(self) -> list[Stray]:
        """Processes carry no labels."""
        return []

    def engine(self) -> str:
        """Processes are at none."""
        return ""

    def expect(self, engine: str) -> None:
        """Nothing to be said of processes."""

    def end(self, holder: str) -> bool:
        """Ask that very process to end; where it was asked before, kill it and its group."""
        number = signal.SIGKILL if holder in self._asked else signal.SIGTERM
        self._asked.add(holder)
        if self.probe(holder) is Liveness.ALIVE:
            _signal(holder, number)
        return self.probe(holder) is Liveness.GONE

    def remove(self, holder: str, *, force: bool) -> bool:
        """A process leaves nothing to be removed."""
        return self.probe(holder) is Liveness.GONE


class DockerHolders:
    """Students' servers as containers.

    Args:
        base_url: the engine, named by the site: docker-py's ``from_env`` would follow whatever
            context the shell is in.
        lab: this lab's id; containers of other labs on the engine are none of our business.
        timeout_s: an engine that takes longer answered *unknown*.
        client: for tests.
    """

    def __init__(
        self, base_url: str, lab: str, timeout_s: int = 5, client: Any | None = None
    ) -> None:
        self._base_url = base_url
        self._lab = lab
        self._timeout_s = timeout_s
        self._client = client
        self._expected = ""

    def probe(self, holder: str) -> Liveness:
        """Gone: the engine that it is at answers 404 for that very id, and nothing of it runs."""
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
        """What the engine calls itself; it outlives its restarts."""
        try:
            return str(self._api().info().get("ID") or "")
        except ENGINE_ERRORS:
            return ""

    def expect(self, engine: str) -> None:
        """Only what this engine does not have is gone."""
        self._expected = engine

    def missing(self, holders: Collection[str]) -> set[str]:
        """One listing for all; who is not on it gets a probe."""
        listed = self._list({})
        if listed is None:
            return set()
        there = {item["Id"] for item in listed}
        return {holder for holder in holders if parse_container(holder) not in there}

    def labelled(self) -> list[Stray] | None:
        """The containers of this lab with a lease in their labels."""
        listed = self._list({"label": [f"{LAB_LABEL}={self._lab}", LEASE_LABEL]})
        if listed is None:
            return None
        found = []
        for item in listed:
            stray = _stray(f"{CONTAINER}:{item['Id']}", item["Labels"])
            if stray is not None:
                found.append(replace(stray, is_running=item.get("State") == "running"))
        return found

    def remove(self, holder: str, *, force: bool) -> bool:
        """Remove the container; without force the engine refuses one that runs."""
        try:
            with contextlib.suppress(docker.errors.NotFound):
                self._api().remove_container(parse_container(holder), force=force)
        except ENGINE_ERRORS:
            return False
        return self._is_gone(holder)

    def end(self, holder: str) -> bool:
        """Stop that very container as ``docker stop`` does, then remove it."""
        try:
            with contextlib.suppress(docker.errors.NotFound):
                self._api().stop(parse_container(holder), timeout=STOP_S)
        except ENGINE_ERRORS:
            return False
        return self.remove(holder, force=True)

    def _is_gone(self, holder: str) -> bool:
        """Whether it is, once what the engine has forgotten is ended."""
        answer = self.probe(holder)
        if answer is Liveness.FORGOTTEN:
            return kill_processes_of(holder)
        return answer is Liveness.GONE

    def _api(self) -> Any:
        """The client, made on first use: an engine that is down now may be up later."""
        if self._client is None:
            self._client = docker.APIClient(
                base_url=self._base_url, timeout=self._timeout_s, version="auto"
            )
        return self._client

    def _list(self, filters: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        try:
            listed: list[dict[str, Any]] = self._api().containers(all=True, filters=filters)
        except ENGINE_ERRORS:
            return None
        return listed


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


def _stray(holder: str, labels: Mapping[str, Any]) -> Stray | None:
    """What labels tie a container to; None where they are none of ours."""
    lease = str(labels.get(LEASE_LABEL, ""))
    generation = str(labels.get(GENERATION_LABEL, ""))
    if not lease.isdecimal():
        return None
    known = int(generation) if generation.isdecimal() else None
    uuids = tuple(uuid for uuid in str(labels.get(SLICES_LABEL, "")).split(",") if uuid)
    return Stray(holder, int(lease), known, str(labels.get(LEDGER_LABEL, "")), uuids)


class AnyHolders:
    """Asks the room a holder's name belongs to; a kind without a room is unknown for ever.

    Args:
        kinds: by prefix, ``container`` and ``process``; a room may be made on first use.
    """

    def __init__(self, kinds: Mapping[str, Holders]) -> None:
        self._kinds = dict(kinds)

    def probe(self, holder: str) -> Liveness:
        """As the holder's own room says."""
        room = self._room(holder)
        return room.probe(holder) if room else Liveness.UNKNOWN

    def missing(self, holders: Collection[str]) -> set[str]:
        """As each room says of its own."""
        found: set[str] = set()
        for kind, room in self._kinds.items():
            mine = [holder for holder in holders if holder.partition(":")[0] == kind]
            found |= room.missing(mine) if mine else set()
        return found

    def labelled(self) -> list[Stray] | None:
        """Of all rooms; one that does not know leaves all unknown."""
        found: list[Stray] = []
        for room in self._kinds.values():
            labelled = room.labelled()
            if labelled is None:
                return None
            found += labelled
        return found

    def engine(self) -> str:
        """Of the first room that has one."""
        return next(filter(None, (room.engine() for room in self._kinds.values())), "")

    def expect(self, engine: str) -> None:
        """Said to all rooms."""
        for room in self._kinds.values():
            room.expect(engine)

    def remove(self, holder: str, *, force: bool) -> bool:
        """As the holder's own room says."""
        room = self._room(holder)
        return room.remove(holder, force=force) if room else False

    def end(self, holder: str) -> bool:
        """As the holder's own room says."""
        room = self._room(holder)
        return room.end(holder) if room else False

    def _room(self, holder: str) -> Holders | None:
        return self._kinds.get(holder.partition(":")[0])
