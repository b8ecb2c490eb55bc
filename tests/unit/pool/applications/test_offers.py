"""An offer is not use: who is offered what until when is drawn, counted, called and passed on."""

import httpx
from tests.unit.pool.applications.test_metrics import samples
from tests.unit.pool.conftest import World

from miglab_api.tickets import TicketState, TicketView
from miglab_pool.applications.metrics import Metrics

from .conftest import actions_taken, as_

STAFF, ALICE, BOB = as_("instructor-token"), as_("alice-token"), as_("bob-token")
SERVER = "lab9"


def offered(world: World, user: str = "dora") -> TicketView:
    """Somebody of ml is offered a slice and does not take it."""
    ticket = world.ask(user, server=SERVER, course="ml")
    world.work()
    ticket = world.pool.tickets.find(ticket.id)
    assert ticket.state is TicketState.OFFERED
    return ticket


async def test_an_offer_is_drawn_and_counted_as_offered(
    client: httpx.AsyncClient, world: World
) -> None:
    """The snapshot names student and end, the page draws and counts it, and it is no use."""
    before = world.pool.snapshot().people
    ticket = offered(world)
    snapshot = (await client.get("/api/pool", headers=STAFF)).json()
    (offer,) = snapshot["offered"]
    assert (offer["user"], offer["lease"]) == ("dora", ticket.lease)
    assert offer["expires_at"] == ticket.expires_at
    people = snapshot["people"]
    assert (people["holding"], people["offered"]) == (before.holding, 1)
    page = (await client.get("/", headers=STAFF)).text
    assert '<span class="state">offered</span>' in page
    assert 'data-before="held for "' in page
    assert "<dt>offered</dt><dd>1</dd>" in page
    world.pool.tickets.take(ticket.id)
    assert world.pool.snapshot().offered == ()
    assert world.pool.snapshot().people.holding == before.holding + 1


async def test_students_see_that_it_is_offered_and_not_to_whom(
    client: httpx.AsyncClient, world: World
) -> None:
    """Another student reads no name; whoever it is offered to reads that it is theirs."""
    ticket = offered(world, "alice")
    snapshot = (await client.get("/api/pool", headers=BOB)).json()
    assert snapshot["offered"][0]["user"] is None
    details = f"/details/ticket/{ticket.id}"
    assert (await client.get(details, headers=BOB)).status_code == 404
    own = (await client.get(details, headers=ALICE)).text
    assert "Offered to" in own and ">you, server" in own
    assert "Leave it to the next student" in own and "Call again" not in own
    line = (await client.get("/api/line", headers=ALICE)).json()
    assert (line["standings"][0]["state"], line["standings"][0]["ticket"]) == ("offered", ticket.id)


async def test_the_class_page_says_who_is_offered_a_slice(
    client: httpx.AsyncClient, world: World
) -> None:
    """The student is neither waiting nor on a slice, and the row says until when it is held."""
    ticket = offered(world)
    roster = (await client.get("/api/classes/ml", headers=STAFF)).json()
    row = next(row for row in roster["rows"] if row["user"] == "dora")
    assert (row["presence"], row["shape"]) == ("offered", "1g.5gb")
    assert row["offered_until"] == ticket.expires_at
    page = (await client.get("/class?course=ml", headers=STAFF)).text
    assert "held for" in page


def test_metrics_count_it_apart(world: World) -> None:
    """A lease that nobody has taken has a state of its own."""
    offered(world)
    metrics = Metrics({"1g.5gb"})
    values = samples(metrics.render(world.pool.snapshot(), world.pool.leases.brief_views()))
    assert values["miglab_leases", ("1g.5gb", "offered")] == 1
    assert ("miglab_leases", ("1g.5gb", "granted")) not in values


async def test_staff_call_again(client: httpx.AsyncClient, world: World) -> None:
    """The student reads their words, and the slices are held in full once more."""
    ticket = offered(world)
    offer_s = world.settings.pool.offer_s
    guarantee_left_s = guarantee_end(world, ticket) - world.at
    world.pass_time(offer_s - 60)
    details = f"/details/slice/{slice_of(world, ticket)}"
    page = (await client.get(details, headers=STAFF)).text
    assert "Offered to" in page and "Call again" in page and "Reclaim" not in page
    body = {"reason": "Your slice is ready.", "expected": "offered"}
    answer = await client.post(f"/api/tickets/{ticket.id}/call", headers=STAFF, json=body)
    assert answer.status_code == 200, answer.text
    called = answer.json()
    assert called["message"] == "ilse calls you: Your slice is ready."
    assert called["expires_at"] == world.at + offer_s
    assert guarantee_end(world, ticket) == world.at + guarantee_left_s, "the wait costs none of it"
    world.work_after(offer_s - 30)
    assert world.pool.tickets.find(ticket.id).state is TicketState.OFFERED
    assert actions_taken(world)[0] == (
        "call",
        str(ticket.id),
        "person:ilse",
        "Your slice is ready.",
    )


async def test_staff_pass_it_to_the_next(client: httpx.AsyncClient, world: World) -> None:
    """The next has it at once; the student keeps the place, reads why, and wasted nothing."""
    ticket = offered(world)
    held = [world.run(f"other{number}", course="ml") for number in range(3)]
    waiting = world.ask("next", course="ml")
    path = f"/api/tickets/{ticket.id}/pass"
    assert (await client.post(path, headers=BOB, json={"reason": "me"})).status_code in (403, 404)
    answer = await client.post(path, headers=STAFF, json={"reason": "You are not here."})
    assert answer.status_code == 200, answer.text
    assert held
    world.work()
    assert world.pool.tickets.find(waiting.id).state is TicketState.OFFERED
    passed = world.pool.tickets.find(ticket.id)
    assert passed.state is TicketState.ASIDE
    assert "ilse gave it to the next student (“You are not here.”). Your" in passed.message
    assert not world.pool.view.wasted.get("dora")
    again = await client.post(path, headers=STAFF, json={"reason": "again"})
    assert again.json()["reason"] == "not-offered"


def guarantee_end(world: World, ticket: TicketView) -> float:
    """Until when the lease of an offered ticket is guaranteed."""
    assert ticket.lease is not None
    return world.ledger.state.leases[ticket.lease].guaranteed_until


def slice_of(world: World, ticket: TicketView) -> int:
    rows = world.ledger.state.slices.values()
    return next(row.id for row in rows if row.lease == ticket.lease)
