"""Long-polls and the event stream: both answer when something changes, and end with the service."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from miglab_api.tickets import TicketState
from miglab_pool.http import management_app, pool_routes
from miglab_pool.http.access.auth import STAFF_SCOPE, SignIn, principal_from
from miglab_pool.http.notifier import Notifier
from miglab_pool.http.pool_routes import events
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.queue import routes as ticket_routes

from .conftest import as_
from .fakes import BOOK, OWNERS, SECRET, FakePool, FakeTokens, person


async def parked(notifier: Notifier, task: asyncio.Task[Any]) -> None:
    """Let everything run until the task waits for the notifier."""
    async with asyncio.timeout(60):
        while not notifier.waiting:
            assert not task.done(), task
            await asyncio.sleep(0)


async def test_a_poll_answers_when_the_position_changes(
    client: httpx.AsyncClient, runner: PoolRunner, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticket moves from second to first, and the poll answers."""
    monkeypatch.setattr(ticket_routes, "POSITION_REST_S", 0.0)
    pool.request_of_alice()
    path = "/api/tickets/1?wait_s=20"
    poll = asyncio.create_task(client.get(path, headers=as_("alice-token")))
    await parked(runner.notifier, poll)
    await runner.decide(lambda _: pool.set_ticket(1, position=2))
    assert (await poll).json()["position"] == 2
    assert "attend" in pool.names()


