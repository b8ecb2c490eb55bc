"""Long-polls and the event stream: both answer when something changes, and end with the service."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from tests.polling import until
from tests.unit.pool.conftest import World

from miglab_api.scopes import STAFF_SCOPE
from miglab_pool.applications import pool_page
from miglab_pool.applications.management_app import (
    MOST_STREAMS_OF_ONE,
    SnapshotJson,
    events,
    management_app,
)
from miglab_pool.applications.pool_page import stream_changes
from miglab_pool.applications.pool_runner import Notifier, PoolRunner
from miglab_pool.http.access.auth import PendingSignIns, SignIn, principal_from
from miglab_pool.http.access.principal import SPAWNER
from miglab_pool.leases import routes as ticket_routes
from miglab_pool.pool import Pool
from miglab_pool.worker.reconcile import probe_missing_holders

from .conftest import as_, enqueue, visiting
from .fakes import BOOK, OWNERS, SECRET, FakeTokens, person


async def run_until_parked(notifier: Notifier, task: asyncio.Task[Any]) -> None:
    """Let everything run until the task waits for the notifier."""
    async with asyncio.timeout(60):
        while not notifier.waiting:
            assert not task.done(), task
            await asyncio.sleep(0)


def poll(
    client: httpx.AsyncClient, ticket: int, token: str = SECRET
) -> asyncio.Task[httpx.Response]:
    path = f"/api/tickets/{ticket}?wait_s=20"
    return asyncio.create_task(client.get(path, headers=as_(token)))


async def test_a_poll_answers_when_the_position_changes(
    client: httpx.AsyncClient, runner: PoolRunner, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ticket moves from second to first, and the poll answers; asking attends it, unless it is
    staff who look.
    """
    monkeypatch.setattr(ticket_routes, "POSITION_REST_S", 0.0)
    first, ticket, asked_at = enqueue(world, "eve").id, enqueue(world).id, world.at
    world.pass_time(9.0)
    await client.get(f"/api/tickets/{ticket}", headers=as_("staff-token"))
    assert world.ledger.state.tickets[ticket].attended_at == asked_at
    polled = poll(client, ticket, "alice-token")
    await run_until_parked(runner.notifier, polled)
    await runner.decide(lambda pool: pool.tickets.cancel(first, "eve"))
    assert (await polled).json()["position"] == 1
    assert world.ledger.state.tickets[ticket].attended_at == world.at


