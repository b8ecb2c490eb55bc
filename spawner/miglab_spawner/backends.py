"""Whom the spawner asks for slices: the calls, what can go wrong, and the lab's own pool.

`PoolClient` answers for the pool, over HTTP with typed answers and errors; another `Backend`
answers the same.  Only failures to *connect* are tried again, a few times: then the request has not
been sent, so that trying again can do nothing twice.

Requests travel by aiohttp, which JupyterHub has loaded for its own.  The hub answers everybody in
one thread, and a start makes three requests to the pool; one costs 0.14 ms here and ten times
as much with httpx (measured with both at their newest in 2026).
"""

import asyncio
import atexit
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError

from miglab_api.base import Refusal
from miglab_api.leases import (
    ENDED_STATES,
    AttachRequest,
    Fence,
    LeaseView,
    ReleaseRequest,
    RequestedLease,
    ServerStatus,
)
from miglab_api.line import Line
from miglab_api.offers import Offers, ShapeOffer
from miglab_api.tickets import TicketRequest, TicketView


class BackendError(Exception):
    """The base of what can go wrong between a spawner and its backend."""


class BackendUnreachable(BackendError):
    """No answer: it is not running, too slow, or not at this address."""


class BackendMisunderstood(BackendError):
    """The answer cannot be read: another version, or another program."""


class RefusedByBackend(BackendError):
    """The backend refuses a request.

    Attributes:
        reason: a short word for machines.
        message: the same in words that the student can act on.
        status: the HTTP status.
    """

    def __init__(self, reason: str, message: str, status: int) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.status = status

    @property
    def is_about_no_lease(self) -> bool:
        """Whether the lease that was named is not, or no longer, there to be released.

        Any other refusal of a release, such as that of a full disk, leaves the lease as it was.
        """
        return self.reason in NO_SUCH_LEASE


NO_SUCH_LEASE = frozenset({"unknown-lease", "stale-lease"})


class Backend(Protocol):
    """Tickets and leases of one site.  Every call raises `BackendError`'s kinds, and no other."""

    async def request(self, request: TicketRequest) -> TicketView:
        """Ask for a shape: a new ticket, or the one there is."""

    async def attend(self, ticket: int, wait_s: float) -> TicketView:
        """Return a ticket when its state or position has changed, or after ``wait_s``."""

    async def cancel(self, ticket: int) -> TicketView:
        """Leave the queue."""

    async def take(self, ticket: int) -> LeaseView:
        """Take what was offered; taking twice gives the same lease."""

    async def server_status(self, user: str, server: str) -> ServerStatus:
        """Return what a server holds and waits for; the request keeps its position."""

    async def line(self, user: str, server: str) -> Line:
        """Return where a user stands with a server, and with others if known; attends nothing."""

    async def alternatives(self, ticket: int) -> list[ShapeOffer]:
        """Return the shapes that a waiting student could have at once."""

    async def offers(self, user: str, courses: Sequence[str], server: str | None = None) -> Offers:
        """Return what these courses offer a user now; unknown names are left out.

        ``server``: also attend and return what that server of the user waits for.
        """


IDLE_S = 5.0  # the pool keeps idle ones for 75 s: who asks must be who closes first


class NotConnected(Exception):
    """No connection was made, so nothing was sent."""


class NoAnswer(Exception):
    """The request may have been sent; no answer came."""


@dataclass(frozen=True)
class PoolRequest:
    """One request; ``timeout_s`` bounds it as a whole."""

    method: str
    url: str
    headers: Mapping[str, str]
    timeout_s: float
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PoolAnswer:
    """The answer to a request."""

    status: int
    content: bytes
    reason: str = ""


Send = Callable[[PoolRequest], Awaitable[PoolAnswer]]

_sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
    weakref.WeakKeyDictionary()
)


