"""The student application: a server sees and steers its own lease and ticket, and nothing else.

The only listener of the pool that students' containers reach.  A request carries the server's own
hub token; the hub says which server that is.  Whoever keeps leases and tickets can stand behind it:
the lab's own pool, or jobs of Slurm.
"""

import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Protocol, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request

from miglab_api.leases import ExtendRequest, LeaseView, ReleaseRequest, ServerStatus, Signals
from miglab_api.roster import NoticeRead, ProgressReport
from miglab_api.scopes import LEASE_SCOPE
from miglab_api.staff import StaffMessage
from miglab_api.tickets import RequeueRequest, TicketView
from miglab_pool.http.access.auth import bearer, server_of, user_id_of
from miglab_pool.http.access.hub_tokens import HubTokens
from miglab_pool.http.connection_limits import peer_of
from miglab_pool.http.errors import REFUSED, DeniedError, install
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.roster.transactions import ClassRoster

log = logging.getLogger(__name__)

T = TypeVar("T")
NOT_A_SERVERS = (
    f"This token lacks the scope {LEASE_SCOPE}!server, which the hub gives to servers alone."
)
WRITES_BURST = 20.0  # changes at once: more than a person clicks in a minute
WRITES_PER_S = 0.1  # and then so many per second
REPORTS_BURST = 10.0  # signals at once: a page that loads, a "still here", a saved document
REPORTS_PER_S = 0.5  # and then so many per second; a server pushes one every 15 s


class TokenBuckets:
    """How often somebody may ask: one bucket for each who asks.

    Args:
        burst: how often one may ask at once.
        per_s: how many more a second.
        clock: seconds that never jump.
        says: what whoever asks more often is told.
    """

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float], says: str) -> None:
        self._burst, self._per_s, self._clock, self._says = burst, per_s, clock, says
        self._full_at: dict[Hashable, float] = {}  # when each bucket is full again; last asked last

    def spend(self, who: Hashable) -> None:
        """Take one.

        Raises:
            DeniedError: 429, there is none left; nothing was done.
        """
        now = self._clock()
        while self._full_at and self._full_at[oldest := next(iter(self._full_at))] <= now:
            del self._full_at[oldest]
        full_at = max(now, self._full_at.pop(who, now))
        is_left = (full_at - now) * self._per_s <= self._burst - 1
        self._full_at[who] = full_at + 1 / self._per_s if is_left else full_at
        if not is_left:
            raise DeniedError(429, "too-often", self._says)

    def __len__(self) -> int:
        return len(self._full_at)


class StudentLeases(Protocol):
    """Of a server's own lease."""

    def of_server(self, user: str, server: str) -> LeaseView | None:
        """The live lease of one server."""

    def keepalive(self, number: int, by: str) -> LeaseView:
        """The holder is still there."""

    def extend(self, number: int, by_s: float, by: str) -> LeaseView:
        """Put off the end."""

    def release(self, number: int, by: str, reason: str) -> LeaseView:
        """Give it back."""


class StudentTickets(Protocol):
    """Of a server's own position in the queue."""

    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        """What a server holds and waits for."""

    def end_outside(self, user: str, server: str, courses: Collection[str]) -> None:
        """End what waits for a course that the student has left."""

    def cancel_of_server(self, user: str, server: str, by: str) -> TicketView:
        """Leave the queue, or give up the offer."""

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Join the queue once more."""


class StudentMessages(Protocol):
    """What staff say."""

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What is to be shown to whoever is at this server."""


class StudentDoor(Protocol):
    """All of it."""

    @property
    def leases(self) -> StudentLeases:
        """Leases."""

    @property
    def tickets(self) -> StudentTickets:
        """Tickets."""

    @property
    def staff(self) -> StudentMessages:
        """Messages."""


class RefusalCounter(Protocol):
    """Counts refusals for the metrics."""

    def refused(self, reason: str) -> None:
        """Count one."""


