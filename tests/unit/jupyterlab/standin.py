"""A pool's student listener and a hub for one server, made of the pool's own messages."""

import asyncio
import socket
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from tests.unit.pool.applications import fakes

from miglab_api.base import Refusal
from miglab_api.leases import (
    ExtendRequest,
    LeaseEnds,
    LeaseState,
    LeaseView,
    LeaseWarning,
    ReleaseRequest,
    ServerStatus,
    Signals,
    WarningKind,
)
from miglab_api.line import LeaseEnd
from miglab_api.roster import NoticeRead, ProgressReport
from miglab_api.staff import StaffMessage
from miglab_api.standings import line_of_server
from miglab_api.tickets import RequeueRequest, TicketState, TicketView, WaitEstimate

NOW = 1_700_000_000.0  # the pool's clock, years away from any other


def warning(left_s: float = 60.0) -> LeaseWarning:
    """Idle, and to be taken back in so many seconds."""
    reason = "Nothing ran for 20 min."
    return LeaseWarning(
        at=NOW, reclaim_at=NOW + left_s, reason=reason, kind=WarningKind.IDLE, keepalives_left=1
    )


def lease_view(
    state: LeaseState = LeaseState.RUNNING,
    *,
    left_s: float | None = 600.0,
    guaranteed_s: float | None = None,
    warned: LeaseWarning | None = None,
    used_mib: int | None = 600,
    reason: str = "",
) -> LeaseView:
    """Ada's lease of one slice."""
    return fakes.lease_view(
        7, "ada", course="everyone", state=LeaseState.WARNED if warned else state, reason=reason,
        slices=(fakes.slice_view(1, 0, "ada", memory_used_mib=used_mib),), granted_at=NOW - 60,
        guaranteed_until=None if guaranteed_s is None else NOW + guaranteed_s,
        ends_at=None if left_s is None else NOW + left_s, extensions_left=2, extension_s=1800,
        others_wait=3, warning=warned,
    )  # fmt: skip


def ticket_view(state: TicketState = TicketState.WAITING, **fields: object) -> TicketView:
    """Ada's place in line: second of five, for about ten minutes."""
    values: dict[str, object] = {
        "id": 5, "course": "everyone", "state": state, "created_at": NOW - 60, "position": None,
        "waiting": 0,
    }  # fmt: skip
    if state is TicketState.WAITING:
        estimate = WaitEstimate(low_s=300, likely_s=600, high_s=900, basis="from 20 leases")
        values |= {"position": 2, "waiting": 5, "estimate": estimate, "expires_at": NOW + 120}
    if state is TicketState.OFFERED:
        values |= {"lease": 8, "expires_at": NOW + 300}
    return fakes.ticket_view(5, "ada", **{**values, **fields})


def message(
    number: int = 3, text: str = "Ten minutes left.", left_s: float = 600.0
) -> StaffMessage:
    """What an instructor says."""
    return StaffMessage(id=number, at=NOW - 5, by="ina", text=text, until=NOW + left_s)


