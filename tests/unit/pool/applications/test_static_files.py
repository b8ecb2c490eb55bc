"""The pages' static files are small and kept; nothing that has a secret in it is compressed."""

import httpx

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


async def test_pages_and_answers_are_neither(client: httpx.AsyncClient) -> None:
    """They have an XSRF token or names in them, and repeat what a link says."""
    for path in ("/", "/log?find=whatever", "/fragment", "/api/pool"):
        answer = await client.get(path, headers=BROWSER | as_("staff-token"))
        assert answer.is_success, path
        assert "content-encoding" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
