"""The Log page: who did what to what, when and why; and the messages of staff that are shown now.

What is asked for stands in the address, as `log_query` reads it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from miglab_api.staff import AuditEntry, SentMessage
from miglab_pool.http.access.dependencies import Runner, needs
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.elements.buttons import MAY_REASON, Action
from miglab_pool.http.pages.elements.wording import left, moment, second
from miglab_pool.http.pages.frame import render, render_part, shown
from miglab_pool.http.pages.log_query import KINDS, Wanted, question, sheet_query, wanted_of
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.routes import message_routes
from miglab_pool.http.routes.audit_routes import courses_of
from miglab_pool.rules.audit_wording import called, did
from miglab_pool.views.audit import LIMIT_MAX

ROWS = 50
GONE = "That message is not shown any more. Look again."


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One thing that was done, as the page shows it.

    Attributes:
        target: to what.
        did: what, as a verb with "it".
        states: its state before and after, or the one that it kept.
        is_own_work: whether the pool did it by itself.
    """

    at: float
    who: str
    target: str
    did: str
    states: str
    reason: str
    course: str
    is_own_work: bool


async def page(request: Request) -> Response:
    """The whole page."""
    return await shown(request, lambda principal: _draw(request, principal))


async def _draw(request: Request, principal: Principal) -> str:
    runner: PoolRunner = request.app.state.runner
    zone = ZoneInfo(request.app.state.timezone)
    wanted, problem = wanted_of(request.query_params)
    asked = question(wanted, courses_of(principal, wanted.course), zone, ROWS + 1)
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
        lines=lines(found[:ROWS], names),
        older=_address(wanted, found[ROWS - 1].id) if len(found) > ROWS else "",
        newest=_address(wanted, None),
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


def _address(wanted: Wanted, before: int | None) -> str:
    return urlencode(replace(wanted, before=before).as_query())


def lines(entries: Iterable[AuditEntry], names: Mapping[str, str]) -> list[LogEntry]:
    """The entries in words.  Pure.

    Args:
        entries: as the audit tells them.
        names: what people call a GPU, by its UUID.
    """
    return [
        LogEntry(
            one.at,
            called(one.by),
            _target(one, names),
            did(one.action, one.to_state),
            _states(one),
            one.reason,
            one.course,
            is_own_work=not one.action,
        )
        for one in entries
    ]


def _target(one: AuditEntry, names: Mapping[str, str]) -> str:
    if one.kind == "pool":
        return "the pool"
    if one.kind == "gpu":
        return names.get(one.target, one.target)
    return f"{one.kind} {one.target}"


def _states(one: AuditEntry) -> str:
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


async def message_details(
    principal: Annotated[Principal, needs(Right.MESSAGE)], runner: Runner, target: str
) -> Response:
    """One message, with the form that withdraws it; what is not shown (any more) is 404."""
    found = await message_routes.messages(principal, runner)
    message = next((one for one in found if str(one.id) == target), None)
    if message is None:
        raise DeniedError(404, "no-such-page", GONE)
    facts = [
        ("To", to_whom(message)),
        ("By", called(message.by)),
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
        "Withdraw it",
        "The message is withdrawn.",
        f"messages/{message.id}",
        "DELETE",
        fields=(MAY_REASON,),
    )
