"""One thing in detail, with what may be done to it.  A part of a page."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_api.wording import duration, estimated_wait, guarantee_in_words, server_in_words
from miglab_pool.http.access.dependencies import Runner, Who
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages import buttons
from miglab_pool.http.pages.frame import amount, iso, render_part
from miglab_pool.http.pool_runner import PoolRunner

Facts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Details:
    """What is shown of one thing.

    Attributes:
        facts: what is known of it: names and values.
        actions: what the principal may do to it.
        lease: the one that it is about, if any.
    """

    title: str
    facts: Facts
    actions: list[buttons.Action]
    lease: LeaseView | None = None


async def details(
    request: Request, principal: Who, runner: Runner, kind: str, target: str = ""
) -> Response:
    """One thing; what is not there (any more), or not for the principal, is 404."""
    held = await runner.look(lambda pool: pool.leases.live())
    leases = [one for one in held if principal.may(Right.SEE_NAMES, one.course, one.user)]
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    look = VisiblePool(snapshot, {lease.id: lease for lease in leases}, principal, time.time())
    shown = look.at(kind, target, request.app.state.sign_in.book.courses)
    if shown is None:
        raise DeniedError(
            404, "no-such-page", "That is not there any more. Close this and look again."
        )
    facts = [*shown.facts, *await _thoughts(runner, principal, shown.lease)]
    return HTMLResponse(
        render_part("details.html", title=shown.title, facts=facts, actions=shown.actions)
    )


async def _thoughts(runner: PoolRunner, principal: Principal, lease: LeaseView | None) -> Facts:
    """What the reclaimer thinks of a lease."""
    reclaimer = runner.reclaimer
    if lease is None or reclaimer is None or not principal.may(Right.SEE_NAMES, lease.course):
        return []
    said = await runner.decide(lambda pool: reclaimer.explain(pool, lease.user))
    return [("Reclaimer", f"{one.activity}: {one.reason}") for one in said if one.lease == lease.id]


@dataclass(frozen=True, slots=True)
class VisiblePool:
    """What the principal may see, and how each thing of it is shown.  Pure."""

    snapshot: PoolSnapshot
    leases: dict[int, LeaseView]
    principal: Principal
    now: float

    def at(self, kind: str, target: str, courses: Iterable[str]) -> Details | None:
        """The thing at an address; None if it is not there, or not for the principal."""
        if kind == "pool":
            return self._pool([*courses])
        if kind == "lease":
            leases = (one for one in self.leases.values() if str(one.id) == target)
            return next(map(self._lease, leases), None)
        if kind == "ticket":
            tickets = (one for one in self.snapshot.waiting if str(one.id) == target and one.user)
            return next(map(self._ticket, tickets), None)
        for gpu in self.snapshot.gpus:
            if kind == "gpu" and gpu.uuid == target and self.principal.is_staff:
                return self._gpu(gpu)
            for item in gpu.slices if kind == "slice" else ():
                if str(item.slice_id) == target:
                    return self._slice(gpu, item)
        return None

    def _slice(self, gpu: GpuView, item: SliceView) -> Details | None:
        lease = self.leases.get(item.lease or 0)
        if not (lease or self.principal.is_staff):
            return None
        facts = [("State", _state(item)), *_of_slice(item)]
        facts += self._of_lease(lease) if lease else []
        may = buttons.on_lease(lease, self.principal) if lease else []
        may += buttons.on_slice(item, gpu, self.principal)
        return Details(f"{item.profile} on GPU {gpu.index}", facts, may, lease)

    def _lease(self, lease: LeaseView) -> Details:
        whose = "Your " if self.principal.is_user(lease.user) else f"{lease.user}: "
        may = buttons.on_lease(lease, self.principal)
        return Details(whose + lease.shape, self._of_lease(lease), may, lease)

    def _how_long(self, lease: LeaseView) -> str:
        if lease.ends_at is not None:
            return f"{duration(lease.ends_at - self.now)} left"
        until = lease.guaranteed_until or 0.0  # the page shows it by the clock of whoever reads it
        said = guarantee_in_words(until, self.now)
        return Markup('<time datetime="{}" data-guaranteed>{}</time>').format(iso(until), said)

    def _of_lease(self, lease: LeaseView) -> Facts:
        who = "you" if self.principal.is_user(lease.user) else lease.user
        facts = [
            ("Held by", f"{who}, {server_in_words(lease.server)}" if lease.server else who),
            ("Course", lease.course),
            ("Lease", f"{lease.shape}, {lease.state.value} for {self._for(lease.granted_at)}"),
            ("Time", self._how_long(lease)),
        ]
        if lease.warning is not None:
            left = duration(lease.warning.reclaim_at - self.now)
            facts.append(("Warned", f"reclaimed in {left}: {lease.warning.reason}"))
        return facts

    def _for(self, since: float) -> str:
        return duration(self.now - since)

    def _gpu(self, gpu: GpuView) -> Details:
        facts = [
            ("Model", gpu.name),
            ("UUID", gpu.uuid),
            ("State", f"{gpu.state}{': ' + gpu.reason if gpu.reason else ''}"),
            ("Course", gpu.course or "all courses"),
        ]
        facts += [("Draining", gpu.draining)] if gpu.draining else []
        return Details(f"GPU {gpu.index}", facts, buttons.on_gpu(gpu, self.principal))

    def _ticket(self, ticket: TicketView) -> Details:
        who = "You" if self.principal.is_user(ticket.user) else str(ticket.user)
        position = "is being served" if ticket.position is None else f"number {ticket.position}"
        facts = [
            ("Position", f"{position} of {ticket.waiting}"),
            ("Shape", ticket.shape),
            ("Course", ticket.course),
            ("Waiting", self._for(ticket.created_at)),
            ("Estimated wait", _likely(ticket)),
        ]
        facts += [("Told", ticket.message)] if ticket.message else []
        title = f"{who} in the queue for {ticket.shape}"
        return Details(title, facts, buttons.on_ticket(ticket, self.principal))

    def _pool(self, courses: list[str]) -> Details | None:
        may = buttons.on_pool(self.snapshot.paused, courses, self.principal)
        facts = [("Paused", self.snapshot.paused)] if self.snapshot.paused else []
        return Details("The whole pool", facts, may) if may else None


def _likely(ticket: TicketView) -> str:
    estimate = ticket.estimate
    return f"{estimated_wait(estimate)}, {estimate.basis}" if estimate else "not known"


def _state(item: SliceView) -> str:
    drain = f", draining: {item.draining}" if item.draining else ""
    reason = f": {item.reason}" if item.reason else ""
    return f"{item.state.value}{reason}{drain}"


def _of_slice(item: SliceView) -> Facts:
    last = item.start + item.size - 1
    where = f"memory slice {item.start}"
    if item.size > 1:
        where = f"memory slices {item.start} to {last}"
    processes = "unknown" if item.processes is None else str(item.processes)
    return [
        ("Placement", where),
        ("Memory used", amount(item.memory_used_mib, item.memory_mib)),
        ("Processes", processes),
        *([("UUID", item.uuid)] if item.uuid else []),
    ]
