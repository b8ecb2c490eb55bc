"""The student application: a server sees and steers its own lease and ticket, and nothing else.

This is the only listener of the pool that students' containers reach.  A request carries the
server's own hub token, and the hub says which server that is.  The application works over the lab's
own pool and over jobs of Slurm.
"""

import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Protocol, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request

from miglab_api.leases import (
    ExtendRequest,
    LeaseEnds,
    LeaseView,
    ReleaseRequest,
    ServerStatus,
    Signals,
)
from miglab_api.line import LeaseEnd
from miglab_api.roster import NoticeRead, ProgressReport
from miglab_api.scopes import LEASE_SCOPE
from miglab_api.staff import StaffMessage
from miglab_api.standings import line_of_server
from miglab_api.tickets import RequeueRequest, TicketView
from miglab_pool.course_roles import student_courses
from miglab_pool.http.access.auth import bearer_token, server_of, user_id_of
from miglab_pool.http.access.hub_tokens import HubTokens
from miglab_pool.http.connection_limits import peer_of
from miglab_pool.http.errors import REFUSED, DeniedError, install_refusals
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.roster.transactions import ClassRoster

log = logging.getLogger(__name__)

T = TypeVar("T")
NOT_A_SERVER_TOKEN = (
    f"This token lacks the scope {LEASE_SCOPE}!server, which the hub gives to servers alone."
)
WRITES_BURST = 20.0  # changes at once: more than a person clicks in a minute
WRITES_PER_S = 0.1  # further changes per second
REPORTS_BURST = 10.0  # signals at once: a page that loads, a "still here", a saved document
REPORTS_PER_S = 0.5  # further signals per second; a server pushes one every 15 s


class TokenBuckets:
    """A rate limit for each client, as a token bucket.

    Args:
        burst: how many requests a client may make at once.
        per_s: how many more it may make per second.
        clock: seconds that never jump.
        refusal: the message for clients that ask more often.
    """

    def __init__(
        self, burst: float, per_s: float, clock: Callable[[], float], refusal: str
    ) -> None:
        self._burst, self._per_s, self._clock, self._refusal = burst, per_s, clock, refusal
        self._full_at: dict[Hashable, float] = {}  # when each bucket is full again, by last use

    def spend(self, client: Hashable) -> None:
        """Take a token from a client's bucket.

        Raises:
            DeniedError: 429 if none is left; nothing was done.
        """
        now = self._clock()
        while self._full_at and self._full_at[oldest := next(iter(self._full_at))] <= now:
            del self._full_at[oldest]
        full_at = max(now, self._full_at.pop(client, now))
        is_left = (full_at - now) * self._per_s <= self._burst - 1
        self._full_at[client] = full_at + 1 / self._per_s if is_left else full_at
        if not is_left:
            raise DeniedError(429, "too-often", self._refusal)

    def __len__(self) -> int:
        return len(self._full_at)


class StudentLeases(Protocol):
    """What a server may do with its own lease."""

    def lease_of_server(self, user: str, server: str) -> LeaseView | None:
        """Return the live lease of a server; None if it has none."""

    def ends_since(self, user: str, since: float) -> tuple[LeaseEnd, ...]:
        """Return the latest leases of a user that have ended since then."""

    def keepalive(self, number: int, actor: str) -> LeaseView:
        """Record that the student is still there."""

    def extend(self, number: int, by_s: float, actor: str) -> LeaseView:
        """Extend the guarantee of the lease."""

    def release(self, number: int, actor: str, reason: str) -> LeaseView:
        """Release the lease."""


