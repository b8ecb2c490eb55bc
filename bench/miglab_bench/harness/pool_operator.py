"""The operator of a lab that runs: how to look into its pool, and what one asks of it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from pydantic import TypeAdapter
from pydantic_core import to_json

from miglab_api.gpus import PoolSnapshot
from miglab_api.holders import process_holder
from miglab_api.leases import AttachRequest, Fence, LeaseView, RequestedLease
from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_api.tickets import TicketRequest, TicketView
from miglab_bench.harness.student import CheckFailed
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings

SHAPE = "1g.5gb"
COURSE = "everyone"
POLL_S = 5
_LEASES = TypeAdapter(list[LeaseView])
_TEXTS = TypeAdapter(list[str])
_RESERVATIONS = TypeAdapter(list[ReservationView])


class PoolOperator:
    """Asks the pool with the lab's own secret.

    Attributes:
        http: by which it asks.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.http = httpx.Client(timeout=20, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def ask(self, path: str, body: object = None, method: str = "POST") -> bytes:
        """Send the operator's request to the pool's management listener; without a body, a GET.

        Raises:
            CheckFailed: it refuses.
        """
        secret = lab_secrets.read(self.settings.pool_secret)
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        content = None if body is None else to_json(body)
        method, url = "GET" if body is None else method, self.settings.pool_url + path
        answer = self.http.request(method, url, headers=headers, content=content)
        if answer.is_error:
            raise CheckFailed(f"{method} {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.content

    def snapshot(self) -> PoolSnapshot:
        """Return the pool as `miglab pool status` sees it."""
        return PoolSnapshot.model_validate_json(self.ask("/api/pool"))

    def leases(self) -> dict[str, LeaseView]:
        """Return the live leases, by user."""
        views = _LEASES.validate_json(self.ask("/api/leases"))
        return {lease.user: lease for lease in views}

    def lease(self, number: int) -> LeaseView:
        """Return a lease, live or not."""
        return LeaseView.model_validate_json(self.ask(f"/api/leases/{number}"))

    def tickets(self) -> dict[str, TicketView]:
        """Return the tickets in the queue, by user."""
        return {ticket.user or "": ticket for ticket in self.snapshot().waiting}

    def reserve(self, request: ReservationRequest, number: int | None = None) -> ReservationView:
        """Reserve, or change the reservation of that number."""
        path, method = ("", "POST") if number is None else (f"/{number}", "PUT")
        answer = self.ask(f"/api/reservations{path}", request, method)
        return ReservationView.model_validate_json(answer)

    def reservations(self) -> list[ReservationView]:
        """Return the reservations."""
        return _RESERVATIONS.validate_json(self.ask("/api/reservations"))

    def broken_invariants(self) -> list[str]:
        """Return the broken invariants of the pool, in words."""
        return _TEXTS.validate_json(self.ask("/api/invariants"))

    def positions(self) -> dict[str, int | None]:
        """Return the positions in the queue, by user."""
        return {t.user or "": t.position for t in self.snapshot().waiting if t.position}

    def grant(self, user: str) -> LeaseView:
        """Wait for a slice, and return its lease, which has no holder yet."""
        request = TicketRequest(user=user, server="", course=COURSE, shape=SHAPE)
        requested = RequestedLease.model_validate_json(self.ask("/api/leases", request))
        if requested.taken_lease is not None:
            return requested.taken_lease
        ticket = requested.ticket
        while ticket.lease is None:
            answer = self.ask(f"/api/tickets/{ticket.id}?wait_s={POLL_S}")
            ticket = TicketView.model_validate_json(answer)
        return LeaseView.model_validate_json(self.ask(f"/api/tickets/{ticket.id}/take", {}))

    @contextmanager
    def held(self, user: str) -> Iterator[tuple[LeaseView, "subprocess.Popen[bytes]"]]:
        """Yield a lease and the idle process that holds it, until the block ends.

        The process ends with this one, however that ends, and has none of its pipes.
        """
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as holder:
            try:
                lease = self.grant(user)
                name = process_holder(holder.pid)
                attach = AttachRequest(generation=lease.generation, holder=name)
                self.ask(f"/api/leases/{lease.id}/attach", attach)
                self.ask(f"/api/leases/{lease.id}/running", Fence(generation=lease.generation))
                yield lease, holder
            finally:
                holder.kill()
