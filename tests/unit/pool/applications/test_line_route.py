"""The line over HTTP: everybody has their own, and a server that of its own."""

from typing import Any

import httpx
from tests.unit.pool.conftest import World

from miglab_api.line import LAST_END_S

from .conftest import as_
from .fakes import SECRET


async def test_each_sees_their_own(client: httpx.AsyncClient, world: World) -> None:
    """A user that somebody else names counts for the spawner alone."""
    own = (await client.get("/api/line", headers=as_("alice-token"))).json()
    assert [(place["server"], place["state"]) for place in own["standings"]] == [
        ("", "holding"),
        ("lab2", "holding"),
    ]
    assert own["now"] == world.at
    others = (await client.get("/api/line?user=alice", headers=as_("bob-token"))).json()
    assert [place["lease"] for place in others["standings"]] == [2]
    relayed = (await client.get("/api/line?user=alice", headers=as_(SECRET))).json()
    assert relayed == own
    by_id = "/api/line?user=alice&user_id=7t1700000000000000"
    assert (await client.get(by_id, headers=as_(SECRET))).json() == own
    assert (await client.get(by_id, headers=as_("bob-token"))).json() == others
    assert (await client.get("/api/line", headers=as_(SECRET))).status_code == 422
    assert (await client.get("/api/line")).status_code == 401


async def test_a_server_sees_its_own(student: httpx.AsyncClient) -> None:
    """What JupyterLab shows is in the answer to what it asks already."""
    status = (await student.get("/api/server", headers=as_("alice-lab2"))).json()
    (place,) = status["line"]["standings"]
    assert (place["server"], place["lease"], place["state"]) == ("lab2", 3, "holding")


async def test_who_holds_nothing_is_told_what_they_held_last(
    client: httpx.AsyncClient, world: World
) -> None:
    """For half a day, with the reason, and not while they hold or wait for anything."""

    async def last_end() -> dict[str, Any] | None:
        line = (await client.get("/api/line?user=zoe", headers=as_(SECRET))).json()
        end: dict[str, Any] | None = line["last_end"]
        return end

    assert await last_end() is None
    lease = world.run("zoe", "1g.5gb")
    assert await last_end() is None
    world.end(lease)
    end = await last_end()
    assert end is not None
    assert (end["shape"], end["ended_at"], bool(end["reason"])) == ("1g.5gb", world.at, True)
    waiting_ticket = world.ask("zoe", "1g.5gb")
    assert await last_end() is None
    world.pool.tickets.cancel(waiting_ticket.id, "zoe")
    assert await last_end() == end
    world.pass_time(LAST_END_S - (world.at - end["ended_at"]) - 1.0)
    assert await last_end() == end
    world.pass_time(2.0)
    assert await last_end() is None


async def test_what_nobody_held_is_not_told(client: httpx.AsyncClient, world: World) -> None:
    """A slice that was granted, and left to the next student before a server had it."""
    world.end(world.run("zoe", "1g.5gb"))
    granted = world.grant("zoe", "2g.10gb")
    world.pool.leases.release(granted.id, "zoe", "cancelled")
    world.work()
    line = (await client.get("/api/line?user=zoe", headers=as_(SECRET))).json()
    assert (line["standings"], line["last_end"]["shape"]) == ([], "1g.5gb")
