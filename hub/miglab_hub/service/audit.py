"""The audit over HTTP: who did what, when and why."""

from typing import Annotated

from fastapi import APIRouter, Query

from miglab_spawner.desk_messages import AuditEntry
from miglab_spawner.messages import COURSE_MAX, USER_MAX
from miglab_spawner.pool.desk import LIMIT_MAX, Question

from .answers import REFUSED
from .asker import Asker
from .rights import Right
from .roles import Host, needs

router = APIRouter(prefix="/api/audit", responses=REFUSED)
LATEST = 1e11  # seconds since the epoch; a time in milliseconds is refused

When = Annotated[float | None, Query(ge=0, le=LATEST, allow_inf_nan=False)]
Word = Annotated[str | None, Query(max_length=USER_MAX + 10)]


@router.get("")
async def audit(
    asker: Annotated[Asker, needs(Right.AUDIT)],
    host: Host,
    since: When = None,
    until: When = None,
    by: Word = None,
    what: Annotated[str | None, Query(max_length=32)] = None,
    thing: Annotated[str | None, Query(max_length=80)] = None,
    course: Annotated[str | None, Query(min_length=1, max_length=COURSE_MAX)] = None,
    everything: bool = False,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
) -> list[AuditEntry]:
    """What people did, the newest first; of the own courses alone.

    ``everything`` is also what the pool, the spawner and the reclaimer did by themselves.
    """
    if course is not None:
        asker.require(Right.AUDIT, course)
    asked = Question(
        since=since,
        until=until,
        by=by,
        what=what,
        thing=thing,
        courses=asker.courses(Right.AUDIT) if course is None else (course,),
        is_all=everything,
        limit=limit,
    )
    return await host.decide(lambda pool: pool.desk.audit(asked))
