"""The layouts' page: what is in force, and a file tried out."""

import httpx
import pytest

from miglab_pool.layouts.file import read
from miglab_pool.layouts.page import EXAMPLES

from .conftest import as_

TEXT = EXAMPLES[0][1]


async def test_staff_see_what_is_applied(client: httpx.AsyncClient) -> None:
    """The layouts and how each GPU stands to them; who may not cut finds no form to apply."""
    page = (await client.get("/layouts", headers=as_("admin-token"))).text
    assert "GPU 0" in page and "Try a layout" in page
    for token, may in (("admin-token", True), ("assistant-token", False)):
        answer = await client.post("/layouts/preview", json={"text": TEXT}, headers=as_(token))
        assert answer.status_code == 200
        assert ('id="apply"' in answer.text) is may


@pytest.mark.parametrize("text", ["", "just words", "version: v1\nmig-configs: {<script>: []}"])
async def test_a_bad_file_is_refused_with_its_line(client: httpx.AsyncClient, text: str) -> None:
    """As by the API: what is wrong, and where; as JSON, so no markup comes of it."""
    answer = await client.post("/layouts/preview", json={"text": text}, headers=as_("staff-token"))
    assert answer.status_code == 422
    assert answer.json().keys() == {"reason", "message"}


def test_examples_are_files_that_can_be_read() -> None:
    """Whoever begins with one gets no error for it."""
    for _, text in EXAMPLES:
        assert read(text, "example")


async def test_a_preview_needs_the_pages_token(client: httpx.AsyncClient) -> None:
    """Nobody without a session or token tries anything."""
    answer = await client.post("/layouts/preview", json={"text": TEXT})
    assert answer.status_code == 401
