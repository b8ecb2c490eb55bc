"""The log: who did what to what, when and why, as a page, as JSON or for a spreadsheet.

What is asked for stands in the address.  The page also shows the messages of staff on display.
"""

import datetime as dt
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.base import COURSE_MAX, USER_MAX
from miglab_api.staff import CAUSES, AuditEntry, SentMessage, display_name
from miglab_api.usage import csv_text
from miglab_pool.http.access.dependencies import MayMessage, Runner, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.buttons import MAY_REASON, Action
from miglab_pool.http.pages.frame import csv_file, in_utc, left, moment, render, render_part, second
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.ledger.ledger import LARGEST_ID
from miglab_pool.staff import routes as message_routes
from miglab_pool.staff.log import LIMIT_MAX, Question, did
from miglab_pool.usage.page import parse_day
from miglab_pool.usage.report import DAY, BadPeriod, midnight

KINDS = {
    "gpu": "GPUs",
    "slice": "slices",
    "lease": "leases",
    "ticket": "tickets",
    "reservation": "reservations",
    "layout": "layouts",
    "message": "messages",
    "class": "classes",
    "pool": "the whole pool",
}
"""The kinds of things that something is done to, as the ledger has them, and as people say."""

AS_SAID = {words: name for name, words in CAUSES.items()}
SWAPPED = "The days end before they begin: swap them."
ROWS = 50
GONE = "That message is not shown any more. Look again."


Wanted = Mapping[str, str]
"""What an address asks for; what is not in it is open.

`since` and `until` are the first and the last day, `by` who did it, as the page names them;
`course` and `kind` of what; with `everything` also what nobody did by hand, `before` an entry's id.
"""


def wanted_of(query: Wanted) -> tuple[Wanted, str]:
    """What an address asks for, and what of it cannot be read, in words; that is left open."""
    since, until, problem = _days(query)
    wanted = {
        "since": f"{since or ''}",
        "until": f"{until or ''}",
        "by": query.get("by", "")[:USER_MAX].strip(),
        "course": query.get("course", ""),
        "kind": query["kind"] if query.get("kind") in KINDS else "",
        "everything": "True" if query.get("everything") else "",
        "before": _number(query.get("before", "")),
    }
    return {key: value for key, value in wanted.items() if value}, problem


def _days(query: Mapping[str, str]) -> tuple[dt.date | None, dt.date | None, str]:
    try:
        since, until = parse_day(query.get("since")), parse_day(query.get("until"))
    except BadPeriod as error:
        return None, None, str(error)
    if since and until and until < since:
        return None, None, SWAPPED
    return since, until, ""


def _number(text: str) -> str:
    is_one = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_ID))
    return f"{min(int(text), LARGEST_ID) or ''}" if is_one else ""


def question(
    wanted: Wanted, courses: Collection[str] | None, zone: ZoneInfo, limit: int
) -> Question:
    """What the audit is asked.

    Args:
        wanted: as `wanted_of` has it.
        courses: of which courses; None for everything.
        zone: where the days begin.
        limit: the newest so many.
    """
    since, until = parse_day(wanted.get("since")), parse_day(wanted.get("until"))
    by = wanted.get("by", "")
    return Question(
        since=midnight(since, zone) if since else None,
        until=midnight(until + DAY, zone) if until and until < dt.date.max else None,
        before=int(wanted["before"]) if "before" in wanted else None,
        by=AS_SAID.get(by, by) or None,
        kind=wanted.get("kind"),
        courses=courses,
        is_all="everything" in wanted,
        limit=limit,
    )


def sheet_query(wanted: Wanted, zone: ZoneInfo, limit: int) -> dict[str, str]:
    """The same question to `GET /api/audit`, from the newest on, for a spreadsheet."""
    asked = question(wanted, None, zone, limit)
    moments = {"since": asked.since, "until": asked.until, "by": asked.by, "before": None}
    found = {**wanted, **moments, "limit": limit, "format": "csv"}
    return {key: str(value) for key, value in found.items() if value is not None}


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
    return csv_file("audit.csv", as_csv(found))


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
    rows = ([in_utc(one.at), *(getattr(one, name) for name in COLUMNS[1:])] for one in entries)
    return csv_text(COLUMNS, rows)