class StudentTickets(Protocol):
    """What a server may do with its own ticket."""

    def server_status(
        self, user: str, server: str, earlier_ticket: int | None = None
    ) -> ServerStatus:
        """Return what a server holds and waits for."""

    def end_outside(self, user: str, server: str, courses: Collection[str]) -> None:
        """Cancel the ticket of a course that the student has left."""

    def cancel_of_server(self, user: str, server: str, actor: str) -> TicketView:
        """Cancel the server's ticket or offer."""

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Join the queue once more."""


class StudentMessages(Protocol):
    """The messages of staff."""

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """Return the messages for the user of this server."""


class StudentPool(Protocol):
    """The part of a pool that servers use."""

    @property
    def leases(self) -> StudentLeases:
        """The leases."""

    @property
    def tickets(self) -> StudentTickets:
        """The tickets."""

    @property
    def staff(self) -> StudentMessages:
        """The messages of staff."""


class RefusalCounter(Protocol):
    """Counts refusals for the metrics."""

    def count_refusal(self, reason: str) -> None:
        """Count a refusal."""


class StudentRunner(Protocol):
    """Runs decisions on the pool one at a time, and answers queries."""

    @property
    def metrics(self) -> RefusalCounter:
        """The counter of refusals."""

    async def decide(self, decision: Callable[[StudentPool], T]) -> T:
        """Run a decision, with no other at the same time."""

    async def query_view(self, question: Callable[[StudentPool], T]) -> T:
        """Answer a query, which changes nothing."""

    async def name_of(self, user_id: str, name: str) -> str:
        """Return the name in leases and tickets of a user whom the hub called ``name``."""


api = APIRouter(prefix="/api", responses=REFUSED)


def student_app(
    runner: StudentRunner,
    tokens: HubTokens,
    board: SignalBoard,
    *,
    courses: Collection[str] = (),
    default_course: str = "",
    roster: ClassRoster | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """Return the student application of a pool.

    Args:
        runner: runs the pool.
        tokens: say which server a token belongs to.
        board: takes the signals of servers.
        courses: every course of the lab; no other group of the hub is a course.
        default_course: the course of students who are in none.
        roster: takes reports of students' progress; None: progress is not shared.
        clock: seconds that never jump.
    """
    app = FastAPI(
        title="miglab pool: student",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        routes=_routes().routes,
    )
    app.state.runner, app.state.tokens, app.state.board = runner, tokens, board
    app.state.courses, app.state.default_course = courses, default_course
    app.state.roster = roster
    app.state.writes = TokenBuckets(
        WRITES_BURST,
        WRITES_PER_S,
        clock,
        "That was a lot at once. Wait a minute, then try again.",
    )
    app.state.reports = TokenBuckets(
        REPORTS_BURST,
        REPORTS_PER_S,
        clock,
        "Signals come faster than anybody reads them: one every 15 s is enough.",
    )
    install_refusals(app, runner.metrics.count_refusal)
    return app


@cache
def _routes() -> APIRouter:
    """Return all routes; FastAPI prepares each at its first request, once for all applications."""
    router = APIRouter()
    router.include_router(api)
    return router


async def _runner(request: Request) -> StudentRunner:
    runner: StudentRunner = request.app.state.runner
    return runner


Runner = Annotated[StudentRunner, Depends(_runner)]


@dataclass(frozen=True)
class OwnServer:
    """The server whose token a request carries.

    Attributes:
        courses: the courses of its student.
    """

    user: str
    name: str
    courses: tuple[str, ...] = ()

    @property
    def actor(self) -> str:
        """How the ledger names the server as the cause of a transition."""
        return f"server:{self.user}/{self.name}"


async def own_server(request: Request) -> OwnServer:
    """Return the server whose token a request carries.

    Raises:
        DeniedError: no token (401), not a server's token (403), too many unknown tokens (429), or
            a silent hub (503).
    """
    token = bearer_token(request)
    tokens: HubTokens = request.app.state.tokens
    model = await tokens.owner(token, peer_of(request)) if token else None
    if model is None:
        raise DeniedError(401, "not-signed-in", "Send the server's own JUPYTERHUB_API_TOKEN.")
    server = server_of(model)
    if server is None:
        # The hub gives this server's token too few scopes, or the token is a person's.
        log.warning("a token of %s was refused: it lacks %s!server", model["name"], LEASE_SCOPE)
        raise DeniedError(403, "token-lacks-scope", NOT_A_SERVER_TOKEN)
    user_name, server_name = server
    user_id = user_id_of(model)
    runner: StudentRunner = request.app.state.runner
    user = await runner.name_of(user_id, user_name) if user_id else user_name
    state = request.app.state
    courses = student_courses(model.get("groups") or (), state.courses, state.default_course)
    return OwnServer(user, server_name, tuple(sorted(courses)))


Me = Annotated[OwnServer, Depends(own_server)]


async def own_writer(me: Me, request: Request) -> OwnServer:
    """Return the server of a request that changes something, within a rate limit.

    Raises:
        DeniedError: 429 for too many changes, as each is a row in the ledger for good.
    """
    writes: TokenBuckets = request.app.state.writes
    writes.spend(me.user)
    return me


Writer = Annotated[OwnServer, Depends(own_writer)]


async def own_lease(me: Me, runner: Runner) -> LeaseView:
    """Return the live lease of the server whose token the request carries.

    Raises:
        DeniedError: as `own_server`; 404 if there is no lease.
    """
    lease = await runner.query_view(lambda pool: pool.leases.lease_of_server(me.user, me.name))
    if lease is None:
        raise DeniedError(404, "unknown-lease", "This server holds no GPU slice.")
    return lease


OwnLease = Annotated[LeaseView, Depends(own_lease)]
Since = Annotated[float, Query(ge=0, allow_inf_nan=False)]
EarlierTicket = Annotated[int | None, Query(alias="known", ge=0, le=2**53)]


@api.get("/lease")
async def lease(lease: OwnLease) -> LeaseView:
    """Return the server's lease."""
    return lease


@api.post("/lease/signals")
async def signals(lease: OwnLease, signals: Signals, request: Request) -> LeaseView:
    """Take the server's signals, every few seconds; return its lease.

    Signals can only make the lease look busier for a while: see docs/explanation/reclaim.md.
    """
    _take_signals(request, lease, signals)
    return lease


