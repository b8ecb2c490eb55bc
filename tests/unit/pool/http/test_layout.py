"""Layouts over HTTP: mistakes with their line, GPUs by who may cut them, names by who may see."""

import httpx
import pytest

from .conftest import as_
from .fakes import FakePool

GROUP = "[{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 1, 1g.5gb: 1}}]"
FILE = f"version: v1\nmig-configs:\n  practical: {GROUP}\n"
TEXT = {"text": FILE, "file": "practical.yaml"}


async def test_what_is_wrong_is_told_with_its_line(client: httpx.AsyncClient) -> None:
    """File, line, key and what would fit, whichever way the text came."""
    body = {"text": FILE.replace("1g.5gb", "9g.5gb"), "file": "practical.yaml"}
    for method, path in (("POST", "/diff"), ("PUT", "")):
        url = f"/api/layout{path}"
        answer = await client.request(method, url, json=body, headers=as_("admin-token"))
        assert (answer.status_code, answer.json()["reason"]) == (422, "bad-layout")
        assert answer.json()["message"] == (
            "practical.yaml:3: mig-configs.practical.0: GPU 0 (A100): it has no 9g.5gb; it can be "
            "cut into 1g.5gb, 3g.20gb."
        )


async def test_one_of_a_file(client: httpx.AsyncClient, pool: FakePool) -> None:
    """By name one applies one of a file's configurations."""
    text = FILE + f"  rest: {GROUP}\n"
    body = {"text": text, "name": "rest", "reason": "week 1"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert answer.status_code == 200, answer.text
    assert pool.calls[-1] == ("lay", "rest", "person:root", "week 1")
    body = {"text": text, "name": "other"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert "there are practical, rest" in answer.json()["message"]


@pytest.mark.parametrize(
    ("token", "assigned", "status"),
    [
        ("admin-token", "", 200),
        ("instructor-token", "", 403),
        ("instructor-token", "ml", 200),
        ("vision-token", "ml", 403),
        ("assistant-token", "ml", 403),
    ],
)
async def test_on_whose_gpus(
    client: httpx.AsyncClient, pool: FakePool, token: str, assigned: str, status: int
) -> None:
    """An instructor cuts the GPUs assigned to the course; an admin every one."""
    pool.gpu_course = assigned
    answer = await client.put("/api/layout", json=TEXT, headers=as_(token))
    assert answer.status_code == status
    assert ("lay" in pool.names()) == (status == 200)


async def test_without_now_nobody_is_asked_to_leave(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    """Applying drains; only with `now` are leases in the way asked back, with a warning."""
    answer = await client.put("/api/layout", json=TEXT, headers=as_("admin-token"))
    assert answer.json()["warned"] == []
    assert "reclaim" not in pool.names()
    body = TEXT | {"now": True, "warning_s": 60, "reason": "exam"}
    answer = await client.put("/api/layout", json=body, headers=as_("admin-token"))
    assert answer.json()["warned"] == [2]
    assert ("reclaim", 2, "exam", "person:root", 60.0) in [call[:5] for call in pool.calls]


async def test_another_courses_lease_runs_on(client: httpx.AsyncClient, pool: FakePool) -> None:
    """With `now` too an instructor ends nobody's lease but the own course's."""
    pool.gpu_course = "vision"
    body = TEXT | {"now": True}
    answer = await client.put("/api/layout", json=body, headers=as_("vision-token"))
    assert (answer.status_code, answer.json()["warned"]) == (200, [])
    assert "reclaim" not in pool.names()


async def test_names_of_other_courses_are_not_shown(client: httpx.AsyncClient) -> None:
    """Who is in the way is named to those who may see names."""
    for token, user in (("admin-token", "bob"), ("assistant-token", "bob"), ("vision-token", None)):
        found = [
            (await client.get("/api/layout", headers=as_(token))).json()["gpus"],
            (await client.post("/api/layout/diff", json=TEXT, headers=as_(token))).json()["gpus"],
        ]
        assert {gpu["drains"][0]["user"] for gpus in found for gpu in gpus} == {user}


async def test_as_a_file(client: httpx.AsyncClient) -> None:
    """What is applied can be had as the file that it could have come from."""
    answer = await client.get("/api/layout/file", headers=as_("staff-token"))
    text = answer.json()["text"]
    assert "3g.20gb: 2" in text
    again = await client.put("/api/layout", json={"text": text}, headers=as_("admin-token"))
    assert again.status_code == 200


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "\x00", "a: &a [*a, *a]", "[" * 30_000, "x" * 40_000]
)
async def test_hostile_text(client: httpx.AsyncClient, text: str) -> None:
    """Whatever is sent: a refusal, and no more of it is repeated than helps."""
    answer = await client.put("/api/layout", json={"text": text}, headers=as_("admin-token"))
    assert answer.status_code == 422
    assert len(answer.text) < 500
