"""What is reserved for later: who may stay until then, and who makes way."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.pool_settings import changed
from tests.refusals import because

from miglab_api.leases import LeaseView
from miglab_pool.gpu.shapes import profiles
from miglab_pool.leases.views import LEAST_S
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.refused import Refused
from miglab_pool.reservations import ahead as reservations_ahead
from miglab_pool.state.slot_choice import SlotCandidate, SlotRequest, choose_slots_for

from .conftest import World
from .layout_drafts import draft
from .test_reservations import LEAD_S, RULES, TUESDAY, go_to, reserve

HOUR_S = 3600.0
LASTING = changed(RULES, lease_s=HOUR_S, extensions=2, extension_s=HOUR_S)


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100 an hour and a half before the class; leases last an hour, extensions another."""
    world = make_world(LASTING)
    world.at = TUESDAY - 1.5 * HOUR_S
    world.pool.reconcile()
    return world


def refusal(lab: World, lease: LeaseView, by_s: float = HOUR_S) -> str:
    with pytest.raises(Refused) as error:
        lab.pool.leases.extend(lease.id, by_s, "bob")
    assert error.value.reason == "no-extension"
    return str(error.value)


# -- may stay -------------------------------------------------------------------------------------


def test_no_extension_into_a_class(lab: World) -> None:
    """Where a class needs every place a stranger's lease may last until they are kept, no longer.

    The refusal says for what, and how much longer it may.
    """
    stranger = lab.run("bob")
    reserve(lab)
    reason = refusal(lab, stranger)
    assert "reserved from 09:45 CEST on for reservation 1" in reason
    assert "by 15 minutes" in reason
    longer = lab.pool.leases.extend(stranger.id, 900.0, "bob")
    assert longer.guaranteed_until == TUESDAY - LEAD_S
    assert "cannot be extended" in refusal(lab, longer, 60.0)


def test_who_blocks_nobody_may_stay(lab: World) -> None:
    """Where the class finds its places beside it a lease is extended as ever."""
    stranger = lab.run("bob")
    reserve(lab, count=6)
    assert (
        lab.pool.leases.extend(stranger.id, HOUR_S, "bob").guaranteed_until == TUESDAY + HOUR_S / 2
    )


def test_the_last_room_goes_to_who_asks_first(lab: World) -> None:
    """Two could stay one by one, not both: the second is refused."""
    one, other = lab.run("bob"), lab.run("cy")
    reserve(lab, count=6)
    lab.pool.leases.extend(one.id, HOUR_S, "bob")
    assert "reservation 1" in refusal(lab, other)


def test_a_class_is_not_in_its_own_way(lab: World) -> None:
    """A lease that counts as one of the reserved is extended into its class."""
    student = lab.run("ada", course="deep")
    reserve(lab)
    assert (
        lab.pool.leases.extend(student.id, HOUR_S, "ada").guaranteed_until == TUESDAY + HOUR_S / 2
    )


def test_who_stays_anyway_takes_no_more(lab: World) -> None:
    """A lease that outlasts the kept time as it is may be extended beyond it."""
    stranger = lab.run("bob")
    lab.pool.leases.extend(stranger.id, HOUR_S, "bob")
    lab.pool.leases.extend(stranger.id, HOUR_S, "bob")
    reserve(lab)
    extended = changed(LASTING, extensions=3)
    lab.pool.store.settings = extended
    assert (
        lab.pool.leases.extend(stranger.id, HOUR_S, "bob").guaranteed_until
        == TUESDAY + 2.5 * HOUR_S
    )


def test_staff_may_not_either(lab: World) -> None:
    """Staff give time beyond the holder's extensions, and not what is reserved."""
    stranger = lab.run("bob")
    reserve(lab)
    with pytest.raises(Refused, check=because("no-extension")):
        lab.pool.staff.extend(stranger.id, HOUR_S, "asked nicely", "ina")


def test_whole_gpus_are_kept_too(make_world: Callable[..., World]) -> None:
    """The one GPU that a class has reserved whole is not held beyond its start."""
    lab = make_world(LASTING, mig=False)
    lab.at = TUESDAY - 1.5 * HOUR_S
    lab.pool.reconcile()
    lab.pool.sample()
    stranger = lab.run("bob", "full")
    reserve(lab, shape="full", count=1)
    assert "reservation 1" in refusal(lab, stranger)


def test_kept_times_are_in_order(lab: World) -> None:
    """The times at which places are kept, from the lead on, between two moments."""
    reserve(lab)
    reserve(
        lab, course="vision", count=2, weekdays=("tue", "wed"), from_time="13:00", to_time="14:00"
    )
    found = reservations_ahead.reserved_times(lab.pool.view, lab.at, TUESDAY + 28 * HOUR_S)
    assert [(one.row.id, one.begins - TUESDAY + LEAD_S) for one in found] == [
        (1, 0.0),
        (2, 3 * HOUR_S),
        (2, 27 * HOUR_S),
    ]
    go_to(lab, 901)
    assert [
        one.row.id for one in reservations_ahead.reserved_times(lab.pool.view, lab.at, lab.at + 60)
    ] == []


