"""The pool's page: what is drawn, what is said, and that no name can become markup."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from markupsafe import escape

from miglab_api.gpus import SliceState
from miglab_api.tickets import WaitEstimate
from miglab_api.wording import duration
from miglab_pool.http.access.principal import SPAWNER, Principal
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages import pool_page
from miglab_pool.http.pages.wording import short, wait_short
from miglab_pool.http.pool_runner import PoolRunner

from .conftest import as_
from .fakes import FakePool, lease_view, slice_view
from .test_live import parked

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "a'b`c",
    "‮evil",
]


@pytest.mark.parametrize(
    ("duration_s", "words", "few"),
    [
        (-5, "less than a minute", "<1 min"),
        (20, "less than a minute", "<1 min"),
        (60, "1 minute", "1 min"),
        (3600, "1 hour", "1 h 00"),
        (5400, "1 hour 30 minutes", "1 h 30"),
        (90061, "1 day 1 hour", "1 d 1 h"),
    ],
)
def test_durations_in_words(duration_s: float, words: str, few: str) -> None:
    """The two largest units, in full and where there is little room."""
    assert (duration(duration_s), short(duration_s)) == (words, few)


@pytest.mark.parametrize(
    ("low_s", "high_s", "said"),
    [(660, 1400, "11–24 min"), (0, 20, "≤1 min"), (20, 600, "≤10 min"), (3600, 9000, "1–3 h")],
)
def test_an_estimated_wait_in_little_room(low_s: float, high_s: float, said: str) -> None:
    """A range in minutes or hours, the end rounded up."""
    wait = WaitEstimate(low_s=low_s, likely_s=low_s, high_s=high_s, basis="")
    assert wait_short(wait) == said


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/", "/details/slice/1", "/details/lease/1", "/details/ticket/1"])
async def test_hostile_names_stay_text(
    client: httpx.AsyncClient, pool: FakePool, name: str, path: str
) -> None:
    """Whatever a user, server or course is called, a page shows it and does not run it."""
    pool.held[1] = lease_view(1, name, server=name, course=name, guaranteed_until=2e9)
    pool.slices[0] = slice_view(1, 0, name, server=name, course=name, reason=name, draining=name)
    pool.gpu_state = "unknown"
    pool.request_of_alice()
    pool.set_ticket(1, user=name, course=name)
    answer = await client.get(path, headers=as_("admin-token"))
    assert answer.status_code == 200 and str(escape(name)) in answer.text
    for markup in ("<script>alert", "<img src=x", "=x onerror=alert(1)>", ">49<"):
        assert markup not in answer.text
    for attribute in answer.text.split("data-done=")[1:]:
        assert attribute.startswith('"') and "<" not in attribute[1:].split('"')[0]


async def test_no_inline_script_or_style(client: httpx.AsyncClient) -> None:
    """The policy forbids inline code, and the page has none."""
    answer = await client.get("/", headers=as_("alice-token"))
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in answer.text and "onclick" not in answer.text
    assert all("src=" in tag.split(">")[0] for tag in answer.text.split("<script")[1:])


async def test_a_student_may_open_what_is_their_own(client: httpx.AsyncClient) -> None:
    """Own leases and slices lead to the details; others' have neither a button nor a name."""
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    opened = set(re.findall(r'data-details="([^"]+)"', page))
    assert opened == {"lease/1", "lease/3", "slice/1"}
    assert "bob" not in page and "somebody" in page


async def test_staff_may_open_everything(client: httpx.AsyncClient) -> None:
    """Staff see names, and each GPU, slice and place in line leads to the details."""
    page = (await client.get("/fragment", headers=as_("staff-token"))).text
    opened = set(re.findall(r'data-details="([^"]+)"', page))
    assert opened == {"pool", "gpu/GPU-0", "slice/1", "slice/2", "slice/4"}
    assert "bob" in page


async def test_the_page_says_what_kind_of_lab_it_is(client: httpx.AsyncClient) -> None:
    """Simulated GPUs and missing isolation are labelled; the way back to the hub is there."""
    page = (await client.get("/", headers=as_("bob-token"))).text
    assert "simulated GPUs" in page and "no isolation: trial only" in page
    assert 'href="/hub/home"' in page


async def test_every_state_is_a_word(client: httpx.AsyncClient, pool: FakePool) -> None:
    """Colour is never the only sign of a state."""
    pool.slices = [
        slice_view(number, number, state=state) for number, state in enumerate(SliceState)
    ]
    page = (await client.get("/fragment", headers=as_("bob-token"))).text
    bar = page.split('<ol class="bar')[1].split("</ol>")[0]
    for word in ("being created", "free", "in use", "being destroyed", "quarantined", "foreign"):
        assert f'<span class="state">{word}</span>' in bar