async def test_a_position_is_told_with_rests_and_an_offer_at_once(
    client: httpx.AsyncClient, runner: PoolRunner, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that moves does not wake everybody in it each time; who is served hears it at once.

    While slices are made the next poll waits, and answers with the offer.
    """
    monkeypatch.setattr(ticket_routes, "POSITION_REST_S", 100.0)
    ahead = [enqueue(world, user).id for user in ("eve", "dan")]
    ticket = enqueue(world).id
    polled = poll(client, ticket)
    await run_until_parked(runner.notifier, polled)
    for number in ahead:
        await runner.decide(lambda pool: pool.tickets.cancel(number, "staff"))  # noqa: B023 - used now
        await run_until_parked(runner.notifier, polled)
    world.holders.present.clear()
    await runner.decide(lambda pool: probe_missing_holders(pool.worker))
    granted = await _answer_while_working(runner, polled)
    assert (granted["state"], granted["position"]) == ("waiting", None)
    offered = await _answer_while_working(runner, poll(client, ticket))
    assert offered["state"] == "offered"


async def _answer_while_working(runner: PoolRunner, polled: asyncio.Task[httpx.Response]) -> Any:
    """One job after another, until the poll is answered."""
    async with asyncio.timeout(60):
        while not polled.done():
            if runner.notifier.waiting:
                await runner.decide(_one_job)
            await asyncio.sleep(0)
    return (await polled).json()


def _one_job(pool: Pool) -> None:
    if job := pool.next_job():
        pool.perform(job)
    pool.turn()


async def test_a_poll_sleeps_through_other_changes(
    client: httpx.AsyncClient, runner: PoolRunner, world: World
) -> None:
    """It ends with its time, with the ticket's cancellation, and with the service.

    A change that is not about the ticket does not answer; without one the ticket is as it was.
    """
    ticket = enqueue(world).id
    answer = await client.get(f"/api/tickets/{ticket}?wait_s=0.01", headers=as_(SECRET))
    assert answer.json()["position"] == 1
    polled = poll(client, ticket)
    await run_until_parked(runner.notifier, polled)
    await runner.decide(lambda pool: pool.leases.extend(2, 60, "bob"))
    await run_until_parked(runner.notifier, polled)
    await client.delete(f"/api/tickets/{ticket}", headers=as_("alice-token"))
    assert (await polled).json()["state"] == "cancelled"
    polled = poll(client, enqueue(world).id)
    await run_until_parked(runner.notifier, polled)
    runner.notifier.close()
    assert (await polled).json()["state"] == "waiting"


def from_(token: str, app: FastAPI) -> Request:
    """A request for the events by whoever has this token."""
    headers = [(name.lower().encode(), value.encode()) for name, value in as_(token).items()]
    return Request({"type": "http", "method": "GET", "headers": headers, "app": app})


@pytest.fixture
def app(runner: PoolRunner, sign_in: SignIn) -> FastAPI:
    return management_app(runner, sign_in, default_course="everyone")


async def test_a_lost_role_hides_the_names(
    runner: PoolRunner, app: FastAPI, tokens: FakeTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are asked again while nothing happens: names vanish, a sign-out ends the stream."""
    monkeypatch.setattr("miglab_pool.applications.management_app.LONGEST_POLL_S", 0.001)
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


@pytest.mark.parametrize("is_page", [False, True], ids=["events", "live"])
async def test_events_follow_every_change(
    runner: PoolRunner, world: World, app: FastAPI, monkeypatch: pytest.MonkeyPatch, is_page: bool
) -> None:
    """One at once and after each change, with the pool or a number; the end with the service."""
    monkeypatch.setattr(pool_page, "REST_S", 0.0)
    bob, request = principal_from(OWNERS["bob-token"], BOOK), from_("bob-token", app)
    stream = stream_changes(request, bob, runner) if is_page else events(bob, runner, request)
    first = await anext(stream)
    assert first.event == "pool" and "alice" not in (first.raw_data or "")
    following = asyncio.ensure_future(anext(stream))
    await run_until_parked(runner.notifier, following)
    await runner.decide(lambda _: enqueue(world))
    second = await following
    if is_page:
        assert second.data == runner.notifier.version != first.data
    else:
        assert len(json.loads(second.raw_data)["waiting"]) == 1
    ending = asyncio.ensure_future(anext(stream, None))
    await run_until_parked(runner.notifier, ending)
    runner.notifier.close()
    assert await ending is None


async def test_who_signed_out_is_told_no_more(
    runner: PoolRunner, app: FastAPI, tokens: FakeTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's stream asks the hub before each event; its silence ends nothing."""
    for pause in ("REST_S", "NEWS_S"):
        monkeypatch.setattr(pool_page, pause, 0.0)
    monkeypatch.setitem(OWNERS, "token", person("ina"))
    stream = stream_changes(from_("token", app), SPAWNER, runner)
    for tokens.silent in (False, True):
        assert (await anext(stream)).event == "pool"
    tokens.silent = False
    monkeypatch.delitem(OWNERS, "token")
    assert await anext(stream, None) is None


# -- what one student can cost everybody else ------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/events", "/live"])
async def test_a_person_has_so_many_streams(runner: PoolRunner, app: FastAPI, path: str) -> None:
    """One more is refused, another person is served, and a closed one makes room."""
    async with visiting(app) as client:
        ask = {name: as_(f"{name}-token") for name in ("alice", "bob")}
        streams = [
            asyncio.create_task(client.get(path, headers=ask["alice"]))
            for _ in range(MOST_STREAMS_OF_ONE)
        ]
        await until(lambda: runner.notifier.waiting >= MOST_STREAMS_OF_ONE, "all her streams")
        refused = await client.get(path, headers=ask["alice"])
        assert (refused.status_code, refused.json()["reason"]) == (429, "too-many-streams")
        streams.append(asyncio.create_task(client.get(path, headers=ask["bob"])))
        await until(
            lambda: runner.notifier.waiting > MOST_STREAMS_OF_ONE, "bob's stream beside them"
        )
        runner.notifier.close()
        for answer in await asyncio.gather(*streams):
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert "event: pool" in answer.text
        assert (await client.get(path, headers=ask["alice"])).status_code == 200


async def test_a_view_is_written_once_for_each_version(
    runner: PoolRunner, pool: Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many streams of one person cost what one does; another person sees their own."""
    texts, looks, look = SnapshotJson(), [], pool.snapshot
    monkeypatch.setattr(pool, "snapshot", lambda: looks.append(1) or look())
    await asyncio.gather(*(runner.snapshot() for _ in range(50)))
    alice, bob = (principal_from(OWNERS[f"{name}-token"], BOOK) for name in ("alice", "bob"))
    first = await texts.of(runner, alice)
    again = await texts.of(runner, replace(alice, xsrf="another session"))
    assert again is first
    assert await texts.of(runner, bob) != first
    assert len(looks) == 1
    enqueue(world)
    assert await texts.of(runner, alice) is not first
    assert len(looks) == 2


def test_a_sign_in_that_nobody_ends_costs_nothing() -> None:
    """However often somebody begins: the browser keeps it, signed, in time, and for one use."""
    at = [0.0]
    signing = PendingSignIns(600, now=lambda: at[0])
    sign_ins = [signing.begin("verifier", "/services/pool/log") for _ in range(1000)]
    assert signing._served == {}
    state, cookie = sign_ins[0]
    pending = signing.find(state, cookie)
    assert pending is not None
    assert (pending.verifier, pending.next_url) == ("verifier", "/services/pool/log")
    assert signing.find(sign_ins[1][0], cookie) is None
    assert signing.find(state, "x" + cookie) is None
    signing.serve(state)
    assert signing.find(state, cookie) is None
    at[0] = 601.0
    assert signing.find(*sign_ins[1]) is None
