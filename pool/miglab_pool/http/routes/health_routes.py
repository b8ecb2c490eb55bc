"""How the service is, for whoever watches it: open to all, names nobody."""

from fastapi import APIRouter

from miglab_api.base import WireModel
from miglab_api.gpus import PoolSnapshot
from miglab_pool.http.access.dependencies import OPEN, Runner
from miglab_pool.http.errors import REFUSED
from miglab_pool.http.pool_runner import PoolRunner


class ServiceHealth(WireModel):
    """How the pool is.

    Attributes:
        gpus_troubled: how many of the GPUs take no new lease.
        is_stuck: whether a driver call hangs; its GPU takes no lease.
        is_reconciled: whether ledger, GPUs and servers were compared since the service began.
        unknown_to_hub: how many servers are to end that the hub does not have, and still run.
        left_alone: how many containers of this lab hold slices by a lease that is not the ledger's.
        is_other_engine: whether another Docker engine answers than the one that has the leases'
            containers, so that none of them is known to be gone.
        silent_servers: how many students' servers have not reported for `reclaim.stale_s`.
        failing: the service's own loops whose last round failed.
    """

    ok: bool
    gpus: int
    gpus_troubled: int
    is_stuck: bool
    is_reconciled: bool
    unknown_to_hub: int = 0
    left_alone: int = 0
    is_other_engine: bool = False
    silent_servers: int = 0
    failing: tuple[str, ...]


router = APIRouter(prefix="/api", responses=REFUSED)


@router.get("/health", dependencies=[OPEN])
async def health(runner: Runner) -> ServiceHealth:
    """Whether the pool answers, its rounds succeed, and every GPU answers; open to all."""
    return health_of(runner, await runner.snapshot())


def health_of(runner: PoolRunner, snapshot: PoolSnapshot) -> ServiceHealth:
    """How the pool is, by a snapshot of it."""
    troubled = sum(gpu.state != "ok" for gpu in snapshot.gpus)
    has_other_engine = any(one.kind == "engine" for one in runner.findings)
    return ServiceHealth(
        ok=not (troubled or runner.is_stuck or runner.failing or runner.unknown_to_hub)
        and not has_other_engine
        and runner.is_reconciled,
        gpus=len(snapshot.gpus),
        gpus_troubled=troubled,
        is_stuck=runner.is_stuck,
        is_reconciled=runner.is_reconciled,
        unknown_to_hub=len(runner.unknown_to_hub),
        left_alone=sum(one.kind == "holder" and not one.done for one in runner.findings),
        is_other_engine=has_other_engine,
        silent_servers=runner.silent_servers,
        failing=runner.failing,
    )
