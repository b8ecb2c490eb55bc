"""The status of a server, for the spawner: its lease, its ticket, the alternatives to waiting."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import SERVER_MAX, USER_MAX
from miglab_api.leases import ServerStatus
from miglab_api.offers import ShapeOffer
from miglab_pool.http.access.dependencies import Runner, Spawner
from miglab_pool.http.errors import REFUSED

router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/server")
async def server_status(
    _: Spawner,
    runner: Runner,
    user: Annotated[str, Query(min_length=1, max_length=USER_MAX)],
    server: Annotated[str, Query(max_length=SERVER_MAX)] = "",
) -> ServerStatus:
    """What a server has and waits for; asking keeps its position in the queue."""
    return await runner.decide(lambda pool: pool.tickets.server_status(user, server))


@router.get("/tickets/{ticket_id}/alternatives")
async def alternatives(ticket_id: int, _: Spawner, runner: Runner) -> list[ShapeOffer]:
    """The shapes that this student could have at once by leaving the queue."""
    return await runner.look(lambda pool: pool.tickets.alternatives(ticket_id))
