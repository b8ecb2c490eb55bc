"""Where the hub is, by its own word; nothing else is believed."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from miglab_pool.http.access.hub_address import BelowBaseUrl, HubAddress
from miglab_pool.http.access.hub_tokens import HubAccess

AT_ROOT = HubAccess("http://hub:8002/hub/api", "/hub/", "/services/pool", "pool", "token")
AT_JUPYTER = AT_ROOT.below("/jupyter/")


def redirect(location: str) -> httpx.Response:
    return httpx.Response(302, headers={"Location": location})


def test_another_path_moves_everything() -> None:
    """The hub's API and pages, and the service's own pages; and back again."""
    assert AT_JUPYTER.api_url == "http://hub:8002/jupyter/hub/api"
    assert AT_JUPYTER.hub_prefix == "/jupyter/hub/"
    assert AT_JUPYTER.prefix == "/jupyter/services/pool"
    assert AT_JUPYTER.below("/") == AT_ROOT


@pytest.mark.parametrize(
    ("answer", "access"),
    [
        (redirect("/hub/"), AT_ROOT),
        (redirect("/jupyter/hub/"), AT_JUPYTER),
        (redirect("https://hub.example.edu/jupyter/hub/"), AT_JUPYTER),
        (redirect("/login?next=/"), AT_ROOT),
        (httpx.Response(200, text="<h1>It works!</h1>"), AT_ROOT),
        (httpx.ConnectError("refused"), AT_ROOT),
    ],
    ids=["root", "path", "domain", "login", "page", "silent"],
)
async def test_the_hub_says_where_it_is(
    answer: httpx.Response | Exception, access: HubAccess, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has to know is told of a change, once; the log is told of an odd answer, once."""
    moved: list[HubAccess] = []

    def hub(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://hub:8002/"
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = httpx.AsyncClient(transport=httpx.MockTransport(hub), base_url=AT_ROOT.api_url)
    address = HubAddress(client, AT_ROOT, [moved.append])
    for _ in range(2):
        await address.ask()
    assert moved == ([access] if access is not AT_ROOT else [])
    assert client.base_url == httpx.URL(f"{access.api_url}/")
    assert caplog.text.count("was answered with") == int(
        isinstance(answer, httpx.Response)
        and not answer.headers.get("Location", "").endswith("hub/")
    )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/services/pool/page", 200),
        ("/jupyter/services/pool/page", 200),
        ("/elsewhere/services/pool/page", 404),
        ("/jupyterx/services/pool/page", 404),
    ],
)
async def test_routes_answer_with_the_path_and_without(path: str, status: int) -> None:
    """Of an application that knows only its own; a page is told the path that it was asked by."""

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    app = Starlette(routes=[Route("/services/pool/page", page)])
    transport = httpx.ASGITransport(BelowBaseUrl(app, lambda: AT_JUPYTER))
    async with httpx.AsyncClient(transport=transport, base_url="http://pool") as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert status != 200 or answer.text == path
