"""The student application: a server sees and steers its own lease, and nothing else.

The only listener of the pool that students' containers reach.  A request carries the server's own
hub token; the hub says which server that is.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request

from miglab_hub.reclaimer.signals import SignalBoard, TooOften
from miglab_spawner.messages import ExtendRequest, LeaseView, ReleaseRequest, Signals

from .answers import REFUSED, DeniedError, install
from .auth import HubTokens, bearer, server_of
from .host import PoolHost

api = APIRouter(prefix="/api", responses=REFUSED)


def student_app(host: PoolHost, tokens: HubTokens, board: SignalBoard) -> FastAPI:
    """The student application over the same pool; ``board`` takes what servers say."""
    app = FastAPI(
        title="miglab pool: student",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
    )
    app.state.host, app.state.tokens, app.state.board = host, tokens, board
    install(app, host.metrics.refused)
    app.include_router(api)
    return app


async def own_lease(request: Request) -> LeaseView:
    """The live lease of the server whose token the request carries.

    Raises:
        Refused: no token (401), not a server's token (403), no lease (404), no hub (503).
    """
    token = bearer(request)
    tokens: HubTokens = request.app.state.tokens
    model = await tokens.owner(token) if token else None
    if model is None:
        raise DeniedError(401, "not-signed-in", "Send the server's own JUPYTERHUB_API_TOKEN.")
    server = server_of(model)
    if server is None:
        raise DeniedError(403, "forbidden", "This is not the token of a server.")
    host: PoolHost = request.app.state.host
    lease = await host.decide(lambda pool: pool.lease_of(*server))
    if lease is None:
        raise DeniedError(404, "unknown-lease", "This server holds no GPU slice.")
    return lease


def _by(own: LeaseView) -> str:
    """How the ledger names the server as the cause of a transition."""
    return f"server:{own.user}/{own.server}"


Own = Annotated[LeaseView, Depends(own_lease)]


@api.get("/lease")
async def lease(own: Own) -> LeaseView:
    """The server's lease."""
    return own


@api.post("/lease/signals")
async def signals(own: Own, said: Signals, request: Request) -> LeaseView:
    """What the server says of itself, every few seconds; answers with its lease as it stands.

    It can only make the lease look busier for a while: see docs/explanation/reclaim.md.
    """
    board: SignalBoard = request.app.state.board
    try:
        board.take(own.id, said)
    except TooOften:
        raise DeniedError(
            429,
            "too-often",
            "Signals come faster than anybody reads them: one every 15 s is enough.",
        ) from None
    return own


@api.post("/lease/stay")
async def stay(own: Own, request: Request) -> LeaseView:
    """Say "I am still here": it ends a warning about an unused slice, so often without work."""
    host: PoolHost = request.app.state.host
    return await host.decide(lambda pool: pool.stay(own.id, _by(own)))


@api.post("/lease/extend")
async def extend(own: Own, ask: ExtendRequest, request: Request) -> LeaseView:
    """Ask for more time."""
    host: PoolHost = request.app.state.host
    return await host.decide(lambda pool: pool.extend(own.id, ask.by_s, _by(own)))


@api.post("/lease/release")
async def release(own: Own, ask: ReleaseRequest, request: Request) -> LeaseView:
    """Give the lease back; the server is stopped, and the slices are free once it is gone."""
    host: PoolHost = request.app.state.host
    return await host.decide(lambda pool: pool.release(own.id, _by(own), ask.reason))


@api.get("/health")
async def health() -> dict[str, bool]:
    """Whether the listener answers."""
    return {"ok": True}
