"""The pool's page: what is drawn, what is said, and that no name can become markup."""

import httpx
import pytest

from miglab_hub.service.pages.pool_page import cells
from miglab_hub.service.pages.words import in_words
from miglab_spawner.messages import GpuView, SliceState, WaitEstimate

from .conftest import as_
from .fakes import FakePool, lease_view, slice_view

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "a'b`c",
    "‮evil",
]


def gpu(*slices: object, memory_slices: int = 8) -> GpuView:
    return GpuView(
        index=0, uuid="GPU-0", name="A100", memory_slices=memory_slices, memory_mib=40960,
        mig=True, state="ok", slices=slices,
    )  # fmt: skip


def test_cells_fill_the_gpu_without_a_gap() -> None:
    """Slices and uncut memory together are the whole GPU, in order."""
    drawn = cells(gpu(slice_view(2, 4, size=2), slice_view(1, 1)))
    assert [(cell.start, cell.size, cell.item is not None) for cell in drawn] == [
        (0, 1, False),
        (1, 1, True),
        (2, 2, False),
        (4, 2, True),
        (6, 2, False),
    ]


def test_cells_of_an_empty_and_a_full_gpu() -> None:
    """Nothing cut is one run; a whole GPU is one slice."""
    assert [(cell.start, cell.size) for cell in cells(gpu())] == [(0, 8)]
    assert [(cell.start, cell.size) for cell in cells(gpu(slice_view(1, 0, size=8)))] == [(0, 8)]


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [
        (-5, "less than a minute"),
        (20, "less than a minute"),
        (60, "1 minute"),
        (3600, "1 hour"),
        (5400, "1 hour 30 minutes"),
        (90061, "1 day 1 hour"),
    ],
)
def test_durations_in_words(duration_s: float, words: str) -> None:
    """The two largest units."""
    assert in_words(duration_s) == words


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_names_stay_text(
    client: httpx.AsyncClient, pool: FakePool, name: str
) -> None:
    """Whatever a user, server or course is called, the page shows it and does not run it."""
    pool.held[1] = lease_view(1, name, server=name, course=name)
    pool.slices[0] = slice_view(1, 0, name, server=name, course=name)
    pool.gpu_state = "unknown"
    pool.request_of_alice()
    pool.set_ticket(1, user=name, course=name)
    page = (await client.get("/", headers=as_("staff-token"))).text
    for markup in ("<script>alert", "<img src=x", "=x onerror=alert(1)>", ">49<"):
        assert markup not in page
    for attribute in page.split("data-title=")[1:]:
        assert attribute.startswith('"') and "<" not in attribute[1:].split('"')[0]


async def test_no_inline_script_or_style(client: httpx.AsyncClient) -> None:
    """The policy forbids inline code, and the page has none."""
    answer = await client.get("/", headers=as_("alice-token"))
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in answer.text and "onclick" not in answer.text
    assert all("src=" in tag.split(">")[0] for tag in answer.text.split("<script")[1:])


async def test_a_student_finds_own_lease_and_release(client: httpx.AsyncClient) -> None:
    """Own leases have a button; others' have neither a button nor a name."""
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert "leases/1/release" in page and "leases/3/release" in page
    assert "leases/2/release" not in page and "bob" not in page
    assert "somebody" in page


async def test_staff_can_release_any(client: httpx.AsyncClient) -> None:
    """Staff see names, with a button at each lease."""
    page = (await client.get("/fragment", headers=as_("staff-token"))).text
    assert "leases/2/release" in page and "bob" in page


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
    for word in ("being made", "free", "in use", "being cleared", "set aside", "not the lab's"):
        assert word.replace("'", "&#39;") in bar


async def test_waiting_is_shown_with_the_own_place(
    client: httpx.AsyncClient, pool: FakePool
) -> None:
    """Who waits sees the own place, and can give it up."""
    pool.held.clear()
    pool.request_of_alice()
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert 'data-own="You are number 1 in line for 1g.5gb."' in page
    assert 'data-act="tickets/1"' in page
    assert (
        'data-act="tickets/1"' not in (await client.get("/fragment", headers=as_("bob-token"))).text
    )


async def test_the_likely_wait_is_shown(client: httpx.AsyncClient, pool: FakePool) -> None:
    """The range stands with the place where it is known; where it is not, that is said."""
    pool.held.clear()
    pool.request_of_alice()
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert "<td>not known</td>" in page
    wait = WaitEstimate(low_s=660, likely_s=900, high_s=1400, why="from 50 leases")
    pool.tickets[1] = pool.tickets[1].model_copy(update={"estimate": wait})
    pool.version += 1
    page = (await client.get("/fragment", headers=as_("alice-token"))).text
    assert "in line for 1g.5gb, about 10–25 minutes." in page
    assert '<span title="from 50 leases">about 10–25 minutes</span>' in page


@pytest.mark.parametrize("name", ["frame.css", "pool.css", "pool.js", "icon.svg"])
async def test_static_files(client: httpx.AsyncClient, name: str) -> None:
    """What the page asks for is there."""
    assert (await client.get(f"/static/{name}")).status_code == 200
