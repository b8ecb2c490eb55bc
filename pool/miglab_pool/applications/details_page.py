"""The details of a slice, lease, ticket, GPU or the pool, with the actions on it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from markupsafe import Markup

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import duration, estimated_wait, guarantee_in_words, server_in_words
from miglab_pool.applications.pool_runner import PoolRunner, Runner
from miglab_pool.http.access.dependencies import Viewer
from miglab_pool.http.access.principal import Principal, Right, visible_snapshot
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages import buttons
from miglab_pool.http.pages.frame import iso_text, memory_amount, render_part

Facts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Details:
    """The details of one resource.

    Attributes:
        facts: names and values.
        actions: what the principal may do to it.
        lease: its lease, if any.
    """

    title: str
    facts: Facts
    actions: list[buttons.Action]
    lease: LeaseView | None = None


async def details(
    request: Request, principal: Viewer, runner: Runner, kind: str, target: str = ""
) -> Response:
    """Return the details of a resource; 404 if it is gone or the principal may not see it."""
    all_leases = await runner.query_view(lambda pool: pool.leases.live())
    leases = [
        lease for lease in all_leases if principal.may(Right.SEE_NAMES, lease.course, lease.user)
    ]
    snapshot = visible_snapshot(await runner.snapshot(), principal)
    look = VisiblePool(snapshot, {lease.id: lease for lease in leases}, principal, time.time())
    details_shown = look.at(kind, target, request.app.state.sign_in.book.courses)
    if details_shown is None:
        raise DeniedError(
            404, "no-such-page", "That is not there any more. Close this and look again."
        )
    facts = [*details_shown.facts, *await _reclaimer_facts(runner, principal, details_shown.lease)]
    return HTMLResponse(
        render_part(
            "details.html", title=details_shown.title, facts=facts, actions=details_shown.actions
        )
    )


async def _reclaimer_facts(
    runner: PoolRunner, principal: Principal, lease: LeaseView | None
) -> Facts:
    """Return how the reclaimer judges a lease."""
    reclaimer = runner.reclaimer
    if lease is None or reclaimer is None or not principal.may(Right.SEE_NAMES, lease.course):
        return []
    explanations = await runner.decide(lambda pool: reclaimer.explain(pool, lease.user))
    return [
        ("Reclaimer", f"{explanation.activity}: {explanation.reason}")
        for explanation in explanations
        if explanation.lease == lease.id
    ]


@dataclass(frozen=True, slots=True)
class VisiblePool:
    """What the principal may see of the pool, and the details of each resource in it.  Pure."""

    snapshot: PoolSnapshot
    leases: dict[int, LeaseView]
    principal: Principal
    now: float

    def at(self, kind: str, target: str, courses: Iterable[str]) -> Details | None:
        """Return the details at an address; None if nothing is there that the principal may see."""
        if kind == "pool":
            return self._pool([*courses])
        if kind == "lease":
            leases = (
                candidate for candidate in self.leases.values() if str(candidate.id) == target
            )
            return next(map(self._lease, leases), None)
        if kind == "ticket":
            tickets = (
                candidate
                for candidate in (*self.snapshot.waiting, *self.snapshot.offered)
                if str(candidate.id) == target and candidate.user
            )
            return next(map(self._ticket, tickets), None)
        for gpu in self.snapshot.gpus:
            if kind == "gpu" and gpu.uuid == target and self.principal.is_staff:
                return self._gpu(gpu)
            for slice_ in gpu.slices if kind == "slice" else ():
                if str(slice_.slice_id) == target:
                    return self._slice(gpu, slice_)
        return None

    def _slice(self, gpu: GpuView, slice_: SliceView) -> Details | None:
        lease, offer = self.leases.get(slice_.lease or 0), self._offer_of(slice_.lease)
        if not (lease or self.principal.is_staff):
            return None
        if lease and offer:
            facts = [("State", "offered"), *self._of_offer(offer), *_slice_facts(slice_)]
            actions = buttons.ticket_actions(offer, self.principal)
            actions += buttons.slice_actions(slice_, gpu, self.principal)
            return Details(f"{slice_.profile} on GPU {gpu.index}", facts, actions)
        facts = [("State", _state_text(slice_)), *_slice_facts(slice_)]
        facts += self._of_lease(lease) if lease else []
        actions = buttons.lease_actions(lease, self.principal) if lease else []
        actions += buttons.slice_actions(slice_, gpu, self.principal)
        return Details(f"{slice_.profile} on GPU {gpu.index}", facts, actions, lease)

    def _offer_of(self, lease: int | None) -> TicketView | None:
        """Return the ticket to which a lease is offered, if it was not taken yet."""
        offers = (offer for offer in self.snapshot.offered if lease and offer.lease == lease)
        return next(offers, None)

    def _of_offer(self, offer: TicketView) -> Facts:
        student = "you" if self.principal.is_user(offer.user) else str(offer.user)
        server = f", {server_in_words(offer.server)}" if offer.server else ""
        held_for = duration((offer.expires_at or self.now) - self.now)
        return [
            ("Offered to", student + server),
            ("Held for", f"{held_for}; then it goes to the next in the queue"),
            ("Shape", offer.shape),
            ("Course", offer.course),
        ]

    def _lease(self, lease: LeaseView) -> Details:
        owner = "Your " if self.principal.is_user(lease.user) else f"{lease.user}: "
        actions = buttons.lease_actions(lease, self.principal)
        return Details(owner + lease.shape, self._of_lease(lease), actions, lease)

    def _how_long(self, lease: LeaseView) -> str:
        if lease.ends_at is not None:
            return f"{duration(lease.ends_at - self.now)} left"
        until = lease.guaranteed_until or 0.0  # the page shows it in the reader's local time
        text = guarantee_in_words(until, self.now)
        return Markup('<time datetime="{}" data-guaranteed>{}</time>').format(iso_text(until), text)

    def _of_lease(self, lease: LeaseView) -> Facts:
        holder = "you" if self.principal.is_user(lease.user) else lease.user
        facts = [
            ("Held by", f"{holder}, {server_in_words(lease.server)}" if lease.server else holder),
            ("Course", lease.course),
            ("Lease", f"{lease.shape}, {lease.state.value} for {self._for(lease.granted_at)}"),
            ("Time", self._how_long(lease)),
        ]
        if lease.warning is not None:
            time_left = duration(lease.warning.reclaim_at - self.now)
            facts.append(("Warned", f"reclaimed in {time_left}: {lease.warning.reason}"))
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
        return Details(f"GPU {gpu.index}", facts, buttons.gpu_actions(gpu, self.principal))

    def _ticket(self, ticket: TicketView) -> Details:
        subject = "You" if self.principal.is_user(ticket.user) else str(ticket.user)
        told = [("Told", ticket.message)] if ticket.message else []
        actions = buttons.ticket_actions(ticket, self.principal)
        if ticket.state is TicketState.OFFERED:
            title = f"{ticket.shape} is offered"
            return Details(title, [*self._of_offer(ticket), *told], actions)
        position = "is being served" if ticket.position is None else f"number {ticket.position}"
        facts = [
            ("Position", f"{position} of {ticket.waiting}"),
            ("Shape", ticket.shape),
            ("Course", ticket.course),
            ("Waiting", self._for(ticket.created_at)),
            ("Estimated wait", _estimate_text(ticket)),
        ]
        title = f"{subject} in the queue for {ticket.shape}"
        return Details(title, [*facts, *told], actions)

    def _pool(self, courses: list[str]) -> Details | None:
        actions = buttons.pool_actions(self.snapshot.paused, courses, self.principal)
        facts = [("Paused", self.snapshot.paused)] if self.snapshot.paused else []
        return Details("The whole pool", facts, actions) if actions else None


def _estimate_text(ticket: TicketView) -> str:
    estimate = ticket.estimate
    return f"{estimated_wait(estimate)}, {estimate.basis}" if estimate else "not known"


def _state_text(slice_: SliceView) -> str:
    drain = f", draining: {slice_.draining}" if slice_.draining else ""
    reason = f": {slice_.reason}" if slice_.reason else ""
    return f"{slice_.state.value}{reason}{drain}"


def _slice_facts(slice_: SliceView) -> Facts:
    last = slice_.start + slice_.size - 1
    placement = f"memory slice {slice_.start}"
    if slice_.size > 1:
        placement = f"memory slices {slice_.start} to {last}"
    processes = "unknown" if slice_.processes is None else str(slice_.processes)
    return [
        ("Placement", placement),
        ("Memory used", memory_amount(slice_.memory_used_mib, slice_.memory_mib)),
        ("Processes", processes),
        *([("UUID", slice_.uuid)] if slice_.uuid else []),
    ]
