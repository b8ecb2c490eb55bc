"""At a lease's end, asks the hub to stop the server that holds it; or to start it without a GPU.

An open lease that somebody needed ends so: its server goes on without a GPU, where the hub has the
spawner's route for that and lets the pool use it; else it is stopped.

Only asks: the pool frees a slice after its own confirmation that the holder is gone, so a hub that
does not answer ends nothing.  A server that was started after the lease was attached is another one
and never stopped; a holder that is still there beside it has nobody but the pool to end it, as one
has that the hub does not know.  Which start was attached is in the ledger, in the hub's own words,
so that neither a restart nor a clock that is set changes it.  Where it is not, because an older
spawner attached the lease, two times decide: how long the server has run by the hub's clock, and
how long the lease is attached by the pool's.
A start is never interrupted: JupyterHub 6 waits a second for its end, and then stops whatever
server of that name there is.  Once it is over, or a server, it is judged like any other.
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
from miglab_pool.hub_answers import HubMisunderstood, done, json_of
from miglab_pool.state.store import Backoff

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
UNKNOWN_S = 60.0
"""How long the hub must not have the server that was attached before the pool ends the holder."""
LONGEST_PAUSE_S = 60.0
DATE_S = 1.0
"""What HTTP's ``Date`` leaves out: it has no fractions of a second (RFC 9110, section 5.6.7)."""


class ServerEnder:
    """Asks again, with growing pauses, until the lease is no longer releasing.

    Args:
        hub: an HTTP client whose base URL is the hub's API and whose headers carry the service's
            own token, with the scopes ``read:servers``, ``delete:servers`` and the spawner's own
            for leases.
        now: the clock, seconds since the epoch.
    """

    def __init__(self, hub: httpx.AsyncClient, now: Callable[[], float]) -> None:
        self._hub = hub
        self._now = now
        self._asked: set[int] = set()
        self._pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)  # by lease
        self._unknown: dict[int, tuple[float, float]] = {}  # when the hub said so first, and last

    @property
    def unknown(self) -> frozenset[int]:
        """The releasing leases whose servers the hub does not have, or has another start of."""
        return frozenset(self._unknown)

    @property
    def abandoned(self) -> frozenset[int]:
        """Those of which it has said so for long enough: nobody but the pool will end them."""
        said = self._unknown.items()
        return frozenset(one for one, (first, last) in said if last >= first + UNKNOWN_S)

    async def ask(self, leases: Iterable[LeaseView]) -> None:
        """One round over all live leases."""
        servers = (item for item in leases if item.purpose is Purpose.SERVER)
        releasing = {item.id: item for item in servers if item.state is LeaseState.RELEASING}
        for gone in self._asked - releasing.keys():
            self._pauses.clear(gone)
            self._unknown.pop(gone, None)
        now = self._now()
        due = [one for one in releasing.values() if one.holder and self._pauses.is_due(one.id, now)]
        self._asked = (self._asked & releasing.keys()) | {one.id for one in due}
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
            answer = await self._end(lease)
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

    async def _end(self, lease: LeaseView) -> httpx.Response:
        if lease.goes_on:
            path = f"miglab/move/{quote(lease.user, safe='')}/{quote(lease.server, safe='')}"
            answer = await self._hub.post(path, json={"shape": CPU})
            if answer.is_success:
                return answer
        return done(await self._hub.delete(_path(lease)))

    def _is_holder(self, server: "_HubServer", lease: LeaseView, attached_at: float) -> bool:
        if lease.server_started:
            apart = server.started - datetime.fromisoformat(lease.server_started)
            return abs(apart.total_seconds()) < DATE_S  # a database may leave fractions out
        return server.ran_s + DATE_S >= self._now() - attached_at

    async def _server(self, lease: LeaseView) -> "_HubServer | None":
        """The server of that name; None if the hub has none.

        Raises:
            HubMisunderstood: it is not the hub that answers.
            HTTPError: it does not answer, or refuses.
        """
        answer = await self._hub.get(f"users/{quote(lease.user, safe='')}")
        body = json_of(answer)
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
    """What the hub says of a server, both times by its clock: when its start began, and now."""

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
