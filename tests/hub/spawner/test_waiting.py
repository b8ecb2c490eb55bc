"""Who waits goes on without a GPU, with another shape, or not at all; and gets the slice later."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from traitlets.config import Config

from miglab_api.tickets import TicketRequest, TicketState, TicketView
from miglab_bench.harness.student import STEP_S
from miglab_spawner import hub_pages, mixin
from miglab_spawner.backends import BackendUnreachable, PoolClient

from .lab import PoolLab

Hub = Any


@pytest.fixture
def hub_config(hub_config: Config) -> Config:
    """Students' servers know where the pool is, so that they can keep their place."""
    hub_config.MIGLocalSpawner.student_api_url = "http://127.0.0.1:9"
    return hub_config


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no browser that an answer must reach first."""
    monkeypatch.setattr(hub_pages, "ANSWER_FIRST_S", 0.0)


async def line_up(hub: Hub, lab: PoolLab, shape: str = "7g.40gb", server: str = "") -> TicketView:
    """Bo holds part of the GPU; ada waits for all of it."""
    await hub.start("bo", shape="3g.20gb")
    await hub.begin("ada", server, shape=shape)
    await lab.until(lambda: _waits(hub, server), "ada waits")
    return lab.waiting()[0]


def _waits(hub: Hub, server: str = "") -> bool:
    wait = hub.spawner("ada", server)._wait
    return wait is not None and wait.ticket is not None


async def waiting(
    hub: Hub, method: str = "GET", user: str = "ada", server: str = "", **kwargs: Any
) -> httpx.Response:
    """What the waiting page of ada's server asks."""
    answer: httpx.Response = await hub.ask(
        user, method, f"api/miglab/waiting/ada/{server}", **kwargs
    )
    return answer


async def on_cpu(hub: Hub, lab: PoolLab, server: str = "") -> TicketView:
    """Ada's server starts without a GPU, and its ticket waits on."""
    ticket = await line_up(hub, lab, server=server)
    assert (await choose(hub, "cpu", server)).status_code == 202
    await hub.settled("ada", server)
    return ticket


async def choose(hub: Hub, shape: str, server: str = "") -> httpx.Response:
    return await waiting(hub, "POST", server=server, json={"shape": shape})


async def move(hub: Hub, server: str = "", **choice: str) -> httpx.Response:
    """What the server extension asks, by the server's own token."""
    spawner = hub.spawner("ada", server)
    headers = {"Authorization": f"token {spawner.api_token}"}
    answer: httpx.Response = await hub.http.post(
        f"api/miglab/move/ada/{server}", headers=headers, json=choice
    )
    return answer


async def moved(hub: Hub, server: str = "") -> dict[str, str]:
    """Wait for the move under way; what the new server says of itself."""
    await asyncio.wait_for(
        asyncio.gather(*(move.task for move in hub_pages._moves.values())), STEP_S
    )
    await hub.settled("ada", server)
    environment: dict[str, str] = await hub.environment("ada", server)
    return environment


async def offered(hub: Hub, lab: PoolLab, server: str = "") -> None:
    """Bo leaves, and ada's ticket is offered its slice."""
    await hub.stop("bo")
    await lab.until(lambda: _state(lab, server) is TicketState.OFFERED, "the slice is offered")


def _state(lab: PoolLab, server: str = "") -> TicketState | None:
    ticket = lab.pool.tickets.server_status("ada", server).ticket
    return ticket.state if ticket else None


async def test_the_page_says_which_alternatives_are_free(hub: Hub, lab: PoolLab):
    """Of one's own course, with sizes; nobody else is told, and nothing once nobody waits."""
    await line_up(hub, lab)
    view = (await waiting(hub)).json()
    assert (view["shape"], view["keeps_ticket"]) == ("7g.40gb", True)
    assert [
        (alternative["shape"], alternative["size"], alternative["title"])
        for alternative in view["alternatives"][:2]
    ] == [
        ("1g.5gb", "4.75 GiB", "Small: 1/7 of a GPU, 5 GB"),
        ("2x1g.5gb", "2 × 4.75 GiB", "2 × small: 1/7 of a GPU, 5 GB each"),
    ]
    (standing,) = view["line"]["standings"]
    assert (standing["position"], standing["waiting"]) == (1, 1)
    assert standing == (await hub.ask("ada", "GET", "api/miglab/line/ada/")).json()["standings"][0]
    assert (await hub.ask("bo", "GET", "api/miglab/line/ada/")).status_code == 403
    assert view["title"] == "Whole GPU: 40 GB"
    assert view["picture"].count('fill="currentColor"') == 7
    assert (await waiting(hub, user="bo")).status_code == 403
    assert (await waiting(hub, "POST", "bo", json={"shape": ""})).status_code == 403
    assert (await hub.ask("bo", "GET", "api/miglab/waiting/bo/")).json() is None
    assert (await hub.http.get("api/miglab/waiting/ada/")).status_code == 403


