"""The Log page and the route of the audit: as a page, as JSON or as CSV.

The address holds the filters.  The page also shows the messages of staff on display.
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
from miglab_pool.http.access.dependencies import MayMessage, needs
from miglab_pool.http.access.principal import Principal, Right
from miglab_pool.http.errors import REFUSED, DeniedError
from miglab_pool.http.pages.buttons import MAY_REASON, Action
from miglab_pool.http.pages.frame import (
    csv_file,
    moment,
    moment_to_second,
    render,
    render_part,
    time_left,
    utc_text,
)
from miglab_pool.http.runner_protocol import RunnerOf
from miglab_pool.ledger.ledger import LARGEST_ID
from miglab_pool.staff import routes as message_routes
from miglab_pool.staff.log import LIMIT_MAX, AuditQuery, verb_phrase
from miglab_pool.staff.routes import Runner, StaffPool
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
"""The kinds of rows that actions concern, as the ledger and as the page name them."""

CAUSE_BY_TITLE = {title: name for name, title in CAUSES.items()}
SWAPPED = "The days end before they begin: swap them."
ROWS_SHOWN = 50
MESSAGE_GONE = "That message is not shown any more. Look again."


LogFilters = Mapping[str, str]
"""The filters of the log, as its address has them; a filter that is left out selects everything.

`since` and `until` are the first and the last day, `by` is the actor as the page names them, and
`course` and `kind` are those of the row.  `everything` includes what nobody did by hand, and
`before` is the id of an entry.
"""


def read_filters(query: LogFilters) -> tuple[LogFilters, str]:
    """Return the filters of an address, and in words the problem of those that cannot be read."""
    since, until, problem = _read_days(query)
    filters = {
        "since": f"{since or ''}",
        "until": f"{until or ''}",
        "by": query.get("by", "")[:USER_MAX].strip(),
        "course": query.get("course", ""),
        "kind": query["kind"] if query.get("kind") in KINDS else "",
        "everything": "True" if query.get("everything") else "",
        "before": _read_id(query.get("before", "")),
    }
    return {key: value for key, value in filters.items() if value}, problem


def _read_days(query: Mapping[str, str]) -> tuple[dt.date | None, dt.date | None, str]:
    try:
        since, until = parse_day(query.get("since")), parse_day(query.get("until"))
    except BadPeriod as error:
        return None, None, str(error)
    if since and until and until < since:
        return None, None, SWAPPED
    return since, until, ""


def _read_id(text: str) -> str:
    is_one = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_ID))
    return f"{min(int(text), LARGEST_ID) or ''}" if is_one else ""


def build_query(
    filters: LogFilters, courses: Collection[str] | None, zone: ZoneInfo, limit: int
) -> AuditQuery:
    """Return the query of the audit for these filters.

    Args:
        filters: as `read_filters` returns them.
        courses: the courses whose entries are selected; None for all entries.
        zone: the time zone of the days.
        limit: how many of the newest entries are returned.
    """
    since, until = parse_day(filters.get("since")), parse_day(filters.get("until"))
    actor = filters.get("by", "")
    return AuditQuery(
        since=midnight(since, zone) if since else None,
        until=midnight(until + DAY, zone) if until and until < dt.date.max else None,
        before=int(filters["before"]) if "before" in filters else None,
        actor=CAUSE_BY_TITLE.get(actor, actor) or None,
        kind=filters.get("kind"),
        courses=courses,
        is_all="everything" in filters,
        limit=limit,
    )


def csv_parameters(filters: LogFilters, zone: ZoneInfo, limit: int) -> dict[str, str]:
    """Return the parameters of `GET /api/audit` for these filters as CSV, from the newest on."""
    query = build_query(filters, None, zone, limit)
    moments = {"since": query.since, "until": query.until, "by": query.actor, "before": None}
    parameters = {**filters, **moments, "limit": limit, "format": "csv"}
    return {key: str(value) for key, value in parameters.items() if value is not None}


router = APIRouter(prefix="/api/audit", responses=REFUSED)
COLUMNS = ("at_utc", "by", "action", "kind", "target", "from_state", "to_state", "reason", "course")
LATEST = 1e11  # seconds since the epoch; a time in milliseconds is refused

Moment = Annotated[float | None, Query(ge=0, le=LATEST, allow_inf_nan=False)]


@router.get("", responses={200: {"content": {"text/csv": {}}}}, response_model=list[AuditEntry])
async def audit(
    principal: Annotated[Principal, needs(Right.AUDIT)],
    runner: Runner,
    since: Moment = None,
    until: Moment = None,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    actor: Annotated[str | None, Query(alias="by", max_length=USER_MAX + 10)] = None,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    target: Annotated[str | None, Query(max_length=80)] = None,
    course: Annotated[str | None, Query(min_length=1, max_length=COURSE_MAX)] = None,
    everything: bool = False,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
    format: Literal["json", "csv"] = "json",
) -> list[AuditEntry] | Response:
    """Return what people did, the newest first, in the courses whose audit the principal may read.

    What students did in their own servers is included with ``by`` or ``everything``; the latter
    also includes what the pool, the spawner and the reclaimer did by themselves.
    """
    query = AuditQuery(
        since=since,
        until=until,
        before=before,
        actor=actor,
        kind=kind,
        target=target,
        courses=audited_courses(principal, course),
        is_all=everything,
        limit=limit,
    )
    entries = await runner.query_ledger(lambda pool: pool.staff.audit(query))
    if format == "json":
        return entries
    return csv_file("audit.csv", as_csv(entries))


def audited_courses(principal: Principal, course: str | None) -> frozenset[str] | None:
    """Return the courses whose audit is read: this one, or all that the principal may read.

    Returns:
        The courses; None for all entries, including those of no course.

    Raises:
        DeniedError: 403, the course's audit is not for them.
    """
    if course is None:
        return principal.courses(Right.AUDIT)
    principal.require(Right.AUDIT, course)
    return frozenset({course})


def as_csv(entries: Iterable[AuditEntry]) -> str:
    """Return the entries as CSV."""
    rows = (
        [utc_text(entry.at), *(getattr(entry, name) for name in COLUMNS[1:])] for entry in entries
    )
    return csv_text(COLUMNS, rows)


async def page(request: Request, principal: Principal) -> str:
    """Return the Log page."""
    runner: RunnerOf[StaffPool] = request.app.state.runner
    zone = ZoneInfo(request.app.state.timezone)
    filters, problem = read_filters(request.query_params)
    query = build_query(
        filters, audited_courses(principal, filters.get("course")), zone, ROWS_SHOWN + 1
    )
    entries = await runner.query_ledger(lambda pool: pool.staff.audit(query))
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in (await runner.snapshot()).gpus}
    courses = principal.courses(Right.AUDIT)
    return render(
        "log.html",
        request,
        principal,
        "log",
        filters=filters,
        problem=problem,
        lines=entries[:ROWS_SHOWN],
        target=lambda entry: describe_target(entry, names),
        states=describe_states,
        verb_phrase=verb_phrase,
        older=_log_address(filters, f"{entries[ROWS_SHOWN - 1].id}")
        if len(entries) > ROWS_SHOWN
        else "",
        newest=_log_address(filters, ""),
        sheet=urlencode(csv_parameters(filters, zone, LIMIT_MAX)),
        most=LIMIT_MAX,
        kinds=KINDS,
        courses=sorted(request.app.state.sign_in.book.courses if courses is None else courses),
        is_all=courses is None,
        messages=await _messages(principal, runner),
        moment=lambda at: moment(at, zone),
        second=lambda at: moment_to_second(at, zone),
        zone=zone.key,
    )


def _log_address(filters: LogFilters, before: str) -> str:
    return urlencode(read_filters({**filters, "before": before})[0])


def describe_target(entry: AuditEntry, names: Mapping[str, str]) -> str:
    """Return in words what an entry concerns; ``names``: the GPUs' names, by UUID.  Pure."""
    if entry.kind == "pool":
        return "the pool"
    if entry.kind == "gpu":
        return names.get(entry.target, entry.target)
    return f"{entry.kind} {entry.target}"


