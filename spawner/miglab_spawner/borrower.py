"""The measurements of one server that holds no slice: one at a time, each on borrowed slices.

Order of a run: ticket → wait → lease → create → **attach** (the fence) → start → order → lines.
Afterwards the runner lingers with its slices for the next order, unless somebody waits for them.
Whatever goes wrong, the runner is ended and what was borrowed given back.

A runner is a program that takes jobs, line by line: labkit's `job_server`; `labkit.run.borrowed`
names the lines.  Whoever passes them on reads their first letter and nothing else: what a student's
code says is not unpacked here.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import (
    ATTEND_S,
    Purpose,
    TicketRequest,
    TicketState,
    TicketView,
    borrower_of,
)
from miglab_spawner.backends import BackendError, PoolClient, RefusedByBackend
from miglab_spawner.slices_missing import SlicesMissing, check_lease

QUEUE, GRANTED, REFUSED = b"q", b"g", b"r"
MESSAGE, END, FAILED = b"m", b"e", b"f"
FINAL_KINDS = frozenset({END, FAILED})

RESULT_LIMIT = 16 << 20
"""Bytes that one job may send, all its lines together, and that its order may have."""


class OutputTooLarge(Exception):
    """A job wrote more than `RESULT_LIMIT`."""


class RunnerFailed(Exception):
    """The runner could not be made or reached; the message is for the log."""


class SliceRunner(Protocol):
    """One program on borrowed slices.

    Every method but `end` may raise `RunnerFailed`, and `start` `SlicesMissing`.
    """

    async def create(self) -> str:
        """Create it without starting a student's code; return the holder's name."""

    async def start(self) -> None:
        """Start it, once the pool has accepted its holder."""

    async def send(self, order: bytes) -> None:
        """Send it a job: one line."""

    async def read(self) -> bytes:
        """Return the next line, without its newline; empty once the runner has ended.

        Raises:
            TooMuchSaid: a line is longer than `RESULT_LIMIT`.
        """

    async def end(self) -> None:
        """End it, whatever it does; nothing happens if it has ended."""


async def lines(runner: SliceRunner) -> AsyncIterator[bytes]:
    """Yield the runner's output lines until it has ended.

    Raises:
        TooMuchSaid: all together are longer than `RESULT_LIMIT`.
    """
    total_bytes = 0
    while line := await runner.read():
        total_bytes += len(line)
        if total_bytes > RESULT_LIMIT:
            raise OutputTooLarge
        yield line


LINGER_POLL_S = 1.0  # how soon a lingering runner makes way for whoever waits
MAX_ORDERS = 4  # orders of one server, the running one included
IN_USE = frozenset({LeaseState.ATTACHED, LeaseState.RUNNING})

LineWriter = Callable[[bytes], Awaitable[None]]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loan:
    """Borrowed slices, and the runner that holds them."""

    requested_shape: str
    lease: LeaseView
    runner: SliceRunner

    @property
    def has_time(self) -> bool:
        """Whether another order may start: only in the first half of the lease.

        Else whoever measures often is cut off in a measurement that a new lease had time for.
        """
        lease, now = self.lease, time.time()
        return lease.ends_at is None or now - lease.granted_at <= lease.ends_at - now


class Borrower:
    """Runs one server's measurements, one at a time, on borrowed slices.

    Args:
        user_name: how the hub calls the server's user now.
        user_id: who that is.
        server: the server's name.
        course: in which it borrows.
        backend: whom to ask for slices.
        make_runner: a runner for a lease, not yet created.
        linger_s: how long a runner waits for the next order.
    """

    def __init__(
        self,
        user_name: Callable[[], str],
        user_id: str,
        server: str,
        course: str,
        backend: PoolClient,
        make_runner: Callable[[LeaseView], SliceRunner],
        linger_s: float,
    ) -> None:
        self._user_name, self._user_id = user_name, user_id
        self._name, self._course = borrower_of(server), course
        self._backend, self._make_runner = backend, make_runner
        self._linger_s = linger_s
        self._turn = asyncio.Lock()
        self._runs = set[asyncio.Task[None]]()
        self._loan: Loan | None = None
        self._lingering: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._next = asyncio.Event()

    async def run(self, shape: str, order: bytes, write_line: LineWriter) -> None:
        """Run one job, and write its lines as they come; the last one says how it ended.

        Cancelled, because its student hung up, it ends the runner and gives back what it had.
        """
        if len(order) > RESULT_LIMIT or b"\n" in order:
            await write_line(
                _refusal_line("bad-order", "This job cannot be sent: it is too large.")
            )
            return
        if len(self._runs) >= MAX_ORDERS:
            message = "Several measurements of yours wait already. Let one of them finish first."
            await write_line(_refusal_line("too-many-runs", message))
            return
        task = asyncio.current_task()
        assert task is not None
        self._runs.add(task)
        try:
            async with self._turn:
                await self._run(shape, order, write_line)
        finally:
            self._runs.discard(task)

    async def end(self) -> None:
        """End all runs, waiting or lingering ones too, because the server ends."""
        runs = set(self._runs)
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs)
        await self._stop_lingering()
        await self._end_loan("the server ended")

    async def _run(self, shape: str, order: bytes, write_line: LineWriter) -> None:
        await self._stop_lingering()
        try:
            await self._serve(shape, order, write_line)
        except (BackendError, RunnerFailed, SlicesMissing, OutputTooLarge) as error:
            reason, message = await self._failure_reason(error)
            await self._end_loan(message)
            await write_line(_refusal_line(reason, message))
        except BaseException:
            await self._end_loan("the measurement was given up")
            raise
        else:
            self._lingering = asyncio.create_task(self._linger())

    async def _serve(self, shape: str, order: bytes, write_line: LineWriter) -> None:
        loan = await self._obtain_loan(shape, write_line)
        await loan.runner.send(order)
        async for line in lines(loan.runner):
            await write_line(line)
            if line[:1] in FINAL_KINDS:
                return
        raise RunnerFailed("the runner ended without a word")

    async def _failure_reason(self, error: Exception) -> tuple[str, str]:
        """Return reason and message for the student; log the details."""
        if isinstance(error, RefusedByBackend):
            return error.reason, error.message
        log.warning("%s's measurement: %s %s", self._user_name(), type(error).__name__, error)
        if isinstance(error, SlicesMissing):
            return error.reason, error.message_for("Nothing was measured")
        if isinstance(error, BackendError):
            return "pool-unreachable", "The GPU pool does not answer. Try again in a minute."
        if isinstance(error, OutputTooLarge):
            message = "The result is larger than 16 MiB: return less, a sum or a sample of it."
            return "too-much", message
        end_reason = await self._lease_end_reason()
        return "runner-ended", end_reason or "The runner ended without a word. Run the cell again."

    async def _lease_end_reason(self) -> str:
        """Return why the lease ended, if that ended the runner; else empty."""
        if self._loan is None:
            return ""
        try:
            lease = await self._backend.lease(self._loan.lease.id)
        except BackendError:
            return ""
        has_ended = lease.release_requested_at is not None and bool(lease.reason)
        return f"The borrowed slice went back: {lease.reason}" if has_ended else ""

    # -- borrowing ----------------------------------------------------------------------------

    async def _obtain_loan(self, shape: str, write_line: LineWriter) -> Loan:
        """Return the lingering loan of this shape, or a new one."""
        loan = self._loan
        if loan is not None and loan.requested_shape == shape and loan.has_time:
            await write_line(_grant_line(loan.lease))
            return loan
        if loan is not None:
            await self._end_loan("another shape is measured next")
        lease = await self._wait_for_lease(shape, write_line)
        check_lease(lease)
        runner = self._make_runner(lease)
        self._loan = loan = Loan(shape, lease, runner)
        holder = await runner.create()
        lease = await self._backend.attach(lease.id, lease.generation, holder, lease.ledger)
        self._loan = loan = Loan(shape, lease, runner)
        await runner.start()
        with contextlib.suppress(BackendError):  # the pool finds out by itself
            await self._backend.report_running(lease.id, lease.generation, lease.ledger)
        await write_line(_grant_line(loan.lease))
        return loan

    async def _wait_for_lease(self, shape: str, write_line: LineWriter) -> LeaseView:
        request = TicketRequest(
            user=self._user_name(),
            user_id=self._user_id,
            server=self._name,
            course=self._course,
            shape=shape,
            purpose=Purpose.BORROW,
        )
        ticket = await self._backend.request(request)
        while ticket.state is TicketState.WAITING:
            await write_line(_queue_line(ticket))
            ticket = await self._backend.attend(ticket.id, ATTEND_S)
        if ticket.state not in (TicketState.OFFERED, TicketState.TAKEN):
            reason = ticket.reason or ticket.state.value
            raise RefusedByBackend(reason, ticket.message, 409)
        return await self._backend.take(ticket.id)

    # -- the end ------------------------------------------------------------------------------

    async def _linger(self) -> None:
        """Keep runner and slices for the next order, unless somebody waits for them."""
        until = time.monotonic() + self._linger_s
        while time.monotonic() < until and not await self._is_lease_needed():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next.wait(), min(LINGER_POLL_S, self._linger_s))
                return
        await self._give_back("measured")

    async def _is_lease_needed(self) -> bool:
        """Whether somebody waits for the lingering slices, or the lease is over."""
        if self._loan is None:
            return True
        try:
            lease = await self._backend.lease(self._loan.lease.id)
        except BackendError:
            return False
        return lease.others_wait > 0 or lease.state not in IN_USE

    async def _stop_lingering(self) -> None:
        """Stop lingering, since an order has come; finish a release that has begun."""
        self._next.set()
        for task in (self._lingering, self._ending):
            if task is not None:
                await asyncio.wait({task})
        self._next.clear()
        self._lingering = self._ending = None

    async def _end_loan(self, reason: str) -> None:
        """Give everything back, even if the caller is cancelled meanwhile."""
        self._ending = asyncio.create_task(self._give_back(reason))
        await asyncio.shield(self._ending)

    async def _give_back(self, reason: str) -> None:
        """End the runner, leave the queue, release what was granted."""
        loan, self._loan = self._loan, None
        if loan is not None:
            await loan.runner.end()
        try:
            status = await self._backend.server_status(self._user_name(), self._name)
            if status.ticket is not None:
                await self._backend.cancel(status.ticket.id)
            for lease in await self._backend.leases(self._user_name(), self._name):
                await self._release(lease, reason)
        except BackendError as error:
            log.warning("%s's borrowed slices lapse by themselves: %s", self._user_name(), error)

    async def _release(self, lease: LeaseView, reason: str) -> None:
        try:
            await self._backend.release(lease.id, lease.generation, reason[:500], lease.ledger)
        except RefusedByBackend as refused:
            if not refused.is_about_no_lease:
                raise


def _queue_line(ticket: TicketView) -> bytes:
    estimate, position = ticket.estimate, ticket.position
    queue_news: dict[str, Any] = {
        "shape": ticket.shape,
        "ahead": None if position is None else position - 1,
        "likely_s": None if estimate is None else estimate.likely_s,
        "high_s": None if estimate is None else estimate.high_s,
    }
    return QUEUE + json.dumps(queue_news).encode()


def _refusal_line(reason: str, message: str) -> bytes:
    """Return the last line of a run without a result: why there is none."""
    return REFUSED + json.dumps({"reason": reason, "message": message}).encode()


def _grant_line(lease: LeaseView) -> bytes:
    grant_news = {
        "shape": lease.shape,
        "slices": list(lease.uuids),
        "lease": str(lease.id),
        "runner": lease.holder.partition(":")[2][:12],
    }
    return GRANTED + json.dumps(grant_news).encode()