async def test_the_ticket_is_attended_until_the_server_can(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """While a server without a GPU is being made, which may take longer than a place is kept."""
    ticket = await line_up(hub, lab)
    spawner = hub.spawner("ada")
    is_prepared, prepare = asyncio.Event(), spawner.prepare

    async def slow() -> None:
        await is_prepared.wait()
        await prepare()

    monkeypatch.setattr(spawner, "prepare", slow)
    monkeypatch.setattr(mixin, "ATTEND_S", 0.05)
    await choose(hub, "cpu")
    lab.way.calls.clear()
    ticket_request = ("GET", f"/api/tickets/{ticket.id}")
    await lab.until(lambda: ticket_request in lab.way.calls, "the ticket is attended")
    is_prepared.set()
    await hub.settled("ada")
    assert (await hub.environment("ada"))["MIGLAB_SHAPE"] == "cpu"
    assert [waiting_ticket.id for waiting_ticket in lab.waiting()] == [ticket.id]


@pytest.mark.parametrize("server", ["", "lab2"])
async def test_one_click_moves_to_the_slice(hub: Hub, lab: PoolLab, server: str):
    """From a server without a GPU to one with the slice that was offered; other options stay."""
    ticket = await on_cpu(hub, lab, server)
    without = await hub.environment("ada", server)
    assert without["MIGLAB_SHAPE"] == "cpu" and "MIGLAB_LEASE" not in without
    assert [waiting_ticket.id for waiting_ticket in lab.waiting()] == [ticket.id]
    options = hub.spawner("ada", server).user_options
    assert options["shape"] == "7g.40gb"  # still what is wanted
    options["colour"] = "blue"
    await offered(hub, lab, server)
    answer = await move(hub, server)
    assert answer.status_code == 202
    assert answer.json()["url"].endswith(f"/hub/miglab/moving/ada/{server}")
    environment = await moved(hub, server)
    lease = lab.held_by("ada", server)
    assert (lease.ticket, lease.shape, lease.course) == (ticket.id, "7g.40gb", ticket.course)
    assert environment["MIGLAB_SLICES"] == lease.uuids[0]
    assert hub.spawner("ada", server).user_options["colour"] == "blue"


@pytest.mark.parametrize("server", ["", "lab2"])
async def test_one_click_gives_the_slice_back(hub: Hub, lab: PoolLab, server: str):
    """The same server, course and other options, on CPU; the slice is free; twice is refused."""
    await hub.start("ada", server, shape="1g.5gb")
    course = hub.spawner("ada", server)._course
    hub.spawner("ada", server).user_options["colour"] = "blue"
    answer = await move(hub, server, shape="cpu")
    assert answer.status_code == 202
    environment = await moved(hub, server)
    assert (environment["MIGLAB_SHAPE"], environment["MIGLAB_COURSE"]) == ("cpu", course)
    assert "MIGLAB_LEASE" not in environment
    await lab.until(lambda: lab.lease_of("ada", server) is None, "the slice is free")
    assert hub.spawner("ada", server).user_options["colour"] == "blue"
    assert hub.spawner("ada", server).news == ""
    again = await move(hub, server, shape="cpu")
    assert (again.status_code, again.json()["reason"]) == (409, "unknown-lease")


async def test_an_offer_that_lapsed_leaves_the_server_alone(hub: Hub, lab: PoolLab):
    """The pool's no comes back in its words, before anything is stopped."""
    ticket = await on_cpu(hub, lab)
    before = (await hub.environment("ada"))["PID"]
    answer = await move(hub)
    assert (answer.status_code, answer.json()["reason"]) == (409, "not-offered")
    lab.pool.tickets.cancel(ticket.id, "ada")
    answer = await move(hub)
    assert (answer.status_code, answer.json()["reason"]) == (409, "not-offered")
    lab.way.is_cut = True
    answer = await move(hub)
    assert (answer.status_code, answer.json()["reason"]) == (503, "pool-unreachable")
    lab.way.is_cut = False
    assert (await hub.environment("ada"))["PID"] == before


async def test_who_has_left_the_course_does_not_get_its_slice(hub: Hub, lab: PoolLab):
    """The group is asked when the offer is taken: refused in words, the server runs on as it is."""
    hub.user("ada", ("vision",))
    await hub.start("bo", shape="7g.40gb")
    await hub.begin("ada", shape="3g.20gb", course="vision")
    await lab.until(lambda: _waits(hub), "ada waits")
    await choose(hub, "cpu")
    await hub.settled("ada")
    await offered(hub, lab)
    before = (await hub.environment("ada"))["PID"]
    hub.user("ada", ("text",))
    answer = await move(hub)
    assert (answer.status_code, answer.json()) == (
        403,
        {"reason": "not-in-course", "message": "You are not in the course vision."},
    )
    assert (await hub.environment("ada"))["PID"] == before
    assert _state(lab) is TicketState.OFFERED and not hub_pages._moves
    hub.user("ada", ("vision",))
    assert (await move(hub)).status_code == 202
    assert (await moved(hub))["MIGLAB_COURSE"] == "vision"


async def test_nobody_else_moves_it_and_two_clicks_are_one_move(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """Neither another student nor another server of the same one; and a second tab moves nothing.

    It is led to the same page, in the time that the first answer is given.
    """
    await on_cpu(hub, lab)
    await offered(hub, lab)
    await hub.start("ada", "other", shape="cpu")
    headers = {"Authorization": f"token {hub.spawner('ada', 'other').api_token}"}
    assert (await hub.http.post("api/miglab/move/ada/", headers=headers)).status_code == 403
    assert (await hub.ask("bo", "POST", "api/miglab/move/ada/")).status_code == 403
    assert _state(lab) is TicketState.OFFERED
    monkeypatch.setattr(hub_pages, "ANSWER_FIRST_S", 1.0)
    answers = await asyncio.gather(move(hub), move(hub))
    assert [answer.status_code for answer in answers] == [202, 202]
    assert len(hub_pages._moves) == 1
    assert answers[0].json() == answers[1].json()
    assert (await moved(hub))["MIGLAB_SHAPE"] == "7g.40gb"


async def test_a_hub_that_died_between_stop_and_start(hub: Hub, lab: PoolLab):
    """What was taken is kept; the line says so, and the next start has it."""
    ticket = await on_cpu(hub, lab)
    await offered(hub, lab)
    lease = lab.pool.tickets.take(ticket.id)
    await hub.stop("ada")
    (standing,) = (await hub.ask("ada", "GET", "api/miglab/line/ada/")).json()["standings"]
    assert (standing["state"], standing["shape"]) == ("starting", "7g.40gb")
    await hub.start("ada", shape="7g.40gb")
    assert lab.held_by("ada").id == lease.id


async def test_a_ticket_that_outlived_its_start_is_found_again(hub: Hub, lab: PoolLab):
    """As after a hub restart: the line says the place, and the spawn page chooses the shape."""
    ticket = await on_cpu(hub, lab)
    await hub.stop("ada")
    page = await hub.user("ada").spawners[""].render_spawn_page()
    line = (await hub.ask("ada", "GET", "api/miglab/line/ada/")).json()
    assert [place["position"] for place in line["standings"]] == [1]
    assert 'value="7g.40gb" required checked' in page
    await hub.begin("ada", shape="7g.40gb")
    await lab.until(lambda: _waits(hub), "ada waits on")
    assert [waiting_ticket.id for waiting_ticket in lab.waiting()] == [ticket.id]


async def test_another_shape_that_is_free(hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch):
    """It is served at once, by the same start, and is the choice from now on.

    The pool's answer, which is lost here, is the same when it is asked again.
    """
    await line_up(hub, lab)
    send_request, answers = PoolClient.request, []

    async def lossy(pool: PoolClient, request: TicketRequest) -> TicketView:
        answers.append(await send_request(pool, request))
        if len(answers) == 1:
            raise BackendUnreachable("the answer is lost")
        return answers[-1]

    monkeypatch.setattr(PoolClient, "request", lossy)
    assert (await choose(hub, "1g.5gb")).status_code == 202
    await hub.settled("ada")
    assert (await hub.environment("ada"))["MIGLAB_SHAPE"] == "1g.5gb"
    assert hub.spawner("ada").orm_spawner.user_options["shape"] == "1g.5gb"
    assert lab.waiting() == [] and answers[0].id == answers[1].id


async def test_what_cannot_be_chosen(hub: Hub, lab: PoolLab):
    """No choice, no shape of the course, one that somebody took meanwhile: the place is kept."""
    ticket = await line_up(hub, lab)
    for body in ({}, {"shape": 3}, {"shape": "x" * 1000}, [], None):
        assert (await waiting(hub, "POST", json=body)).status_code == 400
    answer = await choose(hub, "full")
    assert (answer.status_code, answer.json()["reason"]) == (403, "shape-not-offered")
    assert "3g.20gb" in [
        alternative["shape"] for alternative in (await waiting(hub)).json()["alternatives"]
    ]
    cys_ticket = lab.pool.tickets.request(
        TicketRequest(user="cy", course="everyone", shape="3g.20gb")
    )
    lab.pool.staff.put_in_front(cys_ticket.id, "Exam.", "person:ina")
    await lab.until(lambda: lab.pool.leases.lease_of_server("cy", ""), "cy has it")
    answer = await choose(hub, "3g.20gb")
    assert (answer.status_code, answer.json()) == (
        409,
        {
            "reason": "not-free",
            "message": "3g.20gb is no longer free. You keep your position in the queue.",
        },
    )
    assert [(waiting_ticket.id, waiting_ticket.position) for waiting_ticket in lab.waiting()] == [
        (ticket.id, 1)
    ]
    assert _waits(hub)
    assert hub.spawner("ada").user_options["shape"] == "7g.40gb"


async def test_giving_up(hub: Hub, lab: PoolLab):
    """The ticket is over, and so is the start; afterwards there is nothing to choose."""
    ticket = await line_up(hub, lab)
    spawner = hub.spawner("ada")
    assert (await choose(hub, "")).status_code == 202
    assert not spawner.active  # the spawn page would lead back to the waiting page
    with pytest.raises(Exception, match="You left the queue"):
        await hub.settled("ada")
    assert lab.pool.tickets.find(ticket.id).state is TicketState.CANCELLED
    assert (await choose(hub, "cpu")).json()["reason"] == "not-waiting"
    ada = await signed_in(hub, "ada")
    page = await ada.get("spawn/ada")  # where the waiting page then goes
    assert 'value="7g.40gb" required checked' in page.text
    await ada.aclose()


@pytest.mark.long
async def test_a_pool_that_restarts_just_then(hub: Hub, lab: PoolLab):
    """The choice fails in words, and the place is there afterwards."""
    ticket = await line_up(hub, lab)
    await lab.stop()
    answer = await choose(hub, "1g.5gb")
    assert (answer.status_code, answer.json()["reason"]) == (503, "pool-unreachable")
    await lab.start()
    await lab.until(lambda: lab.waiting(), "the ticket is there")
    assert [waiting_ticket.id for waiting_ticket in lab.waiting()] == [ticket.id]
    assert (await choose(hub, "cpu")).status_code == 202
    await hub.settled("ada")


async def signed_in(hub: Hub, name: str) -> httpx.AsyncClient:
    """This person's browser."""
    http = httpx.AsyncClient(base_url=hub.app.hub.url, timeout=STEP_S)
    await hub.sign_in(http, name)
    return http


async def test_the_page_between(hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch):
    """It says what happens while the old server ends, then leads its user to JupyterHub's own."""
    monkeypatch.setattr(hub_pages, "ANSWER_FIRST_S", 3600)
    await on_cpu(hub, lab, "lab2")
    await offered(hub, lab, "lab2")
    path = (await move(hub, "lab2")).json()["url"].partition("/hub/")[2]
    ada, bo = await signed_in(hub, "ada"), await signed_in(hub, "bo")
    assert "Your server restarts with 7g.40gb" in (await ada.get(path)).text
    assert (await bo.get(path)).status_code == 404
    for under_way in list(hub_pages._moves.values()):
        under_way.task.cancel()
        await asyncio.wait([under_way.task])
    led = await ada.get(path, params={"next": "/x"})
    assert led.status_code == 302
    assert led.headers["location"].endswith("/hub/spawn-pending/ada/lab2?next=%2Fx")
    for browser in (ada, bo):
        await browser.aclose()


async def from_jupyterlab(
    hub: Hub, method: str, user: str = "ada", **kwargs: Any
) -> httpx.Response:
    """What the server extension of ada's server asks, by the token of a user's server."""
    headers = {"Authorization": f"token {hub.spawner(user).api_token}"}
    answer: httpx.Response = await hub.http.request(
        method, "api/miglab/choose/ada/", headers=headers, **kwargs
    )
    return answer


async def test_a_server_without_a_gpu_chooses_waits_and_moves(hub: Hub, lab: PoolLab):
    """In the spawn page's words; it restarts with what was chosen here, not with what it was."""
    await hub.start("ada", shape="cpu")
    await hub.start("bo", shape="3g.20gb")
    (section,) = (await from_jupyterlab(hub, "GET")).json()["sections"]
    whole = next(card for card in section["shapes"] if card["value"].startswith("7g.40gb"))
    assert (whole["is_free"], whole["action"]) == (False, "Join the queue as 1st")
    assert "cpu" not in {card["value"] for card in section["shapes"]}
    choice = {"choice": whole["value"]}
    refused = await from_jupyterlab(hub, "POST", json={**choice, "only_if_free": True})
    assert (refused.status_code, refused.json()["reason"]) == (409, "not-free")
    assert lab.waiting() == []
    assert (await from_jupyterlab(hub, "POST", json=choice)).status_code == 200
    assert [ticket.shape for ticket in lab.waiting()] == ["7g.40gb"]
    await offered(hub, lab)
    assert (await move(hub)).status_code == 202
    assert (await moved(hub))["MIGLAB_SHAPE"] == "7g.40gb"
    holds = await from_jupyterlab(hub, "POST", json=choice)
    assert (holds.status_code, holds.json()["reason"]) == (409, "already-done")


async def test_only_a_server_itself_chooses_and_only_slices(hub: Hub, lab: PoolLab):
    """Another's token is refused, and so is what is no slice, or no course of the student's."""
    await hub.start("ada", shape="cpu")
    await hub.start("bo", shape="cpu")
    assert (await from_jupyterlab(hub, "GET", user="bo")).status_code == 403
    assert (await from_jupyterlab(hub, "POST", "bo", json={"choice": "1g.5gb"})).status_code == 403
    for body in ({"choice": "cpu"}, {"choice": ""}, {"choice": 1}, {"choice": "x" * 5000}, {}):
        assert (await from_jupyterlab(hub, "POST", json=body)).status_code == 400
    outside = await from_jupyterlab(hub, "POST", json={"choice": "1g.5gb@others"})
    assert (outside.status_code, outside.json()["reason"]) == (403, "not-in-course")
    assert lab.waiting() == []


async def test_a_loop_of_choices_is_stopped(hub: Hub, lab: PoolLab):
    """Each is a row of the ledger for good, also one that is refused."""
    await hub.start("ada", shape="cpu")
    answers = [
        await from_jupyterlab(hub, "POST", json={"choice": "9g.99gb"})
        for _ in range(mixin.CHOICES_A_MINUTE + 1)
    ]
    assert "too-often" not in {answer.json()["reason"] for answer in answers[:-1]}
    assert (answers[-1].status_code, answers[-1].json()["reason"]) == (409, "too-often")


async def test_nothing_is_chosen_while_the_server_moves(hub: Hub, lab: PoolLab, monkeypatch):
    """Another choice would end the ticket whose slice was just taken."""
    await on_cpu(hub, lab)
    await offered(hub, lab)
    monkeypatch.setattr(hub_pages, "ANSWER_FIRST_S", 1.0)
    assert (await move(hub)).status_code == 202
    choice = await from_jupyterlab(hub, "POST", json={"choice": "3g.20gb"})
    assert choice.status_code == 409
    assert (await moved(hub))["MIGLAB_SHAPE"] == "7g.40gb"


async def test_a_named_servers_form_shows_its_own_line(hub: Hub):
    """JupyterHub gives the default server to the form of each: the address says which it is."""
    browser = await signed_in(hub, "ada")
    page = await browser.get("spawn/ada/lab2")
    assert re.search(r'data-user="ada"\s+data-server="lab2"', page.text)
    await browser.aclose()


async def test_a_server_that_could_not_attend_its_ticket_asks_for_none(hub: Hub, lab: PoolLab):
    """It would lose its position at once; the dialog says how to get a slice all the same."""
    await hub.start("ada", shape="cpu")
    hub.spawner("ada").student_api_url = ""
    for answer in (
        await from_jupyterlab(hub, "GET"),
        await from_jupyterlab(hub, "POST", json={"choice": "1g.5gb"}),
    ):
        assert (answer.status_code, answer.json()["reason"]) == (409, "stop-first")
        assert "stop this server" in answer.json()["message"]
    assert lab.waiting() == []
