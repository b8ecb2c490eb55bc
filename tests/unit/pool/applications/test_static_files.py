"""The pages' static files are small and kept; nothing that has a secret in it is compressed."""

import re
from pathlib import Path

import httpx

import miglab_api
from miglab_pool.http.pages import frame
from miglab_pool.http.pages.static_files import static_files
from miglab_slurm.service import page

from .conftest import as_

BROWSER = {"Accept-Encoding": "gzip, deflate, br"}


async def test_a_static_file_is_compressed_and_kept(client: httpx.AsyncClient) -> None:
    """A browser that has it asks whether it has changed, and downloads nothing."""
    for name in ("frame.css", "palette.css", "pool.js"):
        answer = await client.get(f"/static/{name}", headers=BROWSER)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        known = {**BROWSER, "If-None-Match": answer.headers["etag"]}
        again = await client.get(f"/static/{name}", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["cache-control"] == "no-cache"


async def test_what_a_script_imports_is_served_in_every_lab() -> None:
    """On Slurm, too, whose page has scripts of its own: an import that is missing ends a script."""
    web = Path(miglab_api.__file__).with_name("web")
    folders = (frame.SERVICE / "static", web, cluster_page_folder())
    served = {file.name: file for folder in folders for file in folder.glob("*.js")}
    imported = {
        name
        for file in served.values()
        for name in re.findall(r'(?:from|import) "\./([\w.-]+)"', file.read_text(encoding="utf-8"))
    }
    assert imported >= {"times.js", "line.js"}
    transport = httpx.ASGITransport(static_files(*page.OWN_STATIC))
    async with httpx.AsyncClient(transport=transport, base_url="http://lab") as browser:
        status_codes = {name: (await browser.get(f"/{name}")).status_code for name in imported}
    assert set(status_codes.values()) == {200}, status_codes


def cluster_page_folder() -> Path:
    return Path(page.__file__).with_name("static")


async def test_pages_and_answers_are_neither(client: httpx.AsyncClient) -> None:
    """They have an XSRF token or names in them, and repeat what a link says."""
    for path in ("/", "/log?find=whatever", "/fragment", "/api/pool"):
        answer = await client.get(path, headers=BROWSER | as_("staff-token"))
        assert answer.is_success, path
        assert "content-encoding" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
