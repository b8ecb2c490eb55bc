"""Static files that are compressed before anybody asks, served by a real Jupyter Server."""

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from jupyter_server.base.handlers import FileFindHandler
from jupyter_server.serverapp import ServerApp
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from miglab_jupyterlab.downloads import reduce_downloads
from miglab_jupyterlab.prepared import is_prepared, prepare

BASE = "/user/ada/lab%202/"
LONG = b"const answer = 42;\n" * 1000
BROWSER = {"Accept-Encoding": "gzip, deflate, br"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files in which one can see where they come from: the prepared one says something else."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "core.js").write_bytes(LONG)
    (folder / "short.js").write_bytes(b"go()")
    (folder / "font.woff2").write_bytes(LONG)
    prepare(folder)
    stamp = (folder / "core.js").stat().st_mtime_ns
    (folder / "core.js.gz").write_bytes(gzip.compress(LONG + b"// prepared"))
    os.utime(folder / "core.js.gz", ns=(stamp, stamp))
    return folder


@pytest.fixture
async def client(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("JUPYTER_CONFIG_PATH", raising=False)
    monkeypatch.setattr(FileFindHandler, "_static_paths", {})
    app = ServerApp(
        base_url=BASE, root_dir=str(tmp_path), extra_static_paths=[str(folder)],
        jpserver_extensions={}, open_browser=False, allow_root=True, log_level="ERROR",
    )  # fmt: skip
    app.initialize(argv=[], new_httpserver=False)
    reduce_downloads(app.web_app, BASE)
    socket, port = bind_unused_port()
    server = HTTPServer(app.web_app)
    server.add_socket(socket)
    url = f"http://127.0.0.1:{port}{BASE}static/"
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BROWSER) as http:
        yield http
    server.stop()
    await server.close_all_connections()
    ServerApp.clear_instance()


def test_what_shrinks_is_prepared(folder: Path) -> None:
    """Neither short files nor those that are compressed already; a second time changes nothing."""
    prepared = {"core.js.gz"}
    assert {path.name for path in folder.glob("*.gz")} == prepared
    prepare(folder)
    assert {path.name for path in folder.iterdir()} == prepared | {
        "core.js", "short.js", "font.woff2",
    }  # fmt: skip
    assert gzip.decompress((folder / "core.js.gz").read_bytes()) == LONG


async def test_the_prepared_file_is_sent(client: httpx.AsyncClient) -> None:
    """With the file's own type, and by HEAD the same; caches keep it apart from the plain one."""
    got, head = [await client.request(way, "core.js") for way in ("GET", "HEAD")]
    plain = await client.get("core.js", headers={"Accept-Encoding": "identity"})
    assert got.content == LONG + b"// prepared"
    for answer in (got, head):
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"] == plain.headers["content-type"]
        assert answer.headers["vary"] == "Accept-Encoding"
        assert int(answer.headers["content-length"]) < 200
    known = {"If-Modified-Since": got.headers["last-modified"]}
    assert (await client.get("core.js", headers=known)).status_code == 304


async def test_whoever_takes_no_gzip_gets_the_file(client: httpx.AsyncClient) -> None:
    """And who wants a part gets a part of the file."""
    plain = await client.get("core.js", headers={"Accept-Encoding": "identity"})
    assert (plain.content, plain.headers["content-length"]) == (LONG, str(len(LONG)))
    part = await client.get("core.js", headers={"Range": "bytes=6-11"})
    assert (part.status_code, part.content) == (206, b"answer")


async def test_a_file_that_has_changed_is_not_what_was_prepared(
    client: httpx.AsyncClient, folder: Path
) -> None:
    """As after an upgrade: it is compressed when it is asked for."""
    os.utime(folder / "core.js", ns=(10**9, 10**9))
    assert not is_prepared(str(folder / "core.js"))
    answer = await client.get("core.js")
    assert (answer.headers["content-encoding"], answer.content) == ("gzip", LONG)


async def test_no_file_is_no_file(client: httpx.AsyncClient, folder: Path) -> None:
    """What was prepared of one that has gone does not stand in for it."""
    (folder / "core.js").rename(folder / "gone.js")
    assert (await client.get("core.js")).status_code == 404
