"""Leases: seen, attached, extended, released."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import USER_MAX
from miglab_api.leases import AttachRequest, ExtendRequest, Fence, LeaseView, ReleaseRequest
from miglab_pool.http.access.dependencies import (
    MayExtend,
    MayRelease,
    MaySeeNames,
    Runner,
    Spawner,
    lease_for,
)
from miglab_pool.http.access.principal import NOWHERE, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.pool import Pool

router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/leases")
async def leases(
    principal: MaySeeNames,
    runner: Runner,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[LeaseView]:
    """The live leases, or one user's, as far as the principal may see whose they are."""
    if (
        user is not None
        and not principal.is_user(user)
        and principal.courses(Right.SEE_NAMES) == NOWHERE
    ):
        raise DeniedError(403, "forbidden", "You can see your own leases only.")
    found = await runner.look(lambda pool: pool.leases.live(user))
    return [one for one in found if principal.may(Right.SEE_NAMES, one.course, one.user)]


@router.get("/leases/{lease_id}")
async def lease(lease_id: int, principal: MaySeeNames, runner: Runner) -> LeaseView:
    """One lease."""
    return await runner.decide(lambda pool: lease_for(pool, principal, lease_id, Right.SEE_NAMES))


@router.post("/leases/{lease_id}/attach")
async def attach(lease_id: int, request: AttachRequest, _: Spawner, runner: Runner) -> LeaseView:
    """The fence: the holder exists and is not started; it may start only if this is accepted."""
    return await runner.decide(
        lambda pool: pool.leases.attach(
            lease_id, request.generation, request.holder, request.ledger, request.server_started
        )
    )


@router.post("/leases/{lease_id}/running")
async def running(lease_id: int, request: Fence, _: Spawner, runner: Runner) -> LeaseView:
    """The holder was started."""
    return await runner.decide(lambda pool: pool.leases.running(lease_id, request))


@router.post("/leases/{lease_id}/release")
async def release(
    lease_id: int, request: ReleaseRequest, principal: MayRelease, runner: Runner
) -> LeaseView:
    """Ask for a lease back; it is freed once its holder is confirmed gone."""
    fence = None
    if request.generation is not None:
        fence = Fence(generation=request.generation, ledger=request.ledger)

    def decision(pool: Pool) -> LeaseView:
        lease_for(pool, principal, lease_id, Right.RELEASE)
        return pool.leases.release(lease_id, principal.by, request.reason, fence)

    return await runner.decide(decision)


@router.post("/leases/{lease_id}/extend")
async def extend(
    lease_id: int, request: ExtendRequest, principal: MayExtend, runner: Runner
) -> LeaseView:
    """Ask for more time; staff give more than a holder may take, into nothing that is reserved."""

    def decision(pool: Pool) -> LeaseView:
        found = lease_for(pool, principal, lease_id, Right.EXTEND)
        if principal.is_user(found.user):
            return pool.leases.extend(lease_id, request.by_s, principal.by)
        return pool.staff.extend(
            lease_id, request.by_s, principal.by, request.reason, request.expected
        )

    return await runner.decide(decision)
