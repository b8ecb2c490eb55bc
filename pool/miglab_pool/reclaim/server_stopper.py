"""Asks the hub to stop the servers of leases that end, or to restart them without a GPU.

If an open lease ends because somebody needs its slices, its server goes on without a GPU, provided
that the hub has the spawner's route for that and lets the pool use it; else it is stopped.

The pool frees a slice only once it has confirmed that the holder is gone, so a hub that does not
answer ends nothing.  A server that was started after the lease was attached is another one and is
never stopped; the pool itself must then end the lease's holder, as it must if the hub does not know
the server.  The ledger has the hub's own time of the start that was attached, so that neither a
restart nor a change of the clock matters.  For leases that an older spawner attached, two durations
decide: for how long the server has run by the hub's clock, and for how long the lease has been
attached by the pool's.

A start is never interrupted: JupyterHub 6 waits a second for its end, and then stops whatever
server has that name.  Once the start is over, its server is treated like any other.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import quote

import httpx

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.offers import CPU
from miglab_api.tickets import Purpose
from miglab_pool.hub_answers import HubMisunderstood, check_change_answer, json_body
from miglab_pool.state.store import Backoff

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
UNKNOWN_S = 60.0
"""How long the hub must not have the server that was attached before the pool ends the holder."""
LONGEST_PAUSE_S = 60.0
DATE_RESOLUTION_S = 1.0
"""What HTTP's ``Date`` leaves out: it has no fractions of a second (RFC 9110, section 5.6.7)."""


class ServerStopper:
    """Asks the hub to stop servers, with growing pauses, until their leases are released.

    Args:
        hub: an HTTP client whose base URL is the hub's API and whose headers carry the service's
            own token, with the scopes ``read:servers``, ``delete:servers`` and the spawner's own
            for leases.
        now: the clock, seconds since the epoch.
    """

    def __init__(self, hub: httpx.AsyncClient, now: Callable[[], float]) -> None:
        self._hub = hub
        self._now = now
        self._due_before: set[int] = set()
        self._pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)  # by lease
        self._unknown: dict[int, tuple[float, float]] = {}  # when the hub said so first, and last

    @property
    def unknown(self) -> frozenset[int]:
        """The releasing leases whose servers the hub does not have, or has another start of."""
        return frozenset(self._unknown)

    @property
    def abandoned(self) -> frozenset[int]:
        """Those unknown to the hub for so long that the pool must end their holders itself."""
        reports = self._unknown.items()
        return frozenset(lease for lease, (first, last) in reports if last >= first + UNKNOWN_S)

    async def stop_servers(self, leases: Iterable[LeaseView]) -> None:
        """Ask the hub to stop the servers of all releasing leases that are due."""
        servers = (lease_view for lease_view in leases if lease_view.purpose is Purpose.SERVER)
        releasing = {
            lease_view.id: lease_view
            for lease_view in servers
            if lease_view.state is LeaseState.RELEASING
        }
        for number in self._due_before - releasing.keys():
            self._pauses.clear(number)
            self._unknown.pop(number, None)
        now = self._now()
        due = [
            lease
            for lease in releasing.values()
            if lease.holder and self._pauses.is_due(lease.id, now)
        ]
        self._due_before = (self._due_before & releasing.keys()) | {lease.id for lease in due}
        for lease in due:
            self._pauses.fail(lease.id, now)
        await asyncio.gather(*map(self._stop, due))

    async def _stop(self, lease: LeaseView) -> None:
        try:
            server = await self._server(lease)
            if server is None or lease.attached_at is None:
                self._note_unknown(lease)
                return
            if server.is_starting:
                self._unknown.pop(lease.id, None)
                log.info("lease %s of %s ends, and server %r only starts: asked again later",
                         lease.id, lease.user, lease.server)  # fmt: skip
                return
            if not self._is_holder(server, lease, lease.attached_at):
                log.warning(
                    "lease %s of %s ends (%s), but server %r was started after it was attached: "
                    "left alone", lease.id, lease.user, lease.reason, lease.server,
                )  # fmt: skip
                self._note_unknown(lease)
                return
            self._unknown.pop(lease.id, None)
            answer = await self._request_end(lease)
        except (httpx.HTTPError, HubMisunderstood, KeyError, ValueError) as error:
            self._unknown.pop(lease.id, None)
            log.warning(
                "lease %s: the hub does not say how its server is (%s); asked again later",
                lease.id, error,
            )  # fmt: skip
            return
        log.info(
            "lease %s of %s ends (%s): asked the hub to end server %r: HTTP %s",
            lease.id, lease.user, lease.reason, lease.server, answer.status_code,
        )  # fmt: skip

    def _note_unknown(self, lease: LeaseView) -> None:
        first, _ = self._unknown.get(lease.id, (self._now(), 0.0))
        self._unknown[lease.id] = first, self._now()

    async def _request_end(self, lease: LeaseView) -> httpx.Response:
        if lease.goes_on:
            path = f"miglab/move/{quote(lease.user, safe='')}/{quote(lease.server, safe='')}"
            answer = await self._hub.post(path, json={"shape": CPU})
            if answer.is_success:
                return answer
        return check_change_answer(await self._hub.delete(_path(lease)))

    def _is_holder(self, server: "_HubServer", lease: LeaseView, attached_at: float) -> bool:
        if lease.server_started:
            apart = server.started - datetime.fromisoformat(lease.server_started)
            # A database may leave fractions of a second out.
            return abs(apart.total_seconds()) < DATE_RESOLUTION_S
        return server.ran_s + DATE_RESOLUTION_S >= self._now() - attached_at

    async def _server(self, lease: LeaseView) -> "_HubServer | None":
        """The server of that name; None if the hub has none.

        Raises:
            HubMisunderstood: it is not the hub that answers.
            HTTPError: it does not answer, or refuses.
        """
        answer = await self._hub.get(f"users/{quote(lease.user, safe='')}")
        body = json_body(answer)
        if answer.status_code == HTTPStatus.NOT_FOUND and body.get("status") == 404:
            return None  # the hub's own words: a proxy's 404 is no answer
        answer.raise_for_status()
        server = body.get("servers", {}).get(lease.server)
        if server is None or server.get("stopped") or not server.get("started"):
            return None
        now = parsedate_to_datetime(answer.headers["Date"])
        started = datetime.fromisoformat(server["started"])
        return _HubServer(started, now, is_starting=server.get("pending") == "spawn")


@dataclass(frozen=True)
class _HubServer:
    """A server as the hub reports it; both times are by the hub's clock."""

    started: datetime
    now: datetime
    is_starting: bool

    @property
    def ran_s(self) -> float:
        return (self.now - self.started).total_seconds()


def _path(lease: LeaseView) -> str:
    user = quote(lease.user, safe="")
    if not lease.server:
        return f"users/{user}/server"
    return f"users/{user}/servers/{quote(lease.server, safe='')}"