async def test_a_position_is_told_with_rests_and_an_offer_at_once(
    client: httpx.AsyncClient, runner: PoolRunner, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that moves does not wake everybody in it each time; who is served hears it at once."""
    monkeypatch.setattr(ticket_routes, "POSITION_REST_S", 10.0)
    pool.request_of_alice()
    poll = asyncio.create_task(client.get("/api/tickets/1?wait_s=20", headers=as_(SECRET)))
    await parked(runner.notifier, poll)
    for position in (3, 2):
        await runner.decide(lambda _: pool.set_ticket(1, position=position))  # noqa: B023 - used now
        await parked(runner.notifier, poll)
    await runner.decide(lambda _: pool.set_ticket(1, state=TicketState.OFFERED, lease=1))
    assert (await poll).json()["state"] == "offered"


async def test_a_poll_sleeps_through_other_changes(
    client: httpx.AsyncClient, runner: PoolRunner, pool: FakePool
) -> None:
    """A change that is not about the ticket does not answer; its cancellation does."""
    pool.request_of_alice()
    poll = asyncio.create_task(client.get("/api/tickets/1?wait_s=20", headers=as_(SECRET)))
    await parked(runner.notifier, poll)
    await runner.decide(lambda _: pool.leases.extend(2, 60, "somebody"))
    await parked(runner.notifier, poll)
    await client.delete("/api/tickets/1", headers=as_("alice-token"))
    assert (await poll).json()["state"] == "cancelled"


async def test_a_poll_ends_with_its_time_and_with_the_service(
    client: httpx.AsyncClient, runner: PoolRunner, pool: FakePool
) -> None:
    """Without a change the ticket is answered as it is."""
    pool.request_of_alice()
    answer = await client.get("/api/tickets/1?wait_s=0.01", headers=as_(SECRET))
    assert answer.json()["position"] == 1
    poll = asyncio.create_task(client.get("/api/tickets/1?wait_s=20", headers=as_(SECRET)))
    await parked(runner.notifier, poll)
    runner.notifier.close()
    assert (await poll).json()["state"] == "waiting"


async def test_a_poll_by_staff_does_not_attend(client: httpx.AsyncClient, pool: FakePool) -> None:
    """Looking at somebody's ticket does not keep its place for them."""
    pool.request_of_alice()
    await client.get("/api/tickets/1", headers=as_("staff-token"))
    assert "attend" not in pool.names()


@pytest.mark.parametrize("wait_s", ["-1", "31", "nan", "inf", "soon"])
async def test_a_poll_is_bounded(client: httpx.AsyncClient, pool: FakePool, wait_s: str) -> None:
    """Nobody makes the service wait for ever."""
    pool.request_of_alice()
    answer = await client.get(f"/api/tickets/1?wait_s={wait_s}", headers=as_(SECRET))
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")


def from_(token: str, app: FastAPI) -> Request:
    """A request for the events by whoever has this token."""
    headers = [(name.lower().encode(), value.encode()) for name, value in as_(token).items()]
    return Request({"type": "http", "method": "GET", "headers": headers, "app": app})


@pytest.fixture
def app(runner: PoolRunner, sign_in: SignIn) -> FastAPI:
    return management_app.management_app(runner, sign_in, default_course="everyone")


async def test_a_lost_role_hides_the_names(
    runner: PoolRunner, app: FastAPI, tokens: FakeTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are asked again while nothing happens: names vanish, a sign-out ends the stream."""
    monkeypatch.setattr(pool_routes, "LONGEST_POLL_S", 0.001)
    monkeypatch.setitem(OWNERS, "token", person("ina", STAFF_SCOPE))
    async with asyncio.timeout(60):
        stream = events(principal_from(OWNERS["token"], BOOK), runner, from_("token", app))
        assert "alice" in (await anext(stream)).raw_data
        tokens.silent = True
        assert "alice" not in (await anext(stream)).raw_data
        tokens.silent = False
        assert "alice" in (await anext(stream)).raw_data
        monkeypatch.setitem(OWNERS, "token", person("ina"))
        assert "alice" not in (await anext(stream)).raw_data
        monkeypatch.delitem(OWNERS, "token")
        assert await anext(stream, None) is None


async def test_events_follow_every_change(runner: PoolRunner, pool: FakePool, app: FastAPI) -> None:
    """The stream says the pool as it is, again after each change, and ends with the service."""
    stream = events(principal_from(OWNERS["bob-token"], BOOK), runner, from_("bob-token", app))
    first = await anext(stream)
    assert first.event == "pool" and "alice" not in first.raw_data
    following = asyncio.ensure_future(anext(stream))
    await parked(runner.notifier, following)
    await runner.decide(lambda _: pool.request_of_alice())
    assert len(json.loads((await following).raw_data)["waiting"]) == 1
    ending = asyncio.ensure_future(anext(stream, None))
    await parked(runner.notifier, ending)
    runner.notifier.close()
    assert await ending is None


async def test_events_over_http(client: httpx.AsyncClient, runner: PoolRunner) -> None:
    """On the wire: the event's name and one line of JSON."""
    stream = asyncio.create_task(client.get("/api/events", headers=as_("bob-token")))
    await parked(runner.notifier, stream)
    runner.notifier.close()
    answer = await stream
    assert answer.headers["content-type"].startswith("text/event-stream")
    fields = dict(line.split(": ", 1) for line in answer.text.splitlines() if line)
    assert fields["event"] == "pool"
    assert json.loads(fields["data"])["gpus"][0]["index"] == 0


async def test_many_waiters_one_snapshot(runner: PoolRunner, pool: FakePool) -> None:
    """However many ask, the pool is looked at once for each of its versions."""
    await asyncio.gather(*(runner.snapshot() for _ in range(50)))
    assert pool.calls == [("snapshot",)]
    pool.version += 1
    await runner.snapshot()
    assert len(pool.calls) == 2


async def test_a_poll_waits_while_slices_are_made(
    client: httpx.AsyncClient, runner: PoolRunner, pool: FakePool
) -> None:
    """Between the line and the offer the poll waits too, and answers with the offer."""
    pool.request_of_alice()
    pool.set_ticket(1, position=None)
    pool.shows_waiting = False
    poll = asyncio.create_task(client.get("/api/tickets/1?wait_s=20", headers=as_(SECRET)))
    await parked(runner.notifier, poll)
    await runner.decide(lambda _: pool.set_ticket(1, state=TicketState.OFFERED, lease=1))
    assert (await poll).json()["state"] == "offered"
