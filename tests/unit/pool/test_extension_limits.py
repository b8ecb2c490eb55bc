"""What is reserved for later bounds by how much a guarantee may be extended."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed
from tests.refusals import because

from miglab_api.leases import LeaseView
from miglab_pool.refused import Refused

from .conftest import World
from .test_reservations import RULES, TUESDAY, reserve

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
    """Where a class needs every place a stranger's lease is guaranteed until it begins, no longer.

    The refusal says for what, and how much longer it may.
    """
    stranger = lab.run("bob")
    reserve(lab)
    reason = refusal(lab, stranger)
    assert "reserved from 10:00 CEST on for reservation 1" in reason
    assert "by 28 minutes" in reason
    longer = lab.pool.leases.extend(stranger.id, 1680.0, "bob")
    assert longer.guaranteed_until == TUESDAY - 120
    assert "cannot be extended" in refusal(lab, longer, 60.0)


def test_who_blocks_nobody_may_stay(lab: World) -> None:
    """Where the class finds its places beside it a lease is extended as ever."""
    stranger = lab.run("bob")
    reserve(lab, count=6)
    assert (
        lab.pool.leases.extend(stranger.id, HOUR_S, "bob").guaranteed_until == TUESDAY + HOUR_S / 2
    )


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
    assert (told.extension_s, told.extensions_left) == (1680.0, 2)
    longer = lab.pool.leases.extend(stranger.id, told.extension_s, "bob")
    assert (longer.extension_s, longer.extensions_left) == (0.0, 0)
    lab.pool.reservations.cancel(1, "ina")
    assert lab.pool.leases.find(stranger.id).extension_s == HOUR_S


def test_what_others_do_is_seen_in_a_minute(lab: World) -> None:
    """Two could stay one by one, not both: refused at once, and told of a little later."""
    one, other = lab.run("bob"), lab.run("cy")
    reserve(lab, count=6)
    assert lab.pool.leases.find(other.id).extension_s == HOUR_S
    lab.pool.leases.extend(one.id, HOUR_S, "bob")
    assert "reservation 1" in refusal(lab, other)
    lab.pass_time(61)
    assert lab.pool.leases.find(other.id).extension_s == 1680.0