def test_another_courses_gpu_is_no_way_out(make_world: Callable[..., World]) -> None:
    """A class cannot move to a GPU that is another course's own: the stranger may not stay."""
    lab = make_world(changed(LASTING, assigned={"1": "vision"}), gpus=2)
    lab.at = TUESDAY - 1.5 * HOUR_S
    lab.pool.reconcile()
    stranger = lab.run("bob")
    reserve(lab)
    assert "reservation 1" in refusal(lab, stranger)


def test_the_holder_sees_how_much_longer(lab: World) -> None:
    """What one extension may add is told beforehand, and asking for just that is granted."""
    stranger = lab.run("bob")
    assert lab.pool.leases.find(stranger.id).extension_s == HOUR_S
    reserve(lab)
    told = lab.pool.leases.find(stranger.id)
    assert (told.extension_s, told.extensions_left) == (900.0, 2)
    longer = lab.pool.leases.extend(stranger.id, told.extension_s, "bob")
    assert (longer.extension_s, longer.extensions_left) == (0.0, 0)
    lab.pool.reservations.cancel(1, "ina")
    assert lab.pool.leases.find(stranger.id).extension_s == HOUR_S


def test_what_others_do_is_seen_in_a_minute(lab: World) -> None:
    """Room that somebody else has taken is told of a little later, and refused at once."""
    one, other = lab.run("bob"), lab.run("cy")
    reserve(lab, count=6)
    assert lab.pool.leases.find(other.id).extension_s == HOUR_S
    lab.pool.leases.extend(one.id, HOUR_S, "bob")
    assert "reservation 1" in refusal(lab, other)
    lab.pass_time(61)
    assert lab.pool.leases.find(other.id).extension_s == 900.0


# -- what a round shares --------------------------------------------------------------------------


def worse(lab: World, lease: LeaseRow, at: float) -> bool:
    """Whether fewer slices of what is kept at a moment find a place if a lease stays: by counting.

    Nothing is shared with another lease or moment here.
    """
    view = lab.pool.view
    others = [one for one in reservations_ahead.staying(view, at) if one.id != lease.id]
    return unplaced(lab, at, [*others, lease]) > unplaced(lab, at, others)


def unplaced(lab: World, at: float, stays: list[LeaseRow]) -> int:
    view = lab.pool.view
    rows = [
        one.row for one in reservations_ahead.reserving(view, at, stays) for _ in range(one.left)
    ]
    requests = [SlotRequest(row.course, profiles(row.shape)) for row in rows]
    held = [row for lease in stays for row in view.slices_of(lease)]
    numbers = {row.id for row in held}
    then = {uuid: one.then(numbers) for uuid, one in view.facts.items()}
    candidates = [
        SlotCandidate(
            replace(
                occupancy,
                geometry=then[occupancy.gpu].geometry,
                course=then[occupancy.gpu].course,
                fixed=(
                    *occupancy.fixed,
                    *(view.placed(row) for row in held if row.gpu == occupancy.gpu),
                ),
            )
        )
        for occupancy in view.occupancies
    ]
    slots = choose_slots_for(requests, candidates).values()
    return sum(len(request.profiles) for request in requests) - sum(len(found) for found in slots)


def first_in_the_way(lab: World, lease: LeaseRow) -> float | None:
    """When the first of what is kept begins that an extension would be in the way of."""
    since = max(lab.at, lease.guaranteed_until or 0.0)
    for time in reservations_ahead.reserved_times(lab.pool.view, since, since + HOUR_S):
        if worse(lab, lease, max(since, time.begins)):
            return time.begins - since
    return None


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


def lay_some(lab: World, dice: random.Random) -> None:
    """Layouts of GPUs on which leases lie already."""
    partitions = ("2x3g.20gb", "3g.20gb + 2g.10gb + 1g.5gb", "2x2g.10gb + 1g.5gb", "7x1g.5gb")
    for gpu in lab.pool.layouts.partitionable():
        asked = draft(dice.choice(partitions), gpu.index)
        lab.pool.layouts.apply(asked, "root", anyway="chance")


@pytest.mark.parametrize("seed", range(24))
def test_a_round_says_the_same_as_each_alone(make_world: Callable[..., World], seed: int) -> None:
    """What all leases share is worked out once; each is told what it would be told alone."""
    dice = random.Random(seed)
    assigned = {"1": "deep"} if seed % 3 == 0 else {}
    lab = make_world(changed(LASTING, assigned=assigned), gpus=2)
    lab.at = TUESDAY - dice.choice((1.0, 1.5)) * HOUR_S
    lab.pool.reconcile()
    busy(lab, dice)
    if seed % 2:
        lay_some(lab, dice)
    for lease in lab.pool.leases.live():
        row = lab.ledger.state.leases[lease.id]
        most_s = first_in_the_way(lab, row)
        told = HOUR_S if most_s is None else most_s if most_s >= LEAST_S else 0.0
        assert lease.extension_s == told
