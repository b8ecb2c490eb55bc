"""Reservations over HTTP: everybody signed in sees them, staff make and cancel them."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_spawner.messages import REASON_MAX, ReservationRequest, ReservationView

from .answers import REFUSED
from .roles import Host, Staff, Who
from .views import visible_reservation

router = APIRouter(prefix="/api/reservations", responses=REFUSED)


@router.get("")
async def reservations(asker: Who, host: Host) -> list[ReservationView]:
    """What is reserved, the next in front; who made it and what for, staff alone see."""
    found = await host.decide(lambda pool: pool.reservations())
    return [visible_reservation(one, asker) for one in found]


@router.post("", status_code=201)
async def reserve(request: ReservationRequest, asker: Staff, host: Host) -> ReservationView:
    """Reserve slices for a course; what clashes or cannot be is refused, saying why."""
    return await host.decide(lambda pool: pool.reserve(request, asker.by))


@router.delete("/{reservation_id}")
async def unreserve(
    reservation_id: int,
    asker: Staff,
    host: Host,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> ReservationView:
    """Cancel a reservation; leases drawn from it live on."""
    return await host.decide(lambda pool: pool.unreserve(reservation_id, asker.by, reason))
