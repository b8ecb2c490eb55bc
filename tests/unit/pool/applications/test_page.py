"""The pool's page: what is drawn, what is said, and that no name can become markup."""

import re
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.tickets import WaitEstimate
from miglab_api.wording import duration
from miglab_pool.applications.gpu_drawing import LeaseActivity
from miglab_pool.applications.pool_page import (
    REDRAW_S,
    PagePart,
    PartsCache,
    draw_parts,
    parts_caches,
)
from miglab_pool.http.access.principal import PrincipalKind
from miglab_pool.http.pages.frame import short_duration, wait_short

from .conftest import as_, enqueue, free_slice
from .fakes import ALICE, snapshot, ticket_view


@pytest.mark.parametrize(
    ("duration_s", "in_full", "in_short"),
    [
        (-5, "less than a minute", "<1 min"),
        (20, "less than a minute", "<1 min"),
        (60, "1 minute", "1 min"),
        (3600, "1 hour", "1 h 00"),
        (5400, "1 hour 30 minutes", "1 h 30"),
        (90061, "1 day 1 hour", "1 d 1 h"),
    ],
)
def test_durations_in_words(duration_s: float, in_full: str, in_short: str) -> None:
    """The two largest units, in full and where there is little room."""
    assert (duration(duration_s), short_duration(duration_s)) == (in_full, in_short)


@pytest.mark.parametrize(
    ("low_s", "high_s", "label"),
    [(660, 1400, "11–24 min"), (0, 20, "≤1 min"), (20, 600, "≤10 min"), (3600, 9000, "1–3 h")],
)
def test_an_estimated_wait_in_little_room(low_s: float, high_s: float, label: str) -> None:
    """A range in minutes or hours, the end rounded up."""
    wait = WaitEstimate(low_s=low_s, likely_s=low_s, high_s=high_s, basis="")
    assert wait_short(wait) == label


async def test_an_address_where_nothing_is(client: httpx.AsyncClient) -> None:
    """In a browser a page that leads on; for a program the refusal that it can read."""
    browser = {**as_("bob-token"), "Accept": "text/html,*/*"}
    page = await client.get("/nowhere", headers=browser)
    assert (page.status_code, "There is no page at this address" in page.text) == (404, True)
    assert "Reservations" in page.text
    stranger = await client.get("/nowhere", headers={"Accept": "text/html"})
    assert (stranger.status_code, "Reservations" in stranger.text) == (404, False)
    answer = await client.get("/nowhere", headers=as_("bob-token"))
    assert answer.json()["reason"] == "no-such-page"


async def test_the_frame(client: httpx.AsyncClient) -> None:
    """What kind of lab it is, the way to the hub, and no inline code: the policy forbids it."""
    answer = await client.get("/", headers=as_("bob-token"))
    page = answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in page and "onclick" not in page
    assert all("src=" in tag.split(">")[0] for tag in page.split("<script")[1:])
    assert "simulated GPUs" in page and "no isolation: trial only" in page
    assert 'href="/hub/home"' in page
    files = re.findall(r'(?:href|src)="([^"]+/static/[^"]+)"', page)
    assert len(files) > 4
    for file in files:
        assert (await client.get(f"http://lab{file}")).status_code == 200


async def test_who_may_open_what(client: httpx.AsyncClient, world: World, gpu: str) -> None:
    """Staff everything, by name; others their own alone, and nobody else's name.

    In a lease's dialog a guarantee's moment is read by one's own clock.
    """
    ticket = enqueue(world).id
    details = {}
    for token in ("alice-token", "bob-token", "staff-token"):
        page = (await client.get("/fragment", headers=as_(token))).text
        details[token] = set(re.findall(r'data-details="([^"]+)"', page))
        assert ("bob" in page) is (token == "staff-token")
    alice = {"slice/1", "slice/3", f"ticket/{ticket}"}
    assert details["alice-token"] == alice
    assert details["bob-token"] == {"slice/2"}
    slices = {f"slice/{number}" for number in (1, 2, 3, free_slice(world))}
    assert details["staff-token"] == {"pool", f"gpu/{gpu}", f"ticket/{ticket}"} | slices
    page = (await client.get("/details/lease/1", headers=as_("alice-token"))).text
    assert re.search(r'<time datetime="[^"]+" data-guaranteed>(guaranteed until|open: )', page)


async def test_waiting_is_shown_with_place_and_estimate(
    client: httpx.AsyncClient, world: World
) -> None:
    """The queue marks one's own place, and says how long it may last as far as that is known."""
    world.end(world.pool.leases.find(2))
    world.pass_time(3.5 * 3600)  # so near to the ends of leases, a range says something
    enqueue(world, "bob")
    page = (await client.get("/fragment", headers=as_("bob-token"))).text
    assert '<tr class="own">' in page
    assert "<td>–</td>" in page and page.count("cannot be estimated yet") == 1
    world.pool.estimate()
    page = (await client.get("/fragment", headers=as_("bob-token"))).text
    assert "<td>–</td>" not in page and "cannot be estimated yet" not in page