async def send_request(request: PoolRequest) -> PoolAnswer:
    """Send a request over the running loop's connections.

    Raises:
        NotConnected: nobody listens there.
        NoAnswer: the connection was lost, or the time ran out.
    """
    try:
        async with _session().request(
            request.method,
            request.url,
            params=request.params,
            data=request.body,
            headers=request.headers,
            timeout=aiohttp.ClientTimeout(request.timeout_s),
            allow_redirects=False,
        ) as answer:
            return PoolAnswer(answer.status, await answer.read(), answer.reason or "")
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotConnected(str(error)) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


async def close_connections() -> None:
    """Close the running loop's connections, if there are any."""
    session = _sessions.pop(asyncio.get_running_loop(), None)
    if session is not None:
        await session.close()


@atexit.register
def _close_at_exit() -> None:
    """Close the connections when the hub ends, since aiohttp would log each open session."""
    for session in list(_sessions.values()):
        asyncio.run(session.close())


def _session() -> aiohttp.ClientSession:
    """Return the running loop's session; connections are not limited, as each waiter holds one."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions or _sessions[loop].closed:
        _sessions[loop] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
    return _sessions[loop]


ANSWER_TIMEOUT_S = 15.0
RETRY_PAUSES_S = (0.1, 0.3, 1.0)

Answer = TypeVar("Answer")
_TICKET = TypeAdapter(TicketView)
_REQUESTED_LEASE = TypeAdapter(RequestedLease)
_LEASE = TypeAdapter(LeaseView)
_LINE = TypeAdapter(Line)
_LEASES = TypeAdapter(list[LeaseView])
_OFFERS = TypeAdapter(Offers)
_SHAPES = TypeAdapter(list[ShapeOffer])
_SERVER_STATUS = TypeAdapter(ServerStatus)


class PoolClient:
    """Calls of the pool's management API, as the spawner.

    Args:
        url: the service's address with its prefix, ``http://127.0.0.1:8091/services/pool``.
        secret_file: holds the pool's secret; read at each call, so that it may be changed.
        send: how requests travel; None for the network.
        pause: waits between two attempts, seconds.
        user_id: who the user is that calls name; empty where nobody is ever renamed.

    A `Backend`: every call raises one of the kinds of `BackendError`, and nothing else.
    """

    def __init__(
        self,
        url: str,
        secret_file: str | Path,
        send: Send | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        *,
        user_id: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        self._secret_file = Path(secret_file)
        self._user_id = user_id
        self._send = send or send_request
        self._pause = pause

    async def request(self, request: TicketRequest) -> TicketView:
        """Ask for a shape: a new ticket, or the one there is."""
        return await self._call(_TICKET, "POST", "/api/tickets", body=request)

    async def request_lease(self, request: TicketRequest) -> RequestedLease:
        """As `request`, and take in the same step what is granted at once."""
        return await self._call(_REQUESTED_LEASE, "POST", "/api/leases", body=request)

    async def attend(self, ticket: int, wait_s: float) -> TicketView:
        """Return a ticket when its state or position has changed, or after ``wait_s``."""
        path = f"/api/tickets/{ticket}"
        return await self._call(
            _TICKET, "GET", path, params=(("wait_s", f"{wait_s:g}"),), extra_s=wait_s
        )

    async def cancel(self, ticket: int) -> TicketView:
        """Leave the queue."""
        return await self._call(_TICKET, "DELETE", f"/api/tickets/{ticket}")

    async def take(self, ticket: int) -> LeaseView:
        """Take what was offered; taking twice gives the same lease."""
        return await self._call(_LEASE, "POST", f"/api/tickets/{ticket}/take")

    async def lease(self, lease: int) -> LeaseView:
        """Return one lease."""
        return await self._call(_LEASE, "GET", f"/api/leases/{lease}")

    async def leases(self, user: str, server: str) -> list[LeaseView]:
        """Return the leases of a server that have not ended."""
        params = (("user", user), ("user_id", self._user_id))
        user_leases = await self._call(_LEASES, "GET", "/api/leases", params=params)
        return [
            lease
            for lease in user_leases
            if lease.server == server and lease.state not in ENDED_STATES
        ]

    async def server_status(self, user: str, server: str) -> ServerStatus:
        """Return what a server holds and waits for; the request keeps its position."""
        params = (("user", user), ("user_id", self._user_id), ("server", server))
        return await self._call(_SERVER_STATUS, "GET", "/api/server", params=params)

    async def line(self, user: str, _server: str) -> Line:
        """Return where a user stands with all their servers; attends nothing."""
        params = (("user", user), ("user_id", self._user_id))
        return await self._call(_LINE, "GET", "/api/line", params=params)

    async def alternatives(self, ticket: int) -> list[ShapeOffer]:
        """Return the shapes that a waiting student could have at once."""
        return await self._call(_SHAPES, "GET", f"/api/tickets/{ticket}/alternatives")

    async def attach(
        self, lease: int, generation: int, holder: str, ledger: str = "", server_started: str = ""
    ) -> LeaseView:
        """Attach a holder to a lease; only after this answer may the holder be started."""
        body = AttachRequest(
            generation=generation, ledger=ledger, holder=holder, server_started=server_started
        )
        return await self._call(_LEASE, "POST", f"/api/leases/{lease}/attach", body=body)

    async def report_running(self, lease: int, generation: int, ledger: str = "") -> LeaseView:
        """Report that the holder was started."""
        body = Fence(generation=generation, ledger=ledger)
        return await self._call(_LEASE, "POST", f"/api/leases/{lease}/running", body=body)

    async def release(
        self, lease: int, generation: int, reason: str, ledger: str = ""
    ) -> LeaseView:
        """Ask for the release; the pool frees after its own confirmation.

        The answer of a lease that was being released already keeps its first reason.
        """
        body = ReleaseRequest(reason=reason, generation=generation, ledger=ledger)
        return await self._call(_LEASE, "POST", f"/api/leases/{lease}/release", body=body)

    async def offers(self, user: str, courses: Sequence[str], server: str | None = None) -> Offers:
        """Return what these courses offer a user now; unknown names are left out.

        ``server``: also attend and return what that server of the user waits for.
        """
        params = (("user", user), *(("course", course) for course in courses))
        if server is not None:
            params = (*params, ("user_id", self._user_id), ("server", server))
        return await self._call(_OFFERS, "GET", "/api/offers", params=params)

    async def _call(
        self,
        answer: TypeAdapter[Answer],
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        params: tuple[tuple[str, str], ...] = (),
        extra_s: float = 0.0,
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self._secret()}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = PoolRequest(
            method,
            self._url + path,
            headers,
            ANSWER_TIMEOUT_S + extra_s,
            params,
            None if body is None else body.model_dump_json().encode(),
        )
        return _parse_answer(answer, request, await self._send_with_retries(request))

    async def _send_with_retries(self, request: PoolRequest) -> PoolAnswer:
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                return await self._send(request)
            except NotConnected as error:
                if pause_s is None:
                    raise BackendUnreachable(f"no pool service at {self._url}: {error}") from error
                await self._pause(pause_s)
            except NoAnswer as error:
                raise BackendUnreachable(
                    f"the pool service at {self._url} did not answer: {error}"
                ) from error
        raise AssertionError("the last attempt returns or raises")

    def _secret(self) -> str:
        try:
            return self._secret_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BackendUnreachable(
                f"cannot read the pool's secret {self._secret_file}: {error.strerror}; "
                "is pool_secret_file right, and may the hub read it?"
            ) from error


def _parse_answer(
    expected: TypeAdapter[Answer], request: PoolRequest, answer: PoolAnswer
) -> Answer:
    if 200 <= answer.status < 300:
        try:
            return expected.validate_json(answer.content)
        except ValidationError as error:
            raise BackendMisunderstood(
                f"{request.url} answered what is no {expected}: {error}"
            ) from error
    try:
        refusal = Refusal.model_validate_json(answer.content)
    except ValidationError:
        message = f"{request.url} answered {answer.status} {answer.reason}".rstrip()
        kind = BackendUnreachable if answer.status >= 500 else BackendMisunderstood
        raise kind(message) from None
    raise RefusedByBackend(refusal.reason, refusal.message, answer.status)
