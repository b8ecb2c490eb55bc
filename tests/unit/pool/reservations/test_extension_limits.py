"""What is reserved for later bounds by how much a guarantee may be extended."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import World

from miglab_api.leases import LeaseView
from miglab_pool.refused import Refused
from miglab_pool.settings import PoolSettings

from .test_reservations import RULES, TUESDAY, before_class, reserve

HOUR_S = 3600.0
LASTING = changed(RULES, lease_s=HOUR_S, extensions=2, extension_s=HOUR_S)


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100 an hour and a half before the class; leases last an hour, extensions another."""
    return before_class(make_world, LASTING, 1.5 * HOUR_S)


def extend(lab: World, lease: LeaseView, by_s: float = HOUR_S) -> LeaseView:
    return lab.pool.leases.extend(lease.id, by_s, lease.user)


def refusal(lab: World, lease: LeaseView, by_s: float = HOUR_S) -> str:
    with pytest.raises(Refused, check=because("no-extension")) as error:
        extend(lab, lease, by_s)
    return str(error.value)


def test_no_extension_into_a_class(lab: World) -> None:
    """Where a class needs every place a stranger's lease is guaranteed until it begins."""
    stranger = lab.run("bob")
    reserve(lab)
    reason = refusal(lab, stranger)
    assert "reserved from 10:00 CEST on for reservation 1" in reason
    assert "by 28 minutes" in reason
    longer = extend(lab, stranger, 1680.0)
    assert longer.guaranteed_until == TUESDAY - 120
    assert "cannot be extended" in refusal(lab, longer, 60.0)


@pytest.mark.parametrize(("course", "count"), [("everyone", 6), ("deep", 7)])
def test_who_blocks_nobody_may_stay(lab: World, course: str, count: int) -> None:
    """Where the class finds its places beside a lease, or in it, it is extended as ever."""
    lease = lab.run("bob", course=course)
    reserve(lab, count=count)
    assert extend(lab, lease).guaranteed_until == TUESDAY + HOUR_S / 2


def test_who_stays_anyway_takes_no_more(lab: World) -> None:
    """A lease that outlasts the kept time as it is may be extended beyond it."""
    stranger = lab.run("bob")
    for _ in range(2):
        extend(lab, stranger)
    reserve(lab)
    lab.pool.store.settings = changed(LASTING, extensions=3)
    assert extend(lab, stranger).guaranteed_until == TUESDAY + 2.5 * HOUR_S


def test_staff_may_not_either(lab: World) -> None:
    """Staff give time beyond the holder's extensions, and not what is reserved."""
    stranger = lab.run("bob")
    reserve(lab)
    with pytest.raises(Refused, check=because("no-extension")):
        lab.pool.staff.extend(stranger.id, HOUR_S, "asked nicely", "ina")


OTHERS_GPU = changed(LASTING, assigned={"1": "vision"})


@pytest.mark.parametrize(
    ("rules", "gpus", "shape", "count"),
    [
        pytest.param(LASTING, {"mig": False}, "full", 1, id="the one GPU is reserved whole"),
        pytest.param(OTHERS_GPU, {"gpus": 2}, "1g.5gb", 7, id="the other GPU is another course's"),
    ],
)
def test_no_way_out(
    make_world: Callable[..., World], rules: PoolSettings, gpus: Any, shape: str, count: int
) -> None:
    """A class that can go nowhere else has its places: the stranger may not stay."""
    lab = before_class(make_world, rules, 1.5 * HOUR_S, **gpus)
    stranger = lab.run("bob", shape)
    reserve(lab, shape=shape, count=count)
    assert "reservation 1" in refusal(lab, stranger)


def test_the_holder_sees_how_much_longer(lab: World) -> None:
    """What one extension may add is told beforehand, and asking for just that is granted."""
    stranger = lab.run("bob")
    assert lab.pool.leases.find(stranger.id).extension_s == HOUR_S
    reserve(lab)
    lease = lab.pool.leases.find(stranger.id)
    assert (lease.extension_s, lease.extensions_left) == (1680.0, 2)
    longer = extend(lab, stranger, lease.extension_s)
    assert (longer.extension_s, longer.extensions_left) == (0.0, 0)
    lab.pool.reservations.cancel(1, "ina")
    assert lab.pool.leases.find(stranger.id).extension_s == HOUR_S
