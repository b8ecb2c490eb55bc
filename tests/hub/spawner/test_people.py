"""Users are deleted, renamed and their servers stopped, whatever the servers do just then."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm
from sqlalchemy import select
from traitlets.config import Config

from miglab_api.scopes import LEASE_SCOPE
from miglab_api.tickets import TicketState
from miglab_pool.ledger import tables
from miglab_spawner import hub_pages, hub_users
from miglab_spawner.refusals import SpawnException

from .lab import PoolLab

Hub = Any
SERVERS = ["", "lab2"]


@pytest.fixture
def hub_config(hub_config: Config) -> Config:
    """Students' servers know where the pool is, so that they can keep their place."""
    hub_config.MIGLocalSpawner.student_api_url = "http://127.0.0.1:9"
    return hub_config


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
            await_end = hub_users.UserHandler._await_end

            async def open_then_wait(*args: Any) -> None:
                gate.opened.set()
                await await_end(*args)

            monkeypatch.setattr(hub_users.UserHandler, "_await_end", open_then_wait)
        answer = await hub.ask_as_admin("DELETE", "api/users/ada")
        assert answer.status_code == 204, answer.text
        assert orm.User.find(hub.app.db, "ada") is None
    await lab.until(lambda: not _left(lab), "nothing is ada's")
    assert not _lapsed(lab)


async def test_a_user_who_may_not_delete_ends_nobodys_wait(hub: Hub, lab: PoolLab):
    """The hub's rights are asked before anything is ended; admins cannot delete themselves."""
    async with waiting(hub, lab, ""):
        assert (await hub.ask("bo", "DELETE", "api/users/ada")).status_code == 403
        assert _waits(hub, "")
    await hub.ask_as_admin("POST", "api/users/root/server", json={"shape": "7g.40gb"})
    await lab.until(lambda: _left(lab, "root"), "the admin waits")
    assert (await hub.ask_as_admin("DELETE", "api/users/root")).status_code == 400
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


@pytest.mark.parametrize("state", [waiting, offered, running])
async def test_a_removed_server_holds_and_waits_for_nothing(hub: Hub, lab: PoolLab, state: Any):
    """A named server that is deleted for good gives its offer up, too."""
    async with state(hub, lab, "lab2"):
        answer = await hub.ask("ada", "DELETE", path_of("lab2"), json={"remove": True})
        assert answer.status_code in (202, 204), answer.text
        await lab.until(lambda: not _left(lab), "nothing is ada's")
        await lab.until(lambda: "lab2" not in hub.user("ada").orm_spawners, "it is removed")
    assert not _lapsed(lab)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_stopped_server_without_a_gpu_keeps_its_offer(hub: Hub, lab: PoolLab, server: str):
    """The student is to come back for it: the next start takes it."""
    async with offered(hub, lab, server):
        await hub.stop("ada", server)
        await hub.start("ada", server, shape="7g.40gb")
    assert lab.held_by("ada", server).shape == "7g.40gb"


# -- renamed ---------------------------------------------------------------------------------------


async def scopes_of(hub: Hub, token: str) -> list[str]:
    """What a token may do."""
    answer = await hub.http.get("api/user", headers={"Authorization": f"token {token}"})
    return list(answer.json()["scopes"])


async def move(hub: Hub, token: str, server: str) -> None:
    """What the server asks for, which knows its user by the name of its start."""
    headers = {"Authorization": f"token {token}"}
    answer = await hub.http.post(f"api/miglab/move/ada/{server}", headers=headers)
    assert answer.status_code == 202, answer.text
    await asyncio.gather(*(move.task for move in hub_pages._moves.values()))


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("state", STATES)
async def test_a_rename_moves_nothing_and_loses_nothing(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch, state: Any, server: str
):
    """Position, offer, lease, token and home are the same person's, under the new name."""
    monkeypatch.setattr(hub_pages, "ANSWER_FIRST_S", 0.0)
    async with state(hub, lab, server) as gate:
        numbers, spawner = _numbers(lab, "ada"), hub.spawner("ada", server)
        token, home = spawner.api_token, spawner.home
        await hub.rename("ada", "lovelace")
        assert _numbers(lab, "lovelace") == numbers and not _numbers(lab, "ada")
        if state is not stopping:
            assert f"{LEASE_SCOPE}!server=lovelace/{server}" in await scopes_of(hub, token)
        gate.opened.set()
        if state is waiting:
            await hub.stop("bo")
        elif state is offered:
            await move(hub, token, server)
        elif state is stopping:
            await lab.until(lambda: not _left(lab, "lovelace"), "it has stopped")
            await hub.start("lovelace", server, shape="1g.5gb")
        await hub.settled("lovelace", server)
        assert lab.held_by("lovelace", server).state == "running"
        assert Path((await hub.environment("lovelace", server))["HOME"]) == home
        await hub.stop("lovelace", server)
    await lab.until(lambda: not _left(lab, "lovelace"), "nothing is left")
    assert not _lapsed(lab)