class StudentRunner(Protocol):
    """Runs decisions one at a time, and answers questions."""

    @property
    def metrics(self) -> RefusalCounter:
        """What is counted on the way."""

    async def decide(self, decision: Callable[[StudentDoor], T]) -> T:
        """Decide, alone."""

    async def look(self, question: Callable[[StudentDoor], T]) -> T:
        """Look, and change nothing."""

    async def name_of(self, user_id: str, name: str) -> str:
        """What leases and tickets call a user whom the hub called ``name``."""


api = APIRouter(prefix="/api", responses=REFUSED)


def student_app(
    runner: StudentRunner,
    tokens: HubTokens,
    board: SignalBoard,
    *,
    default_course: str = "",
    roster: ClassRoster | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The student application over the same pool.

    Args:
        runner: the pool.
        tokens: say whose server asks.
        board: takes what servers say of themselves.
        default_course: the course of those who are in none.
        roster: keeps what servers tell of their students' progress; None: nobody asks.
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
    app.state.default_course, app.state.roster = default_course, roster
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
    install(app, runner.metrics.refused)
    return app


@cache
def _routes() -> APIRouter:
    """All routes; FastAPI prepares each at its first request, once for every application."""
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
    def by(self) -> str:
        """How the ledger names it as the cause of a transition."""
        return f"server:{self.user}/{self.name}"


async def own_server(request: Request) -> OwnServer:
    """Which server asks.

    Raises:
        Refused: no token (401), not a server's token (403), unknown ones too often (429), no hub
            (503).
    """
    token = bearer(request)
    tokens: HubTokens = request.app.state.tokens
    model = await tokens.owner(token, peer_of(request)) if token else None
    if model is None:
        raise DeniedError(401, "not-signed-in", "Send the server's own JUPYTERHUB_API_TOKEN.")
    server = server_of(model)
    if server is None:
        # a server's, whose hub gives it too little; or a person's
        log.warning("a token of %s was refused: it lacks %s!server", model["name"], LEASE_SCOPE)
        raise DeniedError(403, "token-lacks-scope", NOT_A_SERVERS)
    user_name, server_name = server
    user_id = user_id_of(model)
    runner: StudentRunner = request.app.state.runner
    user = await runner.name_of(user_id, user_name) if user_id else user_name
    groups = tuple(model.get("groups") or [request.app.state.default_course])
    return OwnServer(user, server_name, groups)


Me = Annotated[OwnServer, Depends(own_server)]


async def own_writer(me: Me, request: Request) -> OwnServer:
    """The server that asks, if its student has not just asked for a great many changes.

    Raises:
        Refused: they have (429); each change is a row in the ledger, for good.
    """
    writes: TokenBuckets = request.app.state.writes
    writes.spend(me.user)
    return me


Writer = Annotated[OwnServer, Depends(own_writer)]


async def own_lease(me: Me, runner: Runner) -> LeaseView:
    """The live lease of the server whose token the request carries.

    Raises:
        Refused: as `own_server`; no lease (404).
    """
    lease = await runner.look(lambda pool: pool.leases.of_server(me.user, me.name))
    if lease is None:
        raise DeniedError(404, "unknown-lease", "This server holds no GPU slice.")
    return lease


Own = Annotated[LeaseView, Depends(own_lease)]
Known = Annotated[int | None, Query(ge=0, le=2**53)]


@api.get("/lease")
async def lease(own: Own) -> LeaseView:
    """The server's lease."""
    return own


@api.post("/lease/signals")
async def signals(own: Own, said: Signals, request: Request) -> LeaseView:
    """What the server says of itself, every few seconds; answers with its lease as it stands.

    It can only make the lease look busier for a while: see docs/explanation/reclaim.md.
    """
    _take_signals(request, own, said)
    return own


@api.get("/server")
async def server(me: Me, request: Request, known: Known = None) -> ServerStatus:
    """What the server has, waits for and is told; asking keeps its position in the queue."""
    return await _server_status(request, me, known)


@api.post("/server/signals")
async def server_signals(
    me: Me, said: Signals, request: Request, known: Known = None
) -> ServerStatus:
    """What the server says of itself, whether or not it holds a slice; answers as ``/server``."""
    status = await _server_status(request, me, known)
    if status.lease is not None:
        _take_signals(request, status.lease, said)
    return status


async def _server_status(request: Request, me: OwnServer, known: int | None) -> ServerStatus:
    runner: StudentRunner = request.app.state.runner
    roster: ClassRoster | None = request.app.state.roster
    courses = {*me.courses, request.app.state.default_course}

    def look(pool: StudentDoor) -> ServerStatus:
        pool.tickets.end_outside(me.user, me.name, courses)
        messages = pool.staff.messages_for(me.user, me.name, me.courses)
        sharing = {} if roster is None else roster.sharing_courses(me.user, me.courses)
        return pool.tickets.server_status(me.user, me.name, known).model_copy(
            update={"messages": messages, "sharing": sharing}
        )

    return await runner.decide(look)


def _take_signals(request: Request, lease: LeaseView, said: Signals) -> None:
    """What is refused for coming too often leaves what was known as it is."""
    reports: TokenBuckets = request.app.state.reports
    reports.spend(lease.id)
    board: SignalBoard = request.app.state.board
    board.take(lease.id, said)


@api.post("/ticket/cancel")
async def cancel(me: Writer, runner: Runner) -> TicketView:
    """Leave the queue, or give up what was offered."""
    return await runner.decide(lambda pool: pool.tickets.cancel_of_server(me.user, me.name, me.by))


@api.post("/ticket/requeue")
async def requeue(me: Writer, ask: RequeueRequest, runner: Runner, request: Request) -> TicketView:
    """Join the queue once more for what an own ticket, now over, had asked for."""
    courses = {*me.courses, request.app.state.default_course}
    return await runner.decide(
        lambda pool: pool.tickets.requeue(me.user, me.name, ask.ticket, courses)
    )


@api.post("/lease/keepalive")
async def keepalive(own: Own, me: Writer, runner: Runner) -> LeaseView:
    """Say "I am still here": it ends a warning about an unused slice, so often without work."""
    return await runner.decide(lambda pool: pool.leases.keepalive(own.id, me.by))


@api.post("/lease/extend")
async def extend(own: Own, me: Writer, ask: ExtendRequest, runner: Runner) -> LeaseView:
    """Ask for more time."""
    return await runner.decide(lambda pool: pool.leases.extend(own.id, ask.by_s, me.by))


@api.post("/lease/release")
async def release(own: Own, me: Writer, ask: ReleaseRequest, runner: Runner) -> LeaseView:
    """Give the lease back; the server is stopped, and the slices are free once it is gone."""
    return await runner.decide(lambda pool: pool.leases.release(own.id, me.by, ask.reason))


@api.post("/progress")
async def progress(
    me: Writer, report: ProgressReport, runner: Runner, request: Request
) -> dict[str, bool]:
    """Tell how far the student is, for the course's staff; only once they have read the notice."""
    roster = _roster(request, me, report.course)
    await runner.decide(lambda _: roster.record_report(me.user, report))
    return {"ok": True}


@api.post("/progress/notice")
async def notice_read(
    me: Writer, read: NoticeRead, runner: Runner, request: Request
) -> ServerStatus:
    """The student has read what the course's staff are shown; answers as ``/server``."""
    roster = _roster(request, me, read.course)
    await runner.decide(lambda _: roster.record_notice_read(me.user, read.course))
    return await _server_status(request, me, None)


def _roster(request: Request, me: OwnServer, course: str) -> ClassRoster:
    """What takes reports of this student's course.

    Raises:
        DeniedError: 403, the student is not in it, or nobody asks.
    """
    roster: ClassRoster | None = request.app.state.roster
    if roster is None or course not in me.courses:
        raise DeniedError(403, "forbidden", "This is not a course of yours that asks for it.")
    return roster


@api.get("/health")
async def health() -> dict[str, bool]:
    """Whether the listener answers."""
    return {"ok": True}