async def test_waiting_is_shown_with_the_own_position(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    """Who waits sees the own place, and can give it up; nobody else can."""
    pool.held.clear()
    pool.request_of_alice()
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert 'data-own="You are number 1 in the queue for 1g.5gb."' in page
    assert 'data-details="ticket/1"' in page
    of_bob = await client.get("/fragment", headers=as_("bob-token"))
    assert 'data-details="ticket/1"' not in of_bob.text


async def test_the_estimated_wait_is_shown(client: httpx.AsyncClient, pool: FakePool) -> None:
    """The range stands with the place where it is known; where it is not, that is said."""
    pool.held.clear()
    pool.request_of_alice()
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert "<td>unknown</td>" in page
    wait = WaitEstimate(low_s=660, likely_s=900, high_s=1400, basis="from 50 leases")
    pool.queued[1] = pool.queued[1].model_copy(update={"estimate": wait})
    pool.version += 1
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert "in the queue for 1g.5gb, about 10–25 minutes." in page
    assert "<td>11–24 min</td>" in page


async def test_only_parts_that_changed_are_sent(client: httpx.AsyncClient, pool: FakePool) -> None:
    """Who has the page as it is gets nothing; after a change, the parts that it concerns."""
    headers = as_("bob-token")
    first = await client.get("/fragment", headers=headers)
    parts = re.findall(r'id="part-([\w-]+)" data-version="(\w+)"', first.text)
    assert [name for name, _ in parts] == first.headers["x-parts"].split() != []
    have = ",".join(f"{name}.{version}" for name, version in parts)
    again = await client.get("/fragment", params={"have": have}, headers=headers)
    assert (again.text, again.headers["x-parts"]) == ("", first.headers["x-parts"])
    pool.request_of_alice()
    then = await client.get("/fragment", params={"have": have}, headers=headers)
    assert re.findall(r'id="part-([\w-]+)"', then.text) == ["head", "queue"]


@pytest.mark.parametrize("name", ["frame.css", "pool.css", "pool.js", "details.js", "icon.svg"])
async def test_static_files(client: httpx.AsyncClient, name: str) -> None:
    """What the page asks for is there."""
    assert (await client.get(f"/static/{name}")).status_code == 200


def listener(refusals: list[str]) -> Any:
    """A browser that the hub knows once, and then refuses for these reasons, one each time."""
    told = iter(["", *refusals])

    async def principal(_: object) -> Principal:
        if reason := next(told, ""):
            raise DeniedError(401, reason, "Sign in.")
        return SPAWNER

    state = SimpleNamespace(sign_in=SimpleNamespace(principal=principal))
    return SimpleNamespace(app=SimpleNamespace(state=state))


async def test_who_signed_out_is_told_no_more(
    runner: PoolRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is asked again before each event; its silence ends nothing."""
    monkeypatch.setattr(pool_page, "REST_S", 0.0)
    monkeypatch.setattr(pool_page, "NEWS_S", 0.0)
    stream = pool_page.live(listener(["hub-silent", "not-signed-in"]), SPAWNER, runner)
    assert [event.event async for event in stream] == ["pool", "pool"]


async def test_an_endless_number_is_no_lease(client: httpx.AsyncClient) -> None:
    """Python reads no number of 5,000 digits; the page says that there is no such thing."""
    answer = await client.get("/details/lease/" + "1" * 5000, headers=as_("staff-token"))
    assert answer.status_code == 404


async def test_the_browser_is_told_of_changes(
    runner: PoolRunner, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event at once and after each change, with a number in it; the end with the service."""
    monkeypatch.setattr(pool_page, "REST_S", 0.0)
    stream = pool_page.live(listener([]), SPAWNER, runner)
    first = await anext(stream)
    assert (first.event, first.data) == ("pool", runner.notifier.version)
    following = asyncio.ensure_future(anext(stream))
    await parked(runner.notifier, following)
    await runner.decide(lambda _: pool.request_of_alice())
    assert (await following).data == runner.notifier.version != first.data
    ending = asyncio.ensure_future(anext(stream, None))
    await parked(runner.notifier, ending)
    runner.notifier.close()
    assert await ending is None


async def test_an_empty_lab_tells_staff_how_to_begin(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    """Roster, reservation and layout are named, with links, until somebody has a slice.

    A page that is open learns of it, as of every change.
    """
    begin = "Nobody holds a slice now"
    pool.slices, pool.shows_waiting = [], False
    page = (await client.get("/", headers=as_("admin-token"))).text
    assert begin in page and "/reservations" in page.partition(begin)[2]
    assert begin not in (await client.get("/", headers=as_("alice-token"))).text
    pool.slices, pool.version = [slice_view(1, 0, "alice")], pool.version + 1
    (version,) = re.findall(r'id="part-begin" data-version="(\w+)"', page)
    answer = await client.get(f"/fragment?have=begin.{version}", headers=as_("admin-token"))
    assert 'id="part-begin"' in answer.text and begin not in answer.text
