"""The routes by which `miglab prove` borrows GPUs that nobody holds, and returns them."""

from fastapi import APIRouter

from miglab_api.gpus import PoolSnapshot, ProofLoan
from miglab_pool.applications.pool_runner import Runner
from miglab_pool.http.access.dependencies import Spawner
from miglab_pool.http.errors import REFUSED

router = APIRouter(prefix="/api", responses=REFUSED)


@router.post("/proof")
async def lend(principal: Spawner, runner: Runner) -> ProofLoan:
    """Keep leases off every GPU that nobody holds, while a `miglab prove` on this host runs."""
    return await runner.on_gpu_thread(lambda pool: pool.lend_for_proof(principal.actor))


@router.delete("/proof")
async def take_back(principal: Spawner, runner: Runner) -> PoolSnapshot:
    """Take the GPUs of a `miglab prove` that is over back at once."""
    await runner.on_gpu_thread(lambda pool: pool.follow_proof())
    return await runner.snapshot()
