"""Leases: seen, attached, extended, released."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_api.base import USER_MAX
from miglab_api.leases import AttachRequest, ExtendRequest, Fence, LeaseView, ReleaseRequest
from miglab_pool.http.access.dependencies import Host, Spawner, needs
from miglab_pool.http.access.lookup import lease_for
from miglab_pool.http.access.principal import NOWHERE, Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.pool import Pool

router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/leases")
async def leases(
    asker: Annotated[Principal, needs(Right.SEE_NAMES)],
    host: Host,
    user: Annotated[str | None, Query(max_length=USER_MAX)] = None,
) -> list[LeaseView]:
    """The live leases, or one user's, as far as the asker may see whose they are."""
    if user is not None and not asker.is_user(user) and asker.courses(Right.SEE_NAMES) == NOWHERE:
        raise DeniedError(403, "forbidden", "You can see your own leases only.")
    found = await host.look(lambda pool: pool.leases.live(user))
    return [one for one in found if asker.may(Right.SEE_NAMES, one.course, one.user)]


@router.get("/leases/{lease_id}")
async def lease(
    lease_id: int, asker: Annotated[Principal, needs(Right.SEE_NAMES)], host: Host
) -> LeaseView:
    """One lease."""
    return await host.decide(lambda pool: lease_for(pool, asker, lease_id, Right.SEE_NAMES))


@router.post("/leases/{lease_id}/attach")
async def attach(lease_id: int, request: AttachRequest, _: Spawner, host: Host) -> LeaseView:
    """The fence: the holder exists and is not started; it may start only if this is accepted."""
    return await host.decide(
        lambda pool: pool.leases.attach(
            lease_id, request.generation, request.holder, request.ledger
        )
    )


@router.post("/leases/{lease_id}/running")
async def running(lease_id: int, request: Fence, _: Spawner, host: Host) -> LeaseView:
    """The holder was started."""
    return await host.decide(lambda pool: pool.leases.running(lease_id, request))


@router.post("/leases/{lease_id}/release")
async def release(
    lease_id: int,
    request: ReleaseRequest,
    asker: Annotated[Principal, needs(Right.RELEASE)],
    host: Host,
) -> LeaseView:
    """Ask for a lease back; it is freed once its holder is confirmed gone."""
    fence = None
    if request.generation is not None:
        fence = Fence(generation=request.generation, ledger=request.ledger)

    def decision(pool: Pool) -> LeaseView:
        lease_for(pool, asker, lease_id, Right.RELEASE)
        return pool.leases.release(lease_id, asker.by, request.reason, fence)

    return await host.decide(decision)


@router.post("/leases/{lease_id}/extend")
async def extend(
    lease_id: int,
    request: ExtendRequest,
    asker: Annotated[Principal, needs(Right.EXTEND)],
    host: Host,
) -> LeaseView:
    """Ask for more time; staff give more than a holder may take, into nothing that is reserved."""

    def decision(pool: Pool) -> LeaseView:
        found = lease_for(pool, asker, lease_id, Right.EXTEND)
        if asker.is_user(found.user):
            return pool.leases.extend(lease_id, request.by_s, asker.by)
        return pool.staff.extend(lease_id, request.by_s, asker.by, request.reason, request.seen)

    return await host.decide(decision)
