"""The service on an origin of its own: where it sends browsers, and what its cookies are."""

from collections.abc import AsyncIterator
from dataclasses import replace
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.unit.pool.http.fakes import ACCESS, BOOK, PREFIX, SECRET, FakeTokens

from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.management_app import management_app
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.pool import Pool

HUB, OWN = "https://lab.test", "https://pool--service.lab.test"


@pytest.fixture
async def client(pool: Pool) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at the service of a lab with per-user domains."""
    access = replace(ACCESS, hub_origin=HUB, origin=OWN)
    runner = PoolRunner(pool, Metrics())
    sign_in = SignIn(access, SECRET, BOOK, FakeTokens(access))
    app = management_app(runner, sign_in, default_course="everyone", notices=())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"{OWN}{PREFIX}") as client:
        yield client
    await runner.stop()


async def test_sign_in_goes_to_the_hubs_origin_and_back_to_ours(client: httpx.AsyncClient) -> None:
    """Both addresses are absolute: a relative one would stay on the host it is read on."""
    answer = await client.get("/")
    where = urlsplit(answer.headers["location"])
    assert f"{where.scheme}://{where.netloc}" == HUB
    assert parse_qs(where.query)["redirect_uri"] == [f"{OWN}{PREFIX}/oauth_callback"]


async def test_cookies_are_bound_to_the_host(client: httpx.AsyncClient) -> None:
    """What `__Host-` demands, at sign-in and when the state's cookie is deleted after it."""
    begun = await client.get("/")
    (state,) = parse_qs(urlsplit(begun.headers["location"]).query)["state"]
    done = await client.get("/oauth_callback", params={"state": state, "code": "alice-token"})
    assert done.status_code == 303
    for text in (*begun.headers.get_list("set-cookie"), *done.headers.get_list("set-cookie")):
        ((name, cookie),) = SimpleCookie(text).items()
        assert name.startswith("__Host-service-pool-")
        assert (cookie["path"], cookie["secure"], cookie["domain"]) == ("/", True, "")
    names = [cookie.name for cookie in client.cookies.jar]
    assert names == ["__Host-service-pool-session"]


async def test_links_to_the_hub_leave_our_host(client: httpx.AsyncClient) -> None:
    """On our host there is no hub."""
    answer = await client.get("/oauth_callback", params={"state": "forged", "code": "x"})
    assert f'href="{HUB}/hub/home"' in answer.text