async def page(request: Request, principal: Principal) -> str:
    """The whole page."""
    runner: PoolRunner = request.app.state.runner
    zone = ZoneInfo(request.app.state.timezone)
    wanted, problem = wanted_of(request.query_params)
    asked = question(wanted, courses_of(principal, wanted.get("course")), zone, ROWS + 1)
    found = await runner.read(lambda pool: pool.staff.audit(asked))
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in (await runner.snapshot()).gpus}
    own = principal.courses(Right.AUDIT)
    return render(
        "log.html",
        request,
        principal,
        "log",
        wanted=wanted,
        problem=problem,
        lines=found[:ROWS],
        target=lambda one: target_of(one, names),
        states=states_of,
        did=did,
        older=_address(wanted, f"{found[ROWS - 1].id}") if len(found) > ROWS else "",
        newest=_address(wanted, ""),
        sheet=urlencode(sheet_query(wanted, zone, LIMIT_MAX)),
        most=LIMIT_MAX,
        kinds=KINDS,
        courses=sorted(request.app.state.sign_in.book.courses if own is None else own),
        is_all=own is None,
        messages=await _messages(principal, runner),
        moment=lambda at: moment(at, zone),
        second=lambda at: second(at, zone),
        zone=zone.key,
    )


def _address(wanted: Wanted, before: str) -> str:
    return urlencode(wanted_of({**wanted, "before": before})[0])


def target_of(one: AuditEntry, names: Mapping[str, str]) -> str:
    """To what it was done, in words; ``names``: what people call a GPU, by its UUID.  Pure."""
    if one.kind == "pool":
        return "the pool"
    if one.kind == "gpu":
        return names.get(one.target, one.target)
    return f"{one.kind} {one.target}"


def states_of(one: AuditEntry) -> str:
    """The state before and after, or the one that it kept.  Pure."""
    is_change = one.from_state and one.from_state != one.to_state
    return f"{one.from_state} → {one.to_state}" if is_change else one.to_state


# Messages.


async def _messages(
    principal: Principal, runner: PoolRunner
) -> Sequence[tuple[SentMessage, str, bool]]:
    """What is shown now: each message, to whom, and whether the principal may withdraw it."""
    found = await message_routes.messages(principal, runner) if principal.has(Right.MESSAGE) else []
    return [(one, to_whom(one), message_routes.may_end(principal, one)) for one in found]


def to_whom(message: SentMessage) -> str:
    """Who reads a message, in words.  Pure."""
    if message.to_user is not None:
        server = f", server “{message.to_server}”" if message.to_server else ""
        return f"{message.to_user}{server}"
    return f"all of {message.to_course}" if message.to_course is not None else "everybody"


async def message_details(principal: MayMessage, runner: Runner, target: str) -> Response:
    """One message, with the form that withdraws it; what is not shown (any more) is 404."""
    found = await message_routes.messages(principal, runner)
    message = next((one for one in found if str(one.id) == target), None)
    if message is None:
        raise DeniedError(404, "no-such-page", GONE)
    facts = [
        ("To", to_whom(message)),
        ("By", display_name(message.by)),
        ("Message", message.text),
        ("Time", left(message.until, time.time())),
    ]
    actions = [_withdraw(message)] if message_routes.may_end(principal, message) else []
    title = f"Message to {to_whom(message)}"
    return HTMLResponse(render_part("details.html", title=title, facts=facts, actions=actions))


def _withdraw(message: SentMessage) -> Action:
    return Action(
        "withdraw",
        "Withdraw",
        "JupyterLab shows it no longer, to nobody; whoever has read it has read it.",
        "The message is withdrawn.",
        f"messages/{message.id}",
        "DELETE",
        fields=(MAY_REASON,),
        go="Withdraw it",
    )
