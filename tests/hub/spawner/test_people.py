"""Users are deleted, renamed and their servers stopped, whatever the servers do just then."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from jupyterhub import orm, roles
from sqlalchemy import select
from traitlets.config import Config

from miglab_api.tickets import TicketState
from miglab_pool.ledger import tables
from miglab_spawner import deletion

from .lab import PoolLab

Hub = Any
SERVERS = ["", "lab2"]


@pytest.fixture
def hub_config(hub_config: Config) -> Config:
    """Students' servers know where the pool is, so that they can keep their place."""
    hub_config.MIGLocalSpawner.student_api_url = "http://127.0.0.1:9"
    return hub_config


async def as_admin(hub: Hub, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """A request of a hub admin."""
    admin = hub.user("root")
    admin.admin = True
    roles.assign_default_roles(hub.app.db, entity=admin.orm_user)
    hub.app.db.commit()
    answer: httpx.Response = await hub.ask("root", method, path, **kwargs)
    return answer


async def rename(hub: Hub, name: str, new_name: str) -> None:
    answer = await as_admin(hub, "PATCH", f"api/users/{name}", json={"name": new_name})
    assert answer.status_code == 200, answer.text


class Gate:
    """Holds a step of a spawner up until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def before(self, step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def held_up(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            await self.opened.wait()
            return await step(*args, **kwargs)

        return held_up


# -- the states ------------------------------------------------------------------------------------


@asynccontextmanager
async def waiting(hub: Hub, lab: PoolLab, server: str) -> AsyncIterator[Gate]:
    """Bo holds part of the GPU, and ada's start waits for all of it."""
    await hub.start("bo", shape="3g.20gb")
    await hub.begin("ada", server, shape="7g.40gb")
    await lab.until(lambda: _waits(hub, server), "ada waits")
    yield Gate()


def _waits(hub: Hub, server: str) -> bool:
    wait = hub.spawner("ada", server)._wait
    return wait is not None and wait.ticket is not None


@asynccontextmanager
async def offered(hub: Hub, lab: PoolLab, server: str) -> AsyncIterator[Gate]:
    """Ada's server runs without a GPU, and what it waited for is offered to it."""
    async with waiting(hub, lab, server):
        path = f"api/miglab/waiting/ada/{server}"
        assert (await hub.ask("ada", "POST", path, json={"shape": "cpu"})).status_code == 202
        await hub.settled("ada", server)
        await hub.stop("bo")
        await lab.until(lambda: _ticket_state(lab) is TicketState.OFFERED, "it is offered")
        yield Gate()


def _ticket_state(lab: PoolLab) -> TicketState | None:
    tickets = lab.pool.view.tickets.values()
    return next((TicketState(ticket.state) for ticket in tickets if ticket.is_live), None)


@asynccontextmanager
async def starting(hub: Hub, lab: PoolLab, server: str) -> AsyncIterator[Gate]:
    """Ada's server has its slice and is being made, until the gate is opened."""
    await hub.start("ada", server, shape="cpu")
    await hub.stop("ada", server)
    spawner, gate = hub.spawner("ada", server), Gate()
    spawner.prepare = gate.before(spawner.prepare)
    await hub.begin("ada", server, shape="1g.5gb")
    await gate.reached.wait()
    yield gate
    gate.opened.set()


@asynccontextmanager
async def running(hub: Hub, lab: PoolLab, server: str) -> AsyncIterator[Gate]:
    """Ada's server runs with a slice."""
    await hub.start("ada", server, shape="1g.5gb")
    yield Gate()


@asynccontextmanager
async def stopping(hub: Hub, lab: PoolLab, server: str) -> AsyncIterator[Gate]:
    """Ada's server with a slice is being stopped, until the gate is opened."""
    await hub.start("ada", server, shape="1g.5gb")
    spawner, gate = hub.spawner("ada", server), Gate()
    spawner.stop = gate.before(spawner.stop)
    await hub.ask("ada", "DELETE", path_of(server))
    await gate.reached.wait()
    yield gate
    gate.opened.set()


STATES = [waiting, offered, starting, running, stopping]


def path_of(server: str) -> str:
    return f"api/users/ada/server{f's/{server}' if server else ''}"


def _left(lab: PoolLab, name: str = "ada") -> list[object]:
    """What somebody holds or waits for."""
    tickets = lab.pool.snapshot().waiting
    leases = [lease for lease in lab.pool.leases.live() if lease.user == name]
    return [*leases, *(ticket for ticket in tickets if ticket.user == name)]


def _lapsed(lab: PoolLab) -> list[dict[str, Any]]:
    """The tickets that nobody ended: their grace did."""
    return lab.ledger.read(select(tables.tickets).where(tables.tickets.c.state == "expired"))


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("state", STATES)
async def test_a_deleted_user_holds_and_waits_for_nothing(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch, state: Any, server: str
):
    """The account is gone with the first request, its servers, tickets and leases with it."""
    async with state(hub, lab, server) as gate:
        if state is stopping:  # the request comes before the server has stopped
            in_time = deletion.UserDeletionHandler._in_time

            async def open_then_wait(*args: Any) -> None:
                gate.opened.set()
                await in_time(*args)

            monkeypatch.setattr(deletion.UserDeletionHandler, "_in_time", open_then_wait)
        answer = await as_admin(hub, "DELETE", "api/users/ada")
        assert answer.status_code == 204, answer.text
        assert orm.User.find(hub.app.db, "ada") is None
    await lab.until(lambda: not _left(lab), "nothing is ada's")
    assert not _lapsed(lab)


async def test_a_user_who_may_not_delete_ends_nobodys_wait(hub: Hub, lab: PoolLab):
    """The hub's rights are asked before anything is ended; admins cannot delete themselves."""
    async with waiting(hub, lab, ""):
        assert (await hub.ask("bo", "DELETE", "api/users/ada")).status_code == 403
        assert _waits(hub, "")
    await as_admin(hub, "POST", "api/users/root/server", json={"shape": "7g.40gb"})
    await lab.until(lambda: _left(lab, "root"), "the admin waits")
    assert (await as_admin(hub, "DELETE", "api/users/root")).status_code == 400
    assert _left(lab, "root")


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("state", [waiting, starting, running, stopping])
async def test_a_stopped_server_holds_and_waits_for_nothing(
    hub: Hub, lab: PoolLab, state: Any, server: str
):
    """Also one that only waits: who stops it leaves the queue."""
    async with state(hub, lab, server) as gate:
        answer = await hub.ask("ada", "DELETE", path_of(server))
        assert answer.status_code in (202, 204), answer.text
        gate.opened.set()
        await lab.until(lambda: not _left(lab), "nothing is ada's")
    assert not _lapsed(lab)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_stopped_server_without_a_gpu_keeps_its_offer(hub: Hub, lab: PoolLab, server: str):
    """The student is to come back for it: the next start takes it."""
    async with offered(hub, lab, server):
        await hub.stop("ada", server)
        await hub.start("ada", server, shape="7g.40gb")
    assert lab.held_by("ada", server).shape == "7g.40gb"
