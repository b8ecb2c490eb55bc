"""The audit over HTTP: who did what, when and why, as JSON or for a spreadsheet."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from miglab_api.base import COURSE_MAX, USER_MAX
from miglab_api.spreadsheet import sheet
from miglab_api.staff import AuditEntry
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import REFUSED
from miglab_pool.ledger.ledger import LARGEST_ID
from miglab_pool.views.audit import LIMIT_MAX, Question

router = APIRouter(prefix="/api/audit", responses=REFUSED)
COLUMNS = ("at_utc", "by", "action", "kind", "target", "from_state", "to_state", "reason", "course")
LATEST = 1e11  # seconds since the epoch; a time in milliseconds is refused

When = Annotated[float | None, Query(ge=0, le=LATEST, allow_inf_nan=False)]
Word = Annotated[str | None, Query(max_length=USER_MAX + 10)]


@router.get("", responses={200: {"content": {"text/csv": {}}}}, response_model=list[AuditEntry])
async def audit(
    principal: Annotated[Principal, needs(Right.AUDIT)],
    runner: Runner,
    since: When = None,
    until: When = None,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    by: Word = None,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    target: Annotated[str | None, Query(max_length=80)] = None,
    course: Annotated[str | None, Query(min_length=1, max_length=COURSE_MAX)] = None,
    everything: bool = False,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
    format: Literal["json", "csv"] = "json",
) -> list[AuditEntry] | Response:
    """What people did, the newest first; of the own courses alone.

    What students did in their own servers is told to who asks ``by`` whom, or for ``everything``,
    which is also what the pool, the spawner and the reclaimer did by themselves.
    """
    asked = Question(
        since=since,
        until=until,
        before=before,
        by=by,
        kind=kind,
        target=target,
        courses=courses_of(principal, course),
        is_all=everything,
        limit=limit,
    )
    found = await runner.read(lambda pool: pool.staff.audit(asked))
    if format == "json":
        return found
    save = 'attachment; filename="audit.csv"'
    return Response(as_csv(found), media_type="text/csv", headers={"Content-Disposition": save})


def courses_of(principal: Principal, course: str | None) -> frozenset[str] | None:
    """Of which courses the principal is told: of this one, or of all whose audit they may read.

    Returns:
        None for everything, course or not.

    Raises:
        DeniedError: 403, the course's audit is not for them.
    """
    if course is None:
        return principal.courses(Right.AUDIT)
    principal.require(Right.AUDIT, course)
    return frozenset({course})


def as_csv(entries: Iterable[AuditEntry]) -> str:
    """The entries for a spreadsheet."""
    return sheet(COLUMNS, [_cells(one) for one in entries])


def _cells(one: AuditEntry) -> list[str]:
    at = f"{datetime.fromtimestamp(one.at, UTC):%Y-%m-%d %H:%M:%S}"
    return [at, *(getattr(one, name) for name in COLUMNS[1:])]
