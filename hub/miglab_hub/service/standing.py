"""What one server has and waits for, for the spawner: its spawn page and its restarts say it."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_spawner.messages import SERVER_MAX, USER_MAX, Standing

from .answers import REFUSED
from .roles import Host, Spawner

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
