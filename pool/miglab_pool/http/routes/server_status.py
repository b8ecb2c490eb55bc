"""How one server stands, for the spawner: what it has, waits for, and could have instead."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import SERVER_MAX, USER_MAX
from miglab_api.leases import Standing
from miglab_api.offers import ShapeOffer
from miglab_pool.http.access.dependencies import Host, Spawner
from miglab_pool.http.errors import REFUSED

router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/standing")
async def standing(
    _: Spawner,
    host: Host,
    user: Annotated[str, Query(min_length=1, max_length=USER_MAX)],
    server: Annotated[str, Query(max_length=SERVER_MAX)] = "",
) -> Standing:
    """What a server has and waits for; asking keeps its place in line."""
    return await host.decide(lambda pool: pool.standing(user, server))


@router.get("/tickets/{ticket_id}/instead")
async def instead(ticket_id: int, _: Spawner, host: Host) -> list[ShapeOffer]:
    """The shapes that who waits could have at once instead, by giving up the place."""
    return await host.decide(lambda pool: pool.free_instead(ticket_id))
