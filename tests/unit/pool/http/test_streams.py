"""Event streams and sign-ins: what one student can cost everybody else."""

import asyncio
from dataclasses import replace

import httpx
import pytest
from tests.polling import until
from tests.unit.pool.conftest import World

from miglab_pool.http.access.auth import PendingSignIns, SignIn, principal_from
from miglab_pool.http.management_app import management_app
from miglab_pool.http.pool_routes import A_PERSON, SnapshotTexts
from miglab_pool.http.pool_runner import PoolRunner

from .conftest import as_, queued
from .fakes import ACCESS, BOOK, OWNERS


@pytest.mark.parametrize("path", ["/api/events", "/live"])
async def test_a_person_has_so_many_streams(runner: PoolRunner, sign_in: SignIn, path: str) -> None:
    """One more is refused, another person is served, and a closed one makes room."""
    app = management_app(runner, sign_in, default_course="everyone")
    transport = httpx.ASGITransport(app)
    url = f"http://lab{ACCESS.prefix}"
    async with httpx.AsyncClient(transport=transport, base_url=url) as client:
        ask = {name: as_(f"{name}-token") for name in ("alice", "bob")}
        streams = [
            asyncio.create_task(client.get(path, headers=ask["alice"])) for _ in range(A_PERSON)
        ]
        await until(lambda: runner.notifier.waiting >= A_PERSON, "all her streams")
        refused = await client.get(path, headers=ask["alice"])
        assert (refused.status_code, refused.json()["reason"]) == (429, "too-many-streams")
        streams.append(asyncio.create_task(client.get(path, headers=ask["bob"])))
        await until(lambda: runner.notifier.waiting > A_PERSON, "bob's stream beside them")
        runner.notifier.close()
        assert {answer.status_code for answer in await asyncio.gather(*streams)} == {200}
        assert (await client.get(path, headers=ask["alice"])).status_code == 200


async def test_a_view_is_written_once_for_each_version(runner: PoolRunner, world: World) -> None:
    """Many streams of one person cost what one does; another person sees their own."""
    texts = SnapshotTexts()
    alice, bob = (principal_from(OWNERS[f"{name}-token"], BOOK) for name in ("alice", "bob"))
    first = await texts.of(runner, alice)
    again = await texts.of(runner, replace(alice, xsrf="another session"))
    assert again is first
    assert await texts.of(runner, bob) != first
    queued(world)
    assert await texts.of(runner, alice) is not first


def test_a_sign_in_that_nobody_ends_costs_nothing() -> None:
    """However often somebody begins: the browser keeps it, signed, in time, and for one use."""
    at = [0.0]
    signing = PendingSignIns(600, now=lambda: at[0])
    begun = [signing.begin("verifier", "/services/pool/log") for _ in range(1000)]
    assert signing._served == {}
    state, cookie = begun[0]
    pending = signing.find(state, cookie)
    assert pending is not None
    assert (pending.verifier, pending.next_url) == ("verifier", "/services/pool/log")
    assert signing.find(begun[1][0], cookie) is None
    assert signing.find(state, "x" + cookie) is None
    signing.serve(state, pending)
    assert signing.find(state, cookie) is None
    at[0] = 600.0
    assert signing.find(*begun[1]) is None
