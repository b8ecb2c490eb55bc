"""What the spawn page is told."""

from collections.abc import Callable

from tests.pool_settings import changed

from .conftest import World
from .test_extension_limits import LASTING
from .test_reservations import LEAD_S, before_class, go_to, reserve


def test_the_snapshot_says_what_each_ticket_says(make_world: Callable[..., World]) -> None:
    """Why somebody waits is the same whether all are looked at or one: by shape and course.

    The GPU that is the course's own is kept for its class; the other is in use.
    """
    lab = before_class(make_world, changed(LASTING, assigned={"1": "deep"}), gpus=2)
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
