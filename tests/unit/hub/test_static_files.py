"""The hub's static files as browsers get them: compressed once, and without an icon font."""

import gzip
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from jupyterhub.handlers.static import CacheControlStaticFilesHandler
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application

from miglab_hub import static_files
from miglab_hub.static_files import ICONS, HubStaticFiles

SHIPPED = Path(sys.prefix) / "share" / "jupyterhub"
LONG = b"main { color: red; }\n" * 100
IMPORTS = b'@import"../components/@fortawesome/css/solid.css";'
BROWSER = {"Accept-Encoding": "gzip, deflate, br"}
PLAIN = {"Accept-Encoding": "identity"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "page.css").write_bytes(IMPORTS * 2 + LONG)
    (tmp_path / "page.js").write_bytes(LONG)
    (tmp_path / "short.js").write_bytes(b"go()")
    (tmp_path / "photo.png").write_bytes(LONG)
    return tmp_path


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    socket, port = bind_unused_port()
    handler = {"static_handler_class": HubStaticFiles}
    server = HTTPServer(Application(static_path=str(folder), **handler))
    server.add_socket(socket)
    url = f"http://127.0.0.1:{port}/static/"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        yield http
    server.stop()
    await server.close_all_connections()


async def test_a_browser_gets_less_and_the_same(client: httpx.AsyncClient) -> None:
    """A stylesheet in gzip is what one without it is; caches keep both apart."""
    compressed = await client.get("page.css", headers=BROWSER)
    plain = await client.get("page.css", headers=PLAIN)
    assert compressed.headers["content-encoding"] == "gzip"
    assert int(compressed.headers["content-length"]) < len(LONG) < len(plain.content)
    assert compressed.text == plain.text
    for answer in (compressed, plain):
        assert answer.headers["content-type"] == "text/css"
        assert answer.headers["vary"] == "Accept-Encoding"


async def test_the_icons_come_without_their_font(client: httpx.AsyncClient) -> None:
    """In place of the font's stylesheets stands what draws the icons; the rest stays."""
    answer = await client.get("page.css", headers=BROWSER)
    assert answer.content == ICONS.read_bytes() + LONG


@pytest.mark.parametrize("name", ["short.js", "photo.png"])
async def test_what_would_not_shrink_goes_as_it_is(client: httpx.AsyncClient, name: str) -> None:
    """Short files, and those that are compressed already."""
    assert "content-encoding" not in (await client.get(name, headers=BROWSER)).headers


async def test_a_part_is_a_part_of_the_file(client: httpx.AsyncClient) -> None:
    """A range counts the bytes of the file, not of its compression."""
    answer = await client.get("page.js", headers={**BROWSER, "Range": "bytes=5-9"})
    assert (answer.status_code, answer.content) == (206, LONG[5:10])
    assert "content-encoding" not in answer.headers


async def test_a_head_tells_what_a_get_would(client: httpx.AsyncClient) -> None:
    """The same length and encoding; nothing follows, and a browser that has the file hears so."""
    full, head = [await client.request(way, "page.js", headers=BROWSER) for way in ("GET", "HEAD")]
    for name in ("content-length", "content-encoding", "content-type"):
        assert head.headers[name] == full.headers[name]
    assert head.content == b""
    cached_headers = {**BROWSER, "If-Modified-Since": full.headers["last-modified"]}
    assert (await client.get("page.js", headers=cached_headers)).status_code == 304


async def test_each_file_is_compressed_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask, the hub's thread pays for one."""
    compressions: list[bytes] = []
    really_compress = gzip.compress

    def compress(content: bytes, **options: int) -> bytes:
        compressions.append(content)
        return really_compress(content, **options)

    monkeypatch.setattr(static_files.gzip, "compress", compress)
    for _ in range(3):
        assert (await client.get("page.js", headers=BROWSER)).content == LONG
    assert len(compressions) == 1


async def test_no_way_leads_out_of_the_folder(client: httpx.AsyncClient, folder: Path) -> None:
    """Nor to a file that does not exist, compressed or not."""
    (folder / "outside.js").symlink_to("/etc/passwd")
    for path in ("outside.js", "%2e%2e/secret.js", "page.js:gzip", "none.js"):
        assert (await client.get(path, headers=BROWSER)).status_code in (403, 404)


def test_an_address_changes_with_the_icons(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser keeps a stylesheet for ten years: its version is of what is sent."""
    settings = {"static_path": str(folder)}
    versions = set()
    for icons in (b".fa { color: red; }", b".fa { color: blue; }"):
        (folder / "icons.css").write_bytes(icons)
        monkeypatch.setattr(static_files, "ICONS", folder / "icons.css")
        HubStaticFiles.reset()
        versions.add(HubStaticFiles.make_static_url(settings, "page.css"))
    assert len(versions) == 2
    HubStaticFiles.reset()


def test_every_icon_of_jupyterhub_is_drawn() -> None:
    """JupyterHub's stylesheet still names the font as we know it, and its pages no other icon."""
    stylesheet = SHIPPED / "static/css/style.min.css"
    (content,) = HubStaticFiles.get_content(str(stylesheet))
    assert b"@fortawesome" in stylesheet.read_bytes() and b"@fortawesome" not in content
    pages = [*(SHIPPED / "templates").glob("*.html"), SHIPPED / "static/js/admin-react.js"]
    names = {
        name
        for page in pages
        for words in re.findall(r'"fa (fa-[\w -]+)"', page.read_text(encoding="utf-8"))
        for name in words.split()
    }
    assert {"fa-eye", "fa-caret-down"} <= names
    icons_css = ICONS.read_text(encoding="utf-8")
    assert [name for name in sorted(names - {"fa-fw"}) if f".{name} " not in icons_css] == []


def test_it_is_still_jupyterhubs_handler() -> None:
    """What JupyterHub says of caching holds."""
    assert issubclass(HubStaticFiles, CacheControlStaticFilesHandler)