class StandIn:
    """What the listener and the hub answer now, and what they were told."""

    def __init__(self) -> None:
        self.lease: LeaseView | None = lease_view()  # None: the server has none
        self.ticket: TicketView | None = None
        self.messages: tuple[StaffMessage, ...] = ()
        self.broken = 0  # an HTTP status to fail with, as when the pool restarts
        self.refuses: Refusal | None = None  # an extension or a move
        self.reported_signals: list[Signals] = []
        self.reported_tickets: list[int | None] = []  # the ticket that each report named
        self.sharing: dict[str, bool] = {}  # courses that ask for progress; was the notice read?
        self.reports: list[ProgressReport] = []
        self.ends: tuple[LeaseEnd, ...] = ()
        self.moved: list[tuple[str, str, str]] = []  # user, server, shape; empty: what is offered
        self.chosen: list[tuple[str, str, dict[str, object]]] = []  # user, server, body
        self.requests: list[tuple[str, str]] = []  # path and bearer token of every request
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port."""
        config = uvicorn.Config(
            self._app(), log_level="error", lifespan="off", date_header=False, ws="none"
        )
        self._server = uvicorn.Server(config)
        place = socket.socket()
        place.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{place.getsockname()[1]}"
        self._task = asyncio.create_task(self._server._serve([place]))
        while not self._server.started:
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """End it."""
        self._server.should_exit = True
        await self._task

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def stamp(request: Request, go_on: object) -> object:
            self.requests.append((request.url.path, request.headers.get("authorization", "")))
            if self.broken:
                no = Refusal(reason="not-now", message="Not now.")
                answer = JSONResponse(no.model_dump(), self.broken)
            elif self.lease is None and "/lease/" in request.url.path:
                refusal = Refusal(reason="unknown-lease", message="This server holds no GPU slice.")
                answer = JSONResponse(refusal.model_dump(), 404)
            else:
                answer = await go_on(request)  # type: ignore[operator]
            answer.headers["Date"] = "Tue, 14 Nov 2023 22:13:20 GMT"  # NOW
            return answer

        @app.post("/api/server/signals")
        async def signals(
            report: Signals, ticket_id: Annotated[int | None, Query(alias="known")] = None
        ) -> ServerStatus:
            self.reported_signals.append(report)
            self.reported_tickets.append(ticket_id)
            return self._status()

        @app.get("/api/leases/ended")
        async def ended(since: float) -> LeaseEnds:
            return LeaseEnds(ends=tuple(end for end in self.ends if end.ended_at > since))

        @app.post("/api/progress")
        async def progress(report: ProgressReport) -> dict[str, bool]:
            self.reports.append(report)
            return {"ok": True}

        @app.post("/api/progress/notice")
        async def notice_read(read: NoticeRead) -> ServerStatus:
            self.sharing = {read.course: True}
            return self._status()

        self._of_the_lease(app)
        self._of_the_place(app)
        return app

    def _status(self) -> ServerStatus:
        status = ServerStatus(
            lease=self.lease, ticket=self.ticket, messages=self.messages, sharing=self.sharing
        )
        return status.model_copy(update={"line": line_of_server(status, NOW)})

    def _of_the_lease(self, app: FastAPI) -> None:
        @app.post("/api/lease/keepalive")
        async def keepalive() -> LeaseView | None:
            self.lease = lease_view()
            return self.lease

        @app.post("/api/lease/extend")
        async def extend(request: ExtendRequest) -> object:
            if self.refuses:
                return JSONResponse(self.refuses.model_dump(), 409)
            self.lease = lease_view(left_s=600 + request.by_s)
            return self.lease

        @app.post("/api/lease/release")
        async def release(request: ReleaseRequest) -> LeaseView | None:
            self.lease = lease_view(LeaseState.RELEASING, reason=request.reason)
            return self.lease

    def _of_the_place(self, app: FastAPI) -> None:
        @app.post("/api/ticket/cancel")
        async def cancel() -> TicketView:
            self.ticket = None
            return ticket_view(TicketState.CANCELLED, message="It was given up.")

        @app.post("/api/ticket/requeue")
        async def requeue(request: RequeueRequest) -> TicketView:
            self.ticket = ticket_view(id=request.ticket + 1, position=5)
            return self.ticket

        @app.get("/hub/api/miglab/choose/{user}/{server:path}")
        async def choices(user: str, server: str) -> object:
            if self.refuses:
                return JSONResponse(self.refuses.model_dump(), 409)
            return {"sections": [{"title": user, "shapes": [{"value": "1g.5gb"}]}]}

        @app.post("/hub/api/miglab/choose/{user}/{server:path}")
        async def choose(user: str, server: str, request: dict[str, object]) -> object:
            self.chosen.append((user, server, request))
            if self.refuses:
                return JSONResponse(self.refuses.model_dump(), 409)
            self.ticket = ticket_view()
            return {"ticket": self.ticket.id}

        @app.post("/hub/api/miglab/move/{user}/{server:path}")
        async def move(user: str, server: str, request: dict[str, str]) -> object:
            self.moved.append((user, server, request.get("shape", "")))
            if self.refuses:
                return JSONResponse(self.refuses.model_dump(), 409)
            return JSONResponse({"url": "/hub/miglab/moving/ada/"}, 202)