async def test_a_spawner_that_knows_people_by_name_refuses_a_rename(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    """With its reason; what does not change the name is JupyterHub's business, as ever."""
    hub.user("ada")
    spawner = hub.spawner("ada")
    monkeypatch.setattr(spawner, "rename_refusal", lambda: "Stop the server first.")
    answer = await hub.ask_as_admin("PATCH", "api/users/ada", json={"name": "lovelace"})
    assert (answer.status_code, answer.json()["message"]) == (409, "Stop the server first.")
    assert orm.User.find(hub.app.db, "lovelace") is None
    for body, status in [({"admin": False}, 200), ([], 400)]:
        answer = await hub.ask_as_admin("PATCH", "api/users/ada", json=body)
        assert answer.status_code == status
    monkeypatch.setattr(spawner, "rename_refusal", lambda: "")
    await hub.rename("ada", "lovelace")


def _numbers(lab: PoolLab, name: str) -> list[tuple[str, int]]:
    view = lab.pool.view
    tickets = [("ticket", row.id) for row in view.tickets.values() if row.user == name]
    return [*tickets, *(("lease", row.id) for row in view.leases.values() if row.user == name)]


async def test_somebody_else_with_the_old_name_is_somebody_else(hub: Hub, lab: PoolLab):
    """With a home, a lease and a history of their own, whoever was called so before.

    Until the renamed one's server has stopped, JupyterHub can start no server of the same address.
    """
    await hub.start("ada", shape="1g.5gb")
    home = hub.spawner("ada").home
    await hub.rename("ada", "lovelace")
    environment = await hub.start("ada", "lab2", shape="1g.5gb")
    assert Path(environment["HOME"]) != home
    assert {(lease.user, lease.server) for lease in lab.pool.leases.live()} == {
        ("lovelace", ""),
        ("ada", "lab2"),
    }
    await hub.stop("lovelace")
    await lab.until(lambda: lab.lease_of("lovelace") is None, "hers alone is released")
    assert lab.held_by("ada", "lab2").state == "running"
    assert Path((await hub.start("lovelace", shape="cpu"))["HOME"]) == home


async def test_a_deleted_account_leaves_nothing_to_the_next_of_its_name(hub: Hub, lab: PoolLab):
    """Though SQLite gives its number again: home, usage and history are of who was there before."""
    await hub.ask_as_admin("GET", "api/users")  # so that the admin's account is not the newest
    await hub.start("ada", shape="1g.5gb")
    spawner = hub.spawner("ada")
    home, number, user_id = spawner.home, spawner.user.id, spawner.user_id
    (home / "diary.txt").write_text("mine")
    await hub.ask_as_admin("DELETE", "api/users/ada")
    again = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    assert hub.spawner("ada").user_id != user_id
    assert hub.spawner("ada").home != home and not (hub.spawner("ada").home / "diary.txt").exists()
    users = lab.ledger.read(select(tables.leases.c.user).order_by(tables.leases.c.id))
    assert [row["user"] for row in users] == [f"ada ({user_id})", "ada"]
    assert again.id == number


async def test_a_home_of_before_is_found_again(hub: Hub, lab: PoolLab, tmp_path: Path):
    """One that lies there under the user's name, kept by no file of names; also after a rename."""
    (tmp_path / "homes" / "ada").mkdir(parents=True)
    (tmp_path / "homes" / "ada" / "diary.txt").write_text("mine")
    await hub.start("ada", shape="cpu")
    assert (hub.spawner("ada").home / "diary.txt").exists()
    await hub.stop("ada")
    await hub.rename("ada", "lovelace")
    environment = await hub.start("lovelace", "lab2", shape="cpu")
    assert (Path(environment["HOME"]) / "diary.txt").exists()


async def test_without_the_names_of_homes_nobody_gets_an_empty_one(
    hub: Hub, lab: PoolLab, tmp_path: Path
):
    """The start is refused in words, and the slice is given back."""
    (tmp_path / "miglab-homes.json").write_text("damaged")
    refused = await hub.refused("ada", shape="1g.5gb")
    assert refused.reason == "home-unknown" and "They are kept" in refused.jupyterhub_message
    await lab.until_empty()
    assert not (tmp_path / "homes").exists()


# -- taken out of the course -----------------------------------------------------------------------


async def test_who_is_taken_out_of_the_course_while_waiting_gets_no_slice(hub: Hub, lab: PoolLab):
    """Also if the slice is offered at that very moment; the student reads why."""
    hub.user("ada", ("vision",))
    await hub.start("bo", shape="7g.40gb")
    await hub.begin("ada", shape="3g.20gb", course="vision")
    await lab.until(lambda: _waits(hub, ""), "ada waits")
    start = hub.spawner("ada")._spawn_future
    hub.user("ada", ("text",))
    await hub.stop("bo")
    with pytest.raises(SpawnException, match="You are not in the course vision"):
        await start
    assert not _left(lab) and not _lapsed(lab)
    assert not [row for row in lab.ledger.read(select(tables.leases)) if row["attached_at"]][1:]


async def test_who_is_taken_out_of_the_course_keeps_what_they_hold(hub: Hub, lab: PoolLab):
    """Until it ends by the course's rules; the next start is refused."""
    hub.user("ada", ("vision",))
    await hub.start("ada", shape="3g.20gb", course="vision")
    lease = lab.held_by("ada")
    hub.user("ada", ("text",))
    await hub.spawner("ada").poll_and_notify()
    assert lab.held_by("ada").guaranteed_until == lease.guaranteed_until
    await hub.stop("ada")
    refused = await hub.refused("ada", shape="3g.20gb", course="vision")
    assert refused.reason == "not-in-course"
