"""What the spawner, staff and browsers ask of the service on Slurm."""

from typing import Annotated

from fastapi import APIRouter, FastAPI, Request

from miglab_api.leases import LeaseView
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.dependencies import OPEN, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED, DeniedError, install
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.service.runner import SlurmRunner

api = APIRouter(prefix="/api", responses=REFUSED)


def management_app(settings: SlurmSettings, runner: SlurmRunner, sign_in: SignIn) -> FastAPI:
    """The management application."""
    prefix = sign_in.access.prefix
    app = FastAPI(
        title="miglab on Slurm: management",
        version="1",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{prefix}/api/openapi.json",
    )
    app.include_router(api, prefix=prefix)
    app.state.runner, app.state.sign_in, app.state.settings = runner, sign_in, settings
    app.state.notices, app.state.title = settings.notices, settings.lab.title
    install(app, runner.metrics.refused)
    return app


def runner_of(request: Request) -> SlurmRunner:
    """The service's runner."""
    runner: SlurmRunner = request.app.state.runner
    return runner


def lease_for(runner: SlurmRunner, principal: Principal, number: int, right: Right) -> LeaseView:
    """A server's lease, if the principal has the right over it.

    Raises:
        Refused: there is no such lease.
        DeniedError: 404 or 403.
    """
    found = runner.door.leases.find(number)
    if not principal.may(Right.SEE_NAMES, found.course, found.user):
        raise DeniedError(404, "unknown-lease", f"You have no lease {number}.")
    principal.require(right, found.course, found.user)
    return found


@api.get("/health", dependencies=[OPEN])
async def health(request: Request) -> dict[str, object]:
    """Whether the service answers, and Slurm."""
    trouble = runner_of(request).trouble
    return {"ok": not trouble, "slurm": trouble or "answers"}


@api.get("/leases/{lease_id}")
async def lease(
    lease_id: int, principal: Annotated[Principal, needs(Right.SEE_NAMES)], request: Request
) -> LeaseView:
    """One server's lease, live or lately over; a lease is a job and has its number."""
    return lease_for(runner_of(request), principal, lease_id, Right.SEE_NAMES)