async def test_only_parts_that_changed_are_sent(client: httpx.AsyncClient, world: World) -> None:
    """Who has the page as it is gets nothing; after a change, the parts that it concerns."""
    headers = as_("bob-token")
    first = await client.get("/fragment", headers=headers)
    parts = re.findall(r'id="part-([\w-]+)" data-version="(\w+)"', first.text)
    assert [name for name, _ in parts] == first.headers["x-parts"].split() != []
    have = ",".join(f"{name}.{version}" for name, version in parts)
    again = await client.get("/fragment", params={"have": have}, headers=headers)
    assert (again.text, again.headers["x-parts"]) == ("", first.headers["x-parts"])
    enqueue(world)
    then = await client.get("/fragment", params={"have": have}, headers=headers)
    assert re.findall(r'id="part-([\w-]+)"', then.text) == ["head", "queue"]


async def test_an_empty_lab_tells_staff_how_to_begin(
    client: httpx.AsyncClient, world: World
) -> None:
    """Roster, reservation and layout are named, with links, until somebody has a slice.

    A page that is open learns of it, as of every change.
    """
    begin = "Nobody holds a slice now"
    for lease in world.pool.leases.live():
        world.end(lease)
    page = (await client.get("/", headers=as_("admin-token"))).text
    assert begin in page and "/reservations" in page.partition(begin)[2]
    assert begin not in (await client.get("/", headers=as_("alice-token"))).text
    world.run("alice")
    (version,) = re.findall(r'id="part-begin" data-version="(\w+)"', page)
    answer = await client.get(f"/fragment?have=begin.{version}", headers=as_("admin-token"))
    assert 'id="part-begin"' in answer.text and begin not in answer.text


async def test_the_navigation_leads_to_pages_that_are_there(client: httpx.AsyncClient) -> None:
    """Every place in the navigation answers, and says that one is there; staff's are theirs."""
    page = (await client.get("/", headers=as_("admin-token"))).text
    nav = page.split('<nav class="places"')[1].split("</nav>")[0]
    links = [part.split('"')[0] for part in nav.split('href="')[1:]]
    assert len(links) >= 2
    assert [link for link in links if "/hub/" in link] == ["/hub/home", "/hub/token", "/hub/admin"]
    for link in (link for link in links if "/hub/" not in link):
        linked_page = await client.get(f"http://lab{link}", headers=as_("admin-token"))
        assert linked_page.status_code == 200
        assert f'href="{link}" aria-current="page"' in linked_page.text
    students = (await client.get("/", headers=as_("bob-token"))).text
    assert not [page for page in ("log", "usage", "health", "layouts") if f'/{page}"' in students]


# -- the parts of the page -------------------------------------------------------------------------


def test_the_same_is_not_drawn_again() -> None:
    """What compares equal is the same, though another object; words about time do not grow old.

    After half a minute it is drawn again; with the same HTML it has the same version.
    """
    cache, drawings = PartsCache({}), []

    def part(made_of: object, now: float = 0.0) -> PagePart:
        def draw() -> object:
            drawings.append(made_of)
            return SimpleNamespace(rows=[], shapes=[])

        return cache.part("queue", "part_queue.html", made_of, draw, now)

    first = part([1, 2])
    assert part([1, 2]) is first
    assert len(drawings) == 1
    again = part([1, 2], REDRAW_S + 1)
    assert (len(drawings), again.version) == (2, first.version)
    part([1, 3], REDRAW_S + 1)
    assert len(drawings) == 3


def test_an_estimate_that_keeps_its_words_draws_no_queue() -> None:
    """It goes down with every second; the queue is drawn again when it reads otherwise."""
    cache = PartsCache({})

    def queue_at(high_s: float) -> PagePart:
        wait = WaitEstimate(low_s=60.0, likely_s=high_s, high_s=high_s, basis="", is_late=False)
        pool_snapshot = snapshot(waiting=(ticket_view(1, "bob", estimate=wait),))
        parts = draw_parts(cache, pool_snapshot, ALICE, LeaseActivity(), 0.0)
        return next(page_part for page_part in parts if page_part.name == "queue")

    first = queue_at(900.0)
    assert queue_at(880.0) is first
    assert queue_at(830.0).version != first.version


def test_everybody_has_their_own() -> None:
    """The same name with another role is another viewer; another browser of theirs is not.

    There is an end to caches: who has not looked for the longest time gives way.
    """
    caches = parts_caches({}, limit=2)
    first = caches(ALICE.viewer)
    assert caches(replace(ALICE, xsrf="other").viewer) is first
    for other in (
        {"admin": True},
        {"assists": frozenset({"ml"})},
        {"kind": PrincipalKind.SERVICE},
        {"name": "bob"},
    ):
        assert caches(replace(ALICE.viewer, **other)) is not first  # type: ignore[arg-type]
        assert caches(ALICE.viewer) is first
    for name in ("dora", "emil"):
        caches(replace(ALICE.viewer, name=name))
    assert caches(ALICE.viewer) is not first
