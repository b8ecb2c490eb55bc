"""Reservations over HTTP: all who are signed in see them, a course's instructors make them."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import REASON_MAX
from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_pool.http.access.dependencies import MayReserve, Runner, Who
from miglab_pool.http.access.principal import Principal, Right, visible_reservation
from miglab_pool.http.errors import REFUSED
from miglab_pool.pool import Pool

router = APIRouter(prefix="/api/reservations", responses=REFUSED)


@router.get("")
async def reservations(principal: Who, runner: Runner) -> list[ReservationView]:
    """What is reserved, the next in front; who made it and what for, staff alone see."""
    found = await runner.look(lambda pool: pool.reservations.all())
    return [visible_reservation(one, principal) for one in found]


@router.post("", status_code=201)
async def reserve(
    request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve slices for a course; what clashes or cannot be is refused, saying why."""
    principal.require(Right.RESERVE, request.course)
    return await runner.decide(lambda pool: pool.reservations.make(request, principal.by))


@router.post("/preview")
async def preview(
    request: ReservationRequest,
    principal: MayReserve,
    runner: Runner,
    reservation: Annotated[int, Query(ge=0)] = 0,
) -> ReservationView:
    """What would be reserved, or changed, and how much of it is certain; nothing is saved."""
    principal.require(Right.RESERVE, request.course)
    return await runner.look(lambda pool: pool.reservations.preview(request, reservation))


@router.put("/{reservation_id}")
async def change(
    reservation_id: int, request: ReservationRequest, principal: MayReserve, runner: Runner
) -> ReservationView:
    """Reserve otherwise; if that clashes or cannot be, it stays as it was."""
    principal.require(Right.RESERVE, request.course)

    def decision(pool: Pool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.change(reservation_id, request, principal.by)

    return await runner.decide(decision)


@router.delete("/{reservation_id}")
async def unreserve(
    reservation_id: int,
    principal: MayReserve,
    runner: Runner,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> ReservationView:
    """Cancel a reservation; leases drawn from it live on."""

    def decision(pool: Pool) -> ReservationView:
        _check_right(pool, principal, reservation_id)
        return pool.reservations.cancel(reservation_id, principal.by, reason)

    return await runner.decide(decision)


def _check_right(pool: Pool, principal: Principal, number: int) -> None:
    """Refuse whoever may not reserve for the course whose it is; what is over, the pool refuses."""
    found = next((one for one in pool.reservations.all() if one.id == number), None)
    if found is not None:
        principal.require(Right.RESERVE, found.course)