@api.get("/leases/ended")
async def ended(me: Me, runner: Runner, since: Since) -> LeaseEnds:
    """Return which leases of the server's student have ended since then, on any server."""
    return LeaseEnds(ends=await runner.decide(lambda pool: pool.leases.ends_since(me.user, since)))


@api.get("/server")
async def server(me: Me, request: Request, earlier_ticket: EarlierTicket = None) -> ServerStatus:
    """Return what the server holds and waits for, with its messages; this attends its ticket."""
    return await _server_status(request, me, earlier_ticket)


@api.post("/server/signals")
async def server_signals(
    me: Me, signals: Signals, request: Request, earlier_ticket: EarlierTicket = None
) -> ServerStatus:
    """Take the signals of a server with or without a slice; return its status as ``/server``."""
    status = await _server_status(request, me, earlier_ticket)
    if status.lease is not None:
        _take_signals(request, status.lease, signals)
    return status


async def _server_status(
    request: Request, me: OwnServer, earlier_ticket: int | None
) -> ServerStatus:
    runner: StudentRunner = request.app.state.runner
    roster: ClassRoster | None = request.app.state.roster
    courses = {*me.courses, request.app.state.default_course}

    def report_status(pool: StudentPool) -> ServerStatus:
        pool.tickets.end_outside(me.user, me.name, courses)
        messages = pool.staff.messages_for(me.user, me.name, me.courses)
        sharing = {} if roster is None else roster.sharing_courses(me.user, me.courses)
        status = pool.tickets.server_status(me.user, me.name, earlier_ticket)
        line = line_of_server(status, time.time())
        return status.model_copy(update={"messages": messages, "sharing": sharing, "line": line})

    return await runner.decide(report_status)


def _take_signals(request: Request, lease: LeaseView, signals: Signals) -> None:
    """Take the signals of a lease; those that come too often are refused and change nothing."""
    reports: TokenBuckets = request.app.state.reports
    reports.spend(lease.id)
    board: SignalBoard = request.app.state.board
    board.take(lease.id, signals)


@api.post("/ticket/cancel")
async def cancel(me: Writer, runner: Runner) -> TicketView:
    """Cancel the server's ticket or offer."""
    return await runner.decide(
        lambda pool: pool.tickets.cancel_of_server(me.user, me.name, me.actor)
    )


@api.post("/ticket/requeue")
async def requeue(me: Writer, ask: RequeueRequest, runner: Runner, request: Request) -> TicketView:
    """Join the queue once more for the shape of an earlier ticket of this server."""
    courses = {*me.courses, request.app.state.default_course}
    return await runner.decide(
        lambda pool: pool.tickets.requeue(me.user, me.name, ask.ticket, courses)
    )


@api.post("/lease/keepalive")
async def keepalive(lease: OwnLease, me: Writer, runner: Runner) -> LeaseView:
    """Say "I am still here", which ends an idle warning; it may be repeated a few times."""
    return await runner.decide(lambda pool: pool.leases.keepalive(lease.id, me.actor))


@api.post("/lease/extend")
async def extend(lease: OwnLease, me: Writer, ask: ExtendRequest, runner: Runner) -> LeaseView:
    """Extend the lease."""
    return await runner.decide(lambda pool: pool.leases.extend(lease.id, ask.by_s, me.actor))


@api.post("/lease/release")
async def release(lease: OwnLease, me: Writer, ask: ReleaseRequest, runner: Runner) -> LeaseView:
    """Release the lease; the server is stopped, and the slices are free once it is gone."""
    return await runner.decide(lambda pool: pool.leases.release(lease.id, me.actor, ask.reason))


@api.post("/progress")
async def progress(
    me: Writer, report: ProgressReport, runner: Runner, request: Request
) -> dict[str, bool]:
    """Report the student's progress to the course's staff, once the student has read the notice."""
    roster = _roster(request, me, report.course)
    await runner.decide(lambda _: roster.record_report(me.user, report))
    return {"ok": True}


@api.post("/progress/notice")
async def notice_read(
    me: Writer, read: NoticeRead, runner: Runner, request: Request
) -> ServerStatus:
    """Record that the student has read what staff see; return the status as ``/server``."""
    roster = _roster(request, me, read.course)
    await runner.decide(lambda _: roster.record_notice_read(me.user, read.course))
    return await _server_status(request, me, None)


def _roster(request: Request, me: OwnServer, course: str) -> ClassRoster:
    """Return the roster that takes reports of this student's course.

    Raises:
        DeniedError: 403 if the student is not in it, or progress is not shared.
    """
    roster: ClassRoster | None = request.app.state.roster
    if roster is None or course not in me.courses:
        raise DeniedError(403, "forbidden", "This is not a course of yours that asks for it.")
    return roster


@api.get("/health")
async def health() -> dict[str, bool]:
    """Say that the listener answers."""
    return {"ok": True}
