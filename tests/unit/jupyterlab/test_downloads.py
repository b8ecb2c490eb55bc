"""What of a student's server is compressed, and what browsers may keep."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_core.paths import jupyter_path
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler, StaticFileHandler
from tornado.websocket import WebSocketHandler, websocket_connect

from miglab_jupyterlab.downloads import (
    LARGEST_ANSWER_BYTES,
    hashed_extensions,
    reduce_downloads,
    without_disabled,
)

BASE = "/user/ada/lab%202/"
LONG = b"const answer = 42;\n" * 10_000
BROWSER = {"Accept-Encoding": "gzip, deflate, br"}


class AnswerOfLength(RequestHandler):
    def get(self, count: str) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish("x" * int(count))


class EndlessEvents(RequestHandler):
    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.write("data: one\n\n")
        await self.flush()
        await asyncio.Event().wait()


class EchoSocket(WebSocketHandler):
    def on_message(self, message: str | bytes) -> None:
        self.write_message(message)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    (tmp_path / "core.js").write_bytes(LONG)
    files = {"path": str(tmp_path)}
    routes: list[Any] = [
        (f"{BASE}static/(.*)", StaticFileHandler, files),
        (f"{BASE}lab/extensions/(.*)", StaticFileHandler, files),
        (f"{BASE}files/(.*)", StaticFileHandler, files),
        (f"{BASE}lab/api/settings/(.*)", AnswerOfLength),
        (f"{BASE}lab/tree/(.*)", AnswerOfLength),
        (f"{BASE}lab/api/events", EndlessEvents),
        (f"{BASE}lab/api/watch", EchoSocket),
    ]
    app = Application(routes)
    reduce_downloads(app, BASE)
    socket, port = bind_unused_port()
    server = HTTPServer(app)
    server.add_socket(socket)
    yield port
    server.stop()
    await server.close_all_connections()


@pytest.fixture
async def client(port: int) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://127.0.0.1:{port}{BASE}"
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER) as http:
        yield http


@pytest.mark.parametrize(
    ("path", "is_compressed"),
    [
        ("static/core.js", True),
        ("lab/extensions/core.js", True),
        ("files/core.js", False),
        ("lab/api/settings/2000", True),
        (f"lab/api/settings/{LARGEST_ANSWER_BYTES}", True),
        (f"lab/api/settings/{LARGEST_ANSWER_BYTES + 1}", False),
        ("lab/tree/2000", False),
    ],
)
async def test_what_is_compressed(
    client: httpx.AsyncClient, path: str, is_compressed: bool
) -> None:
    """Shared files and short answers; not a student's files, and not the page with its token."""
    answer = await client.get(path)
    assert answer.status_code == 200
    assert ("content-encoding" in answer.headers) is is_compressed
    assert answer.content == LONG or set(answer.text) == {"x"}


async def test_a_part_of_a_file_is_one(client: httpx.AsyncClient) -> None:
    """A range counts the bytes of the file, not of its compression."""
    answer = await client.get("static/core.js", headers={"Range": "bytes=6-11"})
    assert (answer.status_code, answer.content) == (206, b"answer")
    assert "content-encoding" not in answer.headers


async def test_events_and_messages_come_at_once(client: httpx.AsyncClient, port: int) -> None:
    """A stream is not kept in a buffer, wherever it is; a websocket works as before."""
    async with asyncio.timeout(20), client.stream("GET", "lab/api/events") as events:
        assert await anext(events.aiter_lines()) == "data: one"
    tab = await websocket_connect(f"ws://127.0.0.1:{port}{BASE}lab/api/watch")
    await tab.write_message("hello")
    assert await tab.read_message() == "hello"
    tab.close()


def test_only_hashed_names_are_kept_for_good() -> None:
    """JupyterLab's builder makes them; ours change under their names."""
    names = set(hashed_extensions(jupyter_path("labextensions")))
    assert "@jupyter-widgets/jupyterlab-manager" in names
    assert "@miglab/jupyterlab" not in names
    app = Application()
    app.settings["static_immutable_cache"] = ["/kept/"]
    reduce_downloads(app, BASE)
    kept = app.settings["static_immutable_cache"]
    assert "/kept/" in kept
    assert f"{BASE}lab/extensions/@jupyter-widgets/jupyterlab-manager/static/" in kept


def test_a_disabled_extension_is_not_downloaded() -> None:
    """One that is disabled as a whole; another hook has its say first."""
    page_config = {
        "disabledExtensions": ["jupyterlab-jupytext", "other:plugin"],
        "federated_extensions": [{"name": "jupyterlab-jupytext"}, {"name": "other"}],
    }
    change = without_disabled(lambda _handler, config: {**config, "hubUser": "ada"})
    changed = change(None, page_config)
    assert changed["federated_extensions"] == [{"name": "other"}]
    assert changed["hubUser"] == "ada"
    assert without_disabled(None)(None, {}) == {"federated_extensions": []}