def describe_states(entry: AuditEntry) -> str:
    """Return the states before and after an entry, or the one that stayed.  Pure."""
    is_change = entry.from_state and entry.from_state != entry.to_state
    return f"{entry.from_state} → {entry.to_state}" if is_change else entry.to_state


# Messages.


async def _messages(
    principal: Principal, runner: RunnerOf[StaffPool]
) -> Sequence[tuple[SentMessage, str, bool]]:
    """Return the messages on display, their addressees, and whether the principal may end them."""
    messages = (
        await message_routes.messages(principal, runner) if principal.has(Right.MESSAGE) else []
    )
    return [
        (message, describe_addressee(message), message_routes.may_end(principal, message))
        for message in messages
    ]


def describe_addressee(message: SentMessage) -> str:
    """Return in words who reads a message.  Pure."""
    if message.to_user is not None:
        server = f", server “{message.to_server}”" if message.to_server else ""
        return f"{message.to_user}{server}"
    return f"all of {message.to_course}" if message.to_course is not None else "everybody"


async def message_details(principal: MayMessage, runner: Runner, target: str) -> Response:
    """Return a message on display, with the form that withdraws it; otherwise 404."""
    messages = await message_routes.messages(principal, runner)
    message = next((candidate for candidate in messages if str(candidate.id) == target), None)
    if message is None:
        raise DeniedError(404, "no-such-page", MESSAGE_GONE)
    facts = [
        ("To", describe_addressee(message)),
        ("By", display_name(message.by)),
        ("Message", message.text),
        ("Time", time_left(message.until, time.time())),
    ]
    actions = [_withdraw(message)] if message_routes.may_end(principal, message) else []
    title = f"Message to {describe_addressee(message)}"
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
