"""What the spawn page is told: worked out in few steps, as if every step had been taken."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.pool_settings import changed

from miglab_pool.gpu.shapes import resolve
from miglab_pool.queue import order as queue
from miglab_pool.queue.backfill import outside_hold
from miglab_pool.queue.offers import count_free
from miglab_pool.reservations import slots as reserved_slots
from miglab_pool.state.placement import GpuOccupancy, open_to

from .conftest import SHAPES, World
from .test_extension_limits import HOUR_S, LASTING
from .test_reservations import LEAD_S, TUESDAY, go_to, reserve


def busy(lab: World, dice: random.Random) -> None:
    """Leases of several shapes and ends, and classes that follow one another."""
    for number in range(dice.randrange(4, 14)):
        lab.ask(
            f"user{number}",
            dice.choice(("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "2x1g.5gb")),
            course=dice.choice(("everyone", "everyone", "deep")),
        )
    lab.work()
    for ticket in list(lab.ledger.state.tickets.values()):
        if lab.pool.tickets.find(ticket.id).state == "offered":
            lab.pass_time(dice.choice((0.0, 300.0)))
            lease = lab.pool.tickets.take(ticket.id)
            lab.pool.leases.attach(lease.id, lease.generation, lab.new_holder())
    for hour in (10, 11, 12):
        shape, count = dice.choice(("1g.5gb", "2g.10gb", "3g.20gb")), dice.randrange(1, 5)
        reserve(lab, shape=shape, count=count, from_time=f"{hour}:00", to_time=f"{hour}:45")


def without_lease(lab: World, occupancy: GpuOccupancy, number: int) -> GpuOccupancy:
    """The GPU when one lease is over."""
    view = lab.pool.view
    rows = view.slices_of(view.leases[number])
    places = [view.placed(row).placement for row in rows if row.gpu == occupancy.gpu]
    live = tuple(item for item in occupancy.live if item.placement not in places)
    return replace(occupancy, live=live)


def first_end(lab: World, shape: tuple[str, ...], course: str) -> float | None:
    """After which end the shape fits: by letting one lease end after the other."""
    view = lab.pool.view
    first = next(iter(queue.without_slot(view)), None)
    kept_for = first if first and sorted(first.profiles) != sorted(shape) else None
    gpus = view.occupancies
    ends = ((max(lease.guaranteed_until, lab.at) + 300, lease.id) for lease in view.leases.values())
    for end, number in sorted(ends):
        gpus = [without_lease(lab, occupancy, number) for occupancy in gpus]
        left = reserved_slots.closed(view, gpus)
        states = open_to(left, course)
        if kept_for is not None:
            kept = outside_hold(kept_for.profiles, open_to(left, kept_for.course))
            usable = {occupancy.gpu: occupancy.usable for occupancy in open_to(left, course)}
            states = [replace(state, usable=usable[state.gpu]) for state in kept]
        if count_free(shape, states):
            return max(0.0, end - lab.at)
    return None


@pytest.mark.parametrize("seed", range(10))
def test_the_next_end_is_the_first_that_helps(make_world: Callable[..., World], seed: int) -> None:
    """Beside what is kept for a class, and for the first in line if that wants another shape."""
    dice = random.Random(seed)
    lab = make_world(changed(LASTING, assigned={"1": "deep"} if seed % 3 == 0 else {}), gpus=2)
    lab.at = TUESDAY - 1.5 * HOUR_S
    lab.pool.reconcile()
    busy(lab, dice)
    go_to(lab, dice.choice((-HOUR_S, 60.0 - LEAD_S, 60.0)))
    for user, shape in (("zoe", "7g.40gb"), ("yan", "3g.20gb"), ("xia", "1g.5gb")):
        lab.ask(user, dice.choice((shape, "2g.10gb")))
    lab.work()
    geometries = lab.pool.view.geometries
    for course in lab.pool.offers(["everyone", "deep"]).courses:
        for offer in course.shapes:
            if offer.shape in SHAPES[:-2] and not offer.free_now:
                profiles = resolve(offer.shape, geometries).profiles
                assert offer.next_end_s == first_end(lab, profiles, course.course)


def test_the_snapshot_says_what_each_ticket_says(make_world: Callable[..., World]) -> None:
    """Why somebody waits is the same whether all are looked at or one: by shape and course.

    The GPU that is the course's own is kept for its class; the other is in use.
    """
    lab = make_world(changed(LASTING, assigned={"1": "deep"}), gpus=2)
    lab.at = TUESDAY - HOUR_S
    lab.pool.reconcile()
    for number in range(7):
        lab.run(f"user{number}")
    reserve(lab)
    go_to(lab, 60.0 - LEAD_S)
    for user, course in (("yan", "everyone"), ("zoe", "deep")):
        lab.ask(user, "3g.20gb", course=course)
    waiting = lab.pool.snapshot().waiting
    is_told = {view.user: "kept for a class" in view.message for view in waiting}
    assert is_told == {"yan": False, "zoe": True}
    assert list(waiting) == [lab.pool.tickets.find(view.id) for view in waiting]


def test_every_page_counts_the_same_people(world: World) -> None:
    """Spawn page, pool page and JupyterLab: one count, in leases of the smallest shape."""
    world.run("ada", "3g.20gb")
    pool = world.pool
    people = pool.snapshot().people
    assert (people.shape, people.free, people.total) == ("1g.5gb", 4, 7)
    world.ask("bob", "7g.40gb")
    world.ask("bob", "7g.40gb", server="lab2")
    people = pool.snapshot().people
    assert people.free == 0  # it is kept for bob
    assert (people.holding, people.waiting) == (1, 1)
    assert pool.offers("cy", ["everyone"]).people == people
    status = pool.tickets.server_status("ada", "")
    assert status.people == "0 of 7 free (1g.5gb); 1 holds, 1 waits"
