"""Who may ask for what on the management listener: the routes' parameters that refuse others."""

from typing import Annotated

from fastapi import Depends, Request

from .answers import DeniedError
from .asker import Asker
from .auth import SignIn
from .host import PoolHost


async def who(request: Request) -> Asker:
    """Whoever asks; refuses nobody in particular."""
    sign_in: SignIn = request.app.state.sign_in
    return await sign_in.asker(request)


async def spawner_only(request: Request) -> Asker:
    """The spawner; refuses everybody else."""
    asker = await who(request)
    if not asker.is_spawner:
        raise DeniedError(403, "forbidden", "Only the spawner may do this.")
    return asker


async def staff_only(request: Request) -> Asker:
    """Staff, or the operator with the spawner's secret; refuses everybody else."""
    asker = await who(request)
    if not asker.sees_names:
        raise DeniedError(403, "forbidden", "Only instructors and admins may do this.")
    return asker


async def admin_only(request: Request) -> Asker:
    """A hub admin, or the operator with the spawner's secret; refuses everybody else."""
    asker = await who(request)
    if not asker.may_adopt:
        raise DeniedError(403, "forbidden", "Only admins may do this.")
    return asker


async def _host(request: Request) -> PoolHost:  # async: FastAPI gives a plain one a thread
    host: PoolHost = request.app.state.host
    return host


Who = Annotated[Asker, Depends(who)]
Spawner = Annotated[Asker, Depends(spawner_only)]
Staff = Annotated[Asker, Depends(staff_only)]
Admin = Annotated[Asker, Depends(admin_only)]
Host = Annotated[PoolHost, Depends(_host)]
