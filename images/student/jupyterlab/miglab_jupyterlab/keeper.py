"""The loop of the server extension: it reports to the pool, keeps its answer and notifies tabs.

Everything here runs on the server's event loop and only waits; the one thing that takes time, the
process table, is read in a thread.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from miglab_jupyterlab.absence import AWAY_S, Absence
from miglab_jupyterlab.asking import Answer, ApiClient, HubClient, PoolRefused, PoolSilent
from miglab_jupyterlab.signals import (
    Ages,
    OpenTabs,
    ServerReading,
    ask_starting_kernels,
    process_cpu_s,
    read_server,
    signals,
)
from miglab_jupyterlab.state import (
    NOTHING_HELD,
    History,
    KnownStatus,
    front_end_status,
    pause_s,
)

MOVE_S = 60.0  # a server that is to end has ended by then
SAVE_S = 15.0  # other tabs save their documents in this time, or are asked about
SHARED_S = 60.0  # the Class page shows minutes
NOTHING = PoolRefused(404, "unknown-lease", "There is no pool that this server belongs to.")
UNSAVED = (
    "Not restarted: documents in another tab are not saved. Save or close them, or restart without "
    "what is not saved."
)

Listener = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class OwnCourse:
    """The course that the server was started for.

    Attributes:
        name: its group's name.
        progress: what its staff may be told (`miglab_jupyterlab.course.progress`).
        measured_ages: what was measured when (`miglab_jupyterlab.course.measured_ages`).
    """

    name: str
    progress: Callable[[], list[dict[str, Any]]]
    measured_ages: Callable[[], Mapping[str, float]]


class Keeper:
    """What this server knows about its lease and its position in the queue.

    Args:
        pool: the student listener; None: there is none, and nothing is ever sent.
        hub: the hub, which restarts this server; None: there is none.
        shape: what was leased, by the spawner's word; ``cpu`` for no slice.
        settings: the web application's settings, where the managers are.
        absence: what the student is told who comes back.
        pace: how often to ask, seconds: usually, while warned, and at the longest.
        course: what its staff may be told, if they are told anything at all.
        log: where it is said, once each time, that the pool is silent or answers again.
    """

    def __init__(
        self,
        pool: ApiClient | None,
        hub: HubClient | None,
        shape: str,
        settings: Mapping[str, Any],
        absence: Absence,
        pace: tuple[float, float, float],
        log: logging.Logger,
        course: OwnCourse | None = None,
    ) -> None:
        self.tabs = OpenTabs()
        self._pool, self._hub, self._pace = pool, hub, pace
        self._log, self._settings, self._absence = log, settings, absence
        self._known = KnownStatus(shape=shape)
        self._read: set[int] = set()
        self._forgotten: set[int] = set()
        self._moving = self._moving_to = ""
        self._tab_changed = asyncio.Event()
        self._look_again = asyncio.Event()
        self._ages = Ages()
        self._history = History()
        self._course, self._shared_at = course, -math.inf
        self._listeners: set[Listener] = set()
        self._task: asyncio.Task[None] | None = None

    # -- for the handlers ---------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return the status of the server for a front end.

        ``can_choose``: whether a slice can be chosen here (`choices`).  ``moving`` is empty;
        ``saving`` while every tab is to save its documents; then the hub's
        page that leads to the new server, which has the shape ``moving_to``.  ``history``: how the
        slice was used.  ``sharing``: whether the student has read the notice of what the course's
        staff are told; None where they are told nothing.  ``away``: what has ended while they were
        away (`miglab_jupyterlab.absence.Absence.report`).
        """
        moving = {"moving": self._moving, "moving_to": self._moving_to}
        now = time.monotonic()
        history = self._history.points(now)
        sharing = self._known.sharing.get(self._course.name) if self._course else None
        holds_nothing = self._known.shape in NOTHING_HELD and self._known.lease is None
        can_choose = self._hub is not None and self._pool is not None and holds_nothing
        details = {
            "history": history,
            "sharing": sharing,
            "can_choose": can_choose,
            "away": self._absence.report,
        }
        return {**front_end_status(self._known, now, self._read), **moving, **details}

    def take_report(self, tab: object, report: Mapping[str, Any]) -> None:
        """Take the report of an open tab."""
        now = time.monotonic()
        before_s = self.tabs.summary(now).active_age_s
        self.tabs.take_report(tab, report, now)
        self._tab_changed.set()
        active_age_s = self.tabs.summary(now).active_age_s
        is_here = active_age_s is not None and active_age_s < AWAY_S
        if is_here and (before_s is None or before_s >= AWAY_S):
            self._look_again.set()  # somebody comes back

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with `status` now and after each round."""
        self._listeners.add(listener)
        listener(self.status())

    def unlisten(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.discard(listener)
        self._tab_changed.set()

    async def act_on_lease(self, action: str, **body: object) -> dict[str, Any]:
        """Extend, keep alive or release the lease, and notify all tabs.

        Args:
            action: the last part of the pool's route.
            body: the request's JSON.

        Raises:
            PoolRefused: the pool said no, and why.
            PoolSilent: it did not answer.
        """
        answer = await self._require_pool().post(f"/api/lease/{action}", body)
        self._known = self._with_answer(answer).with_lease(answer.body)
        return await self._look_and_notify()

    async def cancel(self) -> dict[str, Any]:
        """Leave the queue, or give up what is offered; raises as `act_on_lease`."""
        self._with_answer(await self._require_pool().post("/api/ticket/cancel", {}))
        self._forget_ticket()
        return await self._look_and_notify()

    async def requeue(self) -> dict[str, Any]:
        """Join the queue once more for what was waited for; raises as `act_on_lease`."""
        before = self._known.ticket
        if before is None:
            raise PoolRefused(409, "unknown-ticket", "This server waited for nothing.")
        answer = await self._require_pool().post(
            "/api/ticket/requeue", {"ticket": int(before["id"])}
        )
        self._known = self._with_answer(answer).with_part(ticket=answer.body)
        return await self._look_and_notify(is_followed=True)

    async def notice_read(self) -> dict[str, Any]:
        """Record that the student has read the notice on progress; raises as `act_on_lease`."""
        if self._course is None:
            raise NOTHING
        read = {"course": self._course.name}
        answer = await self._require_pool().post("/api/progress/notice", read)
        self._known = self._with_answer(answer).with_part(sharing=answer.body.get("sharing"))
        return self._notify_tabs()

    def forget(self) -> dict[str, Any]:
        """Drop the ticket: the student knows how it ended."""
        self._forget_ticket()
        return self._notify_tabs()

    def _forget_ticket(self) -> None:
        if self._known.ticket is not None:
            self._forgotten.add(self._known.ticket["id"])
        self._known = self._known.without_tickets(self._forgotten)

    def read(self, message: int) -> dict[str, Any]:
        """Mark a message as read, so that no tab shows it any more."""
        self._read.add(message)
        return self._notify_tabs()

    def put_absence_away(self) -> dict[str, Any]:
        """The student has read what happened while they were away."""
        self._absence.put_away()
        return self._notify_tabs()

    async def choices(self) -> dict[str, Any]:
        """Return the slices that this server can ask for, in the words of the spawn page.

        Raises:
            PoolRefused: this server cannot ask while it runs.
            PoolSilent: the hub did not answer.
        """
        return await self._require_hub().choices()

    async def choose(self, choice: str, *, only_if_free: bool) -> dict[str, Any]:
        """Join the queue for a slice, and tell all tabs; raises as `HubClient.choose`."""
        await self._require_hub().choose(choice, only_if_free=only_if_free)
        return await self._look_and_notify(is_followed=True)

    async def move(self, shape: str = "", *, leave_unsaved: bool = False) -> dict[str, Any]:
        """Restart with the slice that is offered, once all tabs have saved their documents.

        Args:
            shape: ``cpu`` to give the slice back and go on without one; empty: what is offered.
            leave_unsaved: whether the person was told that documents elsewhere are not saved.

        Raises:
            PoolRefused: documents are not saved, or nothing is offered (any more).
            PoolSilent: the hub did not answer.
        """
        hub = self._require_hub()
        if not self._moving:
            offered = str((self._known.ticket or {}).get("shape", ""))
            self._moving, self._moving_to = "saving", shape or offered
        self._notify_tabs()
        try:
            if not leave_unsaved:
                await self._wait_until_saved()
            self._moving = await hub.move(shape)
            asyncio.get_running_loop().call_later(MOVE_S, self._end_failed_move)
        except BaseException:
            self._moving = ""
            raise
        finally:
            self._notify_tabs()
        return self.status()

    def _end_failed_move(self) -> None:
        """End a move that the hub accepted and could not carry out: this server still runs."""
        self._moving = ""
        self._notify_tabs()

    async def _wait_until_saved(self) -> None:
        try:
            async with asyncio.timeout(SAVE_S):
                while self.tabs.summary(time.monotonic()).unsaved:
                    self._tab_changed.clear()
                    await self._tab_changed.wait()
        except TimeoutError:
            raise PoolRefused(409, "unsaved", UNSAVED) from None

    # -- the loop -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop; without a pool, do nothing."""
        if self._pool is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the loop and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for client in (self._pool, self._hub):
            if client is not None:
                client.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
                self._notify_tabs()
            except Exception:  # a loop's outer frame: the next round may go well
                self._log.exception("miglab: a look at this server failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s(self._known, *self._pace)):
                    await self._look_again.wait()
            self._look_again.clear()

    async def round(self) -> None:
        """Report to the pool how this server is used, and keep what it answers."""
        pool, ticket = self._require_pool(), self._known.ticket
        ask_starting_kernels(self._settings)
        cpu_s = await asyncio.to_thread(process_cpu_s)
        now = time.monotonic()
        reading = read_server(self._settings, cpu_s)
        body = signals(reading, self.tabs.summary(now), self._ages, now)
        try:
            query = "" if ticket is None else f"?known={int(ticket['id'])}"
            answer = await pool.post(f"/api/server/signals{query}", body)
        except PoolSilent as silence:
            self._note_problem("silent", str(silence))
        except PoolRefused as refusal:
            self._note_problem("refused", refusal.message)
        else:
            status = self._with_answer(answer).with_status(answer.body)
            self._known = status.without_tickets(self._forgotten)
            if status.lease is not None and not status.is_gone:
                runs = any(state == "busy" for state, _ in reading.kernels.values())
                self._history.add(time.monotonic(), status.lease, runs=runs)
            await self._share(pool, body.get("browser_age_s"))
            await self._note_absence(pool, reading)

    async def _note_absence(self, pool: ApiClient, reading: ServerReading) -> None:
        """Note what kernels do and when the student looks; report to whoever comes back."""
        pool_now = self._known.pool_now(time.monotonic())
        states = {kernel: state for kernel, (state, _) in reading.kernels.items()}
        sessions = await self._settings["session_manager"].list_sessions()
        paths = {str(session["kernel"]["id"]): str(session["path"]) for session in sessions}
        self._absence.note_kernels(states, paths, pool_now)
        active_age_s = self.tabs.summary(time.monotonic()).active_age_s
        if active_age_s is None:
            return
        since = self._absence.since(pool_now - active_age_s)
        if since is not None:
            try:
                answer = await pool.get(f"/api/leases/ended?since={since}")
            except PoolSilent:
                return  # the next round asks again
            except PoolRefused as refusal:  # a pool of another version tells no ends
                self._log.info("miglab: what ended meanwhile is not told: %s", refusal)
                lease_ends: list[dict[str, Any]] = []
            else:
                lease_ends = answer.body["ends"]
            ages = await asyncio.to_thread(self._course.measured_ages) if self._course else {}
            moments = {key: pool_now - age_s for key, age_s in ages.items()}
            measured = [{"experiment": key, "at": at} for key, at in moments.items() if at > since]
            self._absence.tell(since, lease_ends, measured)
        self._absence.looked(pool_now - active_age_s)

    async def _share(self, pool: ApiClient, sign_age_s: float | None) -> None:
        """Share the student's progress with staff, at most once a minute; ignore failures."""
        course, now = self._course, time.monotonic()
        is_due = now - self._shared_at >= SHARED_S
        if course is None or not is_due or not self._known.sharing.get(course.name):
            return
        self._shared_at = now
        experiments = await asyncio.to_thread(course.progress)
        with contextlib.suppress(PoolSilent, PoolRefused):
            report = {"course": course.name, "experiments": experiments, "sign_age_s": sign_age_s}
            await pool.post("/api/progress", report)

    def _require_pool(self) -> ApiClient:
        if self._pool is None:
            raise NOTHING
        return self._pool

    def _require_hub(self) -> HubClient:
        if self._hub is None:
            raise NOTHING
        return self._hub

    def _with_answer(self, answer: Answer) -> KnownStatus:
        """Return what is known with the moment of this answer, and log that the pool answers."""
        if self._known.problem:
            self._log.info("miglab: the pool answers again")
        return self._known.with_answer_at(answer.answered_at, time.monotonic())

    def _note_problem(self, problem: str, message: str) -> None:
        if self._known.problem != problem:
            self._log.warning("miglab: the pool is %s: %s", problem, message)
        self._known = self._known.with_problem(problem)

    async def _look_and_notify(self, *, is_followed: bool = False) -> dict[str, Any]:
        """Tell all tabs how this server stands now; what a button answers is only a part of it.

        Args:
            is_followed: whether the loop is to look at once, too, and as often as it then must: a
                slice that is free is made in seconds.
        """
        await self.round()
        if is_followed:
            self._look_again.set()
        return self._notify_tabs()

    def _notify_tabs(self) -> dict[str, Any]:
        """Send the status to every open tab, and return it."""
        status = self.status()
        for listener in tuple(self._listeners):
            listener(status)
        return status
