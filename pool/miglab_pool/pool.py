"""The pool: who holds which slice, who waits, and what must be done next.

The one door.  Decisions (request, take, attach, release, turn …) are short ledger transactions
under a lock and may be made from any thread; jobs on GPUs and holders are a work list that the
service's worker performs, one at a time.  After every restart: `reconcile` first.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from miglab_api.gpus import PoolSnapshot
from miglab_api.layouts import LayoutDiff, Layouts, LayoutSpec
from miglab_api.leases import Fence, LeaseState, LeaseView, ServerStatus, WarningKind
from miglab_api.offers import Offers, ShapeOffer
from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_api.staff import StaffMessage
from miglab_api.tickets import TicketRequest, TicketView
from miglab_pool.decisions import alternatives, offers, queue
from miglab_pool.decisions import layouts as layouts_room
from miglab_pool.decisions.forecast import estimate, gather
from miglab_pool.decisions.layouts import Cuttable
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.watched import WatchedDriver
from miglab_pool.ledger.archive import move_old
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.model.holders import Holders
from miglab_pool.model.memory import Wellness
from miglab_pool.model.rows import LeaseRow, PauseKind
from miglab_pool.settings import PoolSettings
from miglab_pool.staff import Staff
from miglab_pool.state import invariants
from miglab_pool.state.clock import PoolClock
from miglab_pool.state.store import Store
from miglab_pool.state.view import PoolView
from miglab_pool.transactions import (
    activity,
    clock_steps,
    grants,
    layouts,
    leases,
    requests,
    reservations,
    servers,
    tickets,
    warnings,
)
from miglab_pool.transactions.activity import Spent
from miglab_pool.transactions.messages import end_old as end_old_notes
from miglab_pool.views import layout_views, lease_cases, pool_views, usage_facts
from miglab_pool.views.lease_cases import Case
from miglab_pool.views.usage_report import Facts
from miglab_pool.worker import gpu_health, inspect_gpu, jobs, reconcile, sampling
from miglab_pool.worker.gpu_health import Condition
from miglab_pool.worker.inspect_gpu import Finding
from miglab_pool.worker.jobs import Job, JobKind
from miglab_pool.worker.worker import Worker

ALL_KINDS = frozenset(JobKind)

log = logging.getLogger(__name__)


class Pool:
    """See the module.

    Args:
        settings: the site's limits.
        ledger: open; the caller holds the lab's `PoolLock`.
        driver: the GPUs.
        holders: who asks after containers and processes.
        now: the clock, seconds since the epoch.
        steady: seconds that never jump, by which a step of ``now`` and a pause of the whole process
            are noticed; None for a caller who moves the one clock as he likes.
    """

    def __init__(
        self,
        settings: PoolSettings,
        ledger: Ledger,
        driver: Driver | WatchedDriver,
        holders: Holders,
        now: Callable[[], float] = time.time,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.settings = settings
        self._clock = None if steady is None else PoolClock(now, steady)
        read = now if self._clock is None else self._clock.now
        self.store = Store(settings, ledger, read, simulated=driver.simulated)
        self.worker = Worker(self.store, driver, holders)
        self.staff = Staff(self.store, self._lease)

    @property
    def version(self) -> int:
        """Grows with every change; what waits for news waits for it to grow."""
        return self.view.version

    @property
    def view(self) -> PoolView:
        """The pool now, for any thread: what every answer is made from."""
        return self.store.current

    # -- tickets ------------------------------------------------------------------------------

    def request(self, request: TicketRequest) -> TicketView:
        """A place in the queue: the one this server has for this shape and course, or a new one.

        Asking for another shape gives up the place (or the offer) there was; ``only_if_free`` only
        if the other is granted in the same step.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.lock:
            ticket = requests.request(self.store, request)
            self._ask_after_old_holder(request)
            return pool_views.ticket_view(self.view, ticket)

    def _ask_after_old_holder(self, request: TicketRequest) -> None:
        """A server that asks again has ended: look whether its last holder is gone, now."""
        for lease in self.store.state.leases.values():
            if (lease.user, lease.server) == (request.user, request.server) and lease.is_held:
                self.worker.suspects.add(lease.id)

    def ticket_of(self, user: str, server: str) -> int | None:
        """The number of the ticket that a server has; None if it has none."""
        with self.store.lock:
            ticket = tickets.of_server(self.store, user, server)
            return ticket.id if ticket is not None else None

    def attend(self, ticket_id: int) -> TicketView:
        """Keep the place, and see how it stands."""
        with self.store.lock:
            return pool_views.ticket_view(self.view, tickets.attend(self.store, ticket_id))

    def ticket(self, ticket_id: int) -> TicketView:
        """See how it stands, without keeping the place."""
        with self.store.lock:
            return pool_views.ticket_view(self.view, tickets.find(self.store, ticket_id))

    def cancel(self, ticket_id: int, by: str, reason: str = "") -> TicketView:
        """Give up the place or the offer; a ticket that is over stays as it is."""
        with self.store.lock:
            row = tickets.cancel(self.store, ticket_id, by, reason)
            return pool_views.ticket_view(self.view, row)

    def take(self, ticket_id: int) -> LeaseView:
        """Accept the offer.  The slices exist; asking again gives the same lease.

        Raises:
            Refused: there is no offer (any more).
        """
        with self.store.lock:
            row = tickets.take(self.store, ticket_id)
            return pool_views.lease_view(self.view, row)

    # -- one server ---------------------------------------------------------------------------

    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        """What a server holds and waits for; asking keeps its place.

        ``known`` is a ticket it had before, told once more if there is no other.
        """
        with self.store.lock:
            lease = servers.held(self.store, user, server)
            ticket = servers.attended(self.store, user, server, known)
            return ServerStatus(
                lease=None if lease is None else self._lease(lease),
                ticket=None if ticket is None else pool_views.ticket_view(self.view, ticket),
            )

    def alternatives(self, ticket_id: int) -> list[ShapeOffer]:
        """What who waits could have at once instead, by giving up the place; empty: nothing."""
        view = self.view
        ticket = view.tickets.get(ticket_id)
        if ticket is None:
            with self.store.lock:
                ticket = tickets.find(self.store, ticket_id)
        courses = offers.offers(view, [ticket.course]).courses if ticket.is_queued else ()
        return [
            one for course in courses for one in alternatives.free_instead(view, ticket, course)
        ]

    def cancel_of(self, user: str, server: str, by: str) -> TicketView:
        """Give up the place or the offer of a server.

        Raises:
            Refused: it has none.
        """
        with self.store.lock:
            number = servers.own_open(self.store, user, server).id
            return self.cancel(number, by, "The place was given up in JupyterLab.")

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        """Stand in line once more for what a ticket of this server, now over, had asked for.

        Args:
            user: the student.
            server: the server's name.
            number: the ticket's.
            courses: those that the student is in now.

        Raises:
            Refused: it never had that ticket, holds a slice, has left the course, or what
                `request` refuses.
        """
        with self.store.lock:
            before = servers.own_over(self.store, user, server, number, courses)
            asked = TicketRequest(
                user=user, server=server, course=before.course, shape=before.asked
            )
            return self.request(asked)

    # -- leases -------------------------------------------------------------------------------

    def attach(self, lease_id: int, generation: int, holder: str, ledger: str = "") -> LeaseView:
        """The fence: only the holder that the pool accepts here may be started.

        Raises:
            Refused: ``stale-lease`` or ``bad-holder``; the holder must not be started.
        """
        with self.store.lock:
            return self._lease(leases.attach(self.store, lease_id, generation, holder, ledger))

    def running(self, lease_id: int, fence: Fence | None = None) -> LeaseView:
        """The attached holder was started.

        Raises:
            Refused: ``stale-lease``; another lease has that number now, or it is over.
        """
        with self.store.lock:
            return self._lease(leases.running(self.store, lease_id, fence))

    def release(self, lease_id: int, by: str, reason: str, fence: Fence | None = None) -> LeaseView:
        """Ask for a lease back.  Its slices are free once the holder is confirmed gone.

        Raises:
            Refused: ``stale-lease``; another lease has that number now.
        """
        with self.store.lock:
            return self._lease(leases.release(self.store, lease_id, by, reason, fence))

    def extend(self, lease_id: int, by_s: float, by: str) -> LeaseView:
        """Put off the end.

        Raises:
            Refused: ``no-extension``, with why.
        """
        with self.store.lock:
            return self._lease(leases.extend(self.store, lease_id, by_s, by))

    def cases(self) -> list[Case]:
        """The leases in use, as the reclaimer looks at them."""
        return lease_cases.cases(self.view)

    @property
    def samples(self) -> int:
        """How often the slices were read; grows with every `sample` that came back."""
        return self.store.samples

    def warn(self, lease_id: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder that the lease is taken back at ``reclaim_at``.

        Raises:
            Refused: the lease is not in use, or warned already.
        """
        with self.store.lock:
            return self._lease(warnings.warn(self.store, lease_id, kind, reason, reclaim_at))

    def end_warning(self, lease_id: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease; without a warning nothing happens."""
        with self.store.lock:
            return self._lease(warnings.end_warning(self.store, lease_id, by, reason))

    def put_off(self, lease_id: int, reclaim_at: float, reason: str) -> LeaseView:
        """Give a warned holder until ``reclaim_at``."""
        with self.store.lock:
            return self._lease(warnings.put_off(self.store, lease_id, reclaim_at, reason))

    def bring_forward(self, lease_id: int, reclaim_at: float, reason: str) -> LeaseView:
        """Let a warning by staff end at ``reclaim_at`` already, if that is sooner."""
        with self.store.lock:
            return self._lease(warnings.bring_forward(self.store, lease_id, reclaim_at, reason))

    def worked(self, lease_id: int) -> None:
        """Work was seen on the lease: "I am still here" counts anew."""
        with self.store.lock:
            warnings.worked(self.store, lease_id)

    def keepalive(self, lease_id: int, by: str) -> LeaseView:
        """The holder is still there: ends an idle warning; without one nothing happens.

        Raises:
            Refused: ``no-keepalive``, with why.
        """
        with self.store.lock:
            return self._lease(warnings.stay(self.store, lease_id, by))

    def lease(self, lease_id: int) -> LeaseView:
        """One lease, live or over."""
        with self.store.lock:
            return self._lease(leases.find(self.store, lease_id))

    def leases(self, user: str | None = None) -> list[LeaseView]:
        """The live leases, of one user or of all."""
        view = self.view
        mine = (row for row in view.leases.values() if user is None or row.user == user)
        return [pool_views.full_lease_view(view, row) for row in mine]

    def brief_leases(self) -> list[LeaseView]:
        """The live leases, without who waits for them and by how much each may be extended."""
        view = self.view
        return [pool_views.lease_view(view, row) for row in view.leases.values()]

    def warned(self) -> frozenset[int]:
        """The leases whose holders are warned, by id."""
        rows = self.view.leases.values()
        return frozenset(row.id for row in rows if row.state == LeaseState.WARNED)

    def lease_of(self, user: str, server: str) -> LeaseView | None:
        """The live lease of one server."""
        view = self.view
        mine = [row for row in view.leases.values() if (row.user, row.server) == (user, server)]
        return pool_views.full_lease_view(view, mine[-1]) if mine else None

    def due(self) -> list[LeaseView]:
        """The leases whose server should be stopped now: past their end, or their slice is lost.

        The pool frees nothing by this: it waits until the holder is gone.
        """
        view = self.view
        return [pool_views.lease_view(view, row) for row in leases.due(view)]

    def _lease(self, row: LeaseRow) -> LeaseView:
        slices = (self.store.ledger.find_slice(number) for number in row.slices)
        rows = [item for item in slices if item is not None]
        return pool_views.full_lease_view(self.view, row, rows)

    # -- what there is ------------------------------------------------------------------------

    def offers(self, courses: Sequence[str], user: str | None = None) -> Offers:
        """The spawn page's data for these courses, with what this user's quotas leave."""
        return offers.offers(self.view, courses, user)

    def snapshot(self) -> PoolSnapshot:
        """The pool as it is, from memory; the same object until something changes."""
        return pool_views.snapshot(self.view)

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The GPUs that the pool was given, whether or not they answer."""
        return self.worker.driver.uuids

    @property
    def longest_call_s(self) -> float:
        """How long the oldest driver call that has not come back has lasted; 0: there is none."""
        return self.worker.driver.longest_call_s

    def archive_old(self) -> int:
        """Move some of what is old out of the ledger; how many rows."""
        keep, store = self.settings.pool, self.store
        return move_old(store.ledger, store.now(), keep.keep_days, keep.keep_staff_days)

    def sample(self, gpu: str | None = None) -> None:
        """Read memory and processes of a GPU's slices, or of all; the worker's, like `perform`."""
        for uuid in self.gpu_uuids if gpu is None else (gpu,):
            sampling.sample(self.worker, uuid)

    def note_activity(self, spent: Iterable[Spent]) -> None:
        """Keep what was seen of leases, for reports of usage."""
        activity.add(self.store, spent)

    def usage_facts(
        self, since: float, until: float, courses: Collection[str] | None = None
    ) -> Facts:
        """What the ledger says of a period, of these courses or of all.

        Reads the ledger's file and nothing else: may be called from any thread, holds up nobody.
        """
        return usage_facts.read(self.store.ledger.path, since, until, courses)

    def wellness(self) -> dict[str, Wellness]:
        """How each GPU is, by its UUID, as it said last."""
        with self.store.lock:
            return dict(self.store.wellness)

    def condition(self) -> Condition:
        """How the GPUs are and were, from memory and the ledger."""
        with self.store.lock:
            return gpu_health.condition(self.worker)

    def check_invariants(self) -> list[str]:
        """What contradicts design's five invariants; empty is well.

        Every ticket that ever ended is read from the ledger's file, for which nobody waits.
        """
        with self.store.lock:
            found = invariants.check(self.store)
        return [*found, *invariants.ended_without_reason(self.store.ledger.path)]

    # -- what must be done --------------------------------------------------------------------

    def turn(self) -> None:
        """One turn: end what is overdue, grant.  Ledger only."""
        if self._clock is not None:
            self._follow(self._clock)
        with self.store.write(durable=True) as tx:
            tickets.expire(self.store, tx)
            reservations.note_phases(self.store, tx)
            end_old_notes(self.store, tx)
            layouts.note_phases(self.store, tx)
            grants.grant_all(self.store, tx)
            grants.cut_for_layouts(self.store, tx)
        self._note_what_time_changed()

    def _follow(self, clock: PoolClock) -> None:
        """Before anything is judged by it: set the clock, and with it what counts from it."""
        with self.store.lock:
            jump = clock.jump()
            if jump:
                log.warning("%s: every grace begins anew", jump)
                with self.store.write(durable=True) as tx:
                    clock_steps.carry_over(self.store, tx, jump.step_s)
            clock.follow()  # only now: a ledger that refuses the write is asked again next turn
            if jump:
                self.store.begin_anew(jump.step_s)
                self.worker.begin_anew(jump.step_s)

    def _note_what_time_changed(self) -> None:
        """Time alone moves people in line and brings layouts: that is a change like any other."""
        with self.store.lock:
            before, now = self.store.published, self.store.view()
            if before.version == now.version and _by_time(before) != _by_time(now):
                self.store.changed()

    def next_job(
        self, kinds: Iterable[JobKind] = ALL_KINDS, busy: Collection[str] = ()
    ) -> Job | None:
        """What must be done next to a GPU or holder; None when nothing is due.

        Args:
            kinds: only these; a service may probe holders on a thread of its own.
            busy: GPUs for which a job is under way.
        """
        with self.store.lock:
            return jobs.next_job(self.worker, frozenset(kinds), busy)

    def perform(self, job: Job) -> None:
        """Do it.  A failing GPU ends up in the ledger, never at the caller."""
        jobs.perform(self.worker, job)

    def abandon(self, lease_ids: frozenset[int]) -> None:
        """These releasing leases' servers are not the hub's any more: end their holders."""
        with self.store.lock:
            self.worker.abandoned = lease_ids

    def reconcile(self) -> list[Finding]:
        """Compare ledger, holders and NVML, and heal: one step after another.

        A service takes the three steps apart, so that no GPU waits for another.
        """
        found = self.begin_reconcile()
        self.read_versions()
        for gpu in self.gpu_uuids:
            found += self.inspect(gpu)
        return found + self.ask_after_holders()

    def begin_reconcile(self) -> list[Finding]:
        """The first step, at start and on a timer: left-over containers, GPUs not listed now."""
        with self.store.write() as tx:
            clock_steps.carry_over(self.store, tx, 0.0)
        return reconcile.begin(self.worker)

    def inspect(self, gpu: str) -> list[Finding]:
        """The second, for each GPU: compare it with the ledger, and heal; the worker's."""
        return reconcile.inspect(self.worker, gpu)

    def read_versions(self) -> None:
        """Ask which driver the host runs; the worker's."""
        inspect_gpu.read_versions(self.worker)

    def ask_after_holders(self) -> list[Finding]:
        """Notice servers that ended without anybody saying so: one cheap listing, often."""
        return reconcile.ask_after_holders(self.worker)

    def estimate(self) -> None:
        """Work out anew how long those in line will wait; long, and off the lock.

        The dice are the same each time: figures move only when what they are made of has moved.
        """
        scene, newcomers = gather.look(self.view)
        said = estimate.forecast(scene, random.Random(0))  # noqa: S311 -- no secret
        now = gather.kept(scene, newcomers, said)
        with self.store.lock:
            before, self.store.forecast = self.store.forecast, now
            if gather.is_news(before, now):
                self.store.changed()

    # -- staff -----------------------------------------------------------------------------------

    def pause(self, why: str, by: str, kind: PauseKind = PauseKind.STAFF) -> None:
        """No new leases until `resume`; what runs, runs on."""
        self.staff.pause(why, by, kind)

    def resume(self, by: str) -> None:
        """Grant again."""
        self.staff.pause("", by, None)

    def reserve(self, asked: ReservationRequest, by: str) -> ReservationView:
        """Reserve slices for a course.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.lock:
            row = reservations.make(self.store, asked, by)
            return pool_views.reservation_view(self.view, row)

    def change_reservation(
        self, number: int, asked: ReservationRequest, by: str
    ) -> ReservationView:
        """Reserve otherwise under the same number; if that is refused, it stays as it was.

        Raises:
            Refused: with the reason, which is in the ledger too.
        """
        with self.store.lock:
            row = reservations.change(self.store, number, asked, by)
            return pool_views.reservation_view(self.view, row)

    def reservations(self) -> list[ReservationView]:
        """Those in force or ahead, the next in front."""
        return pool_views.reservations(self.view)

    def unreserve(self, number: int, by: str, reason: str = "") -> ReservationView:
        """Cancel a reservation; leases drawn from it live on.

        Raises:
            Refused: there is none, or it is over.
        """
        with self.store.lock:
            row = reservations.cancel(self.store, number, by, reason)
            return pool_views.reservation_view(self.view, row)

    # -- layouts ------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The pool's clock, seconds since the epoch."""
        return self.store.now()

    def cuttable(self) -> list[Cuttable]:
        """The GPUs that a layout may name, and how each can be cut."""
        return layouts_room.cuttable(self.view)

    def layouts(self) -> Layouts:
        """What was applied, and how each GPU stands to what is in force on it."""
        return layout_views.layouts(self.view)

    def layout_diffs(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """What applying these would do now; changes nothing.

        Raises:
            Refused: ``bad-layout``.
        """
        view = self.view
        return layout_views.diffs(view, layouts_room.resolved(view, asked))

    def layouts_now(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """As `layout_diffs`, each only with the GPUs on which it would be in force now."""
        view = self.view
        return layout_views.diffs_now(view, layouts_room.resolved(view, asked))

    def lay(self, asked: Sequence[LayoutSpec], by: str, reason: str = "") -> Layouts:
        """Apply layouts by draining: nobody is cut off.

        Raises:
            Refused: ``bad-layout`` or ``layout-clash``; then none is applied.
        """
        with self.store.lock:
            layouts.lay(self.store, asked, by, reason)
            return layout_views.layouts(self.view)

    def unlay(self, name: str, by: str, reason: str = "") -> Layouts:
        """End a layout: its GPUs are cut on demand again, or by the layout beneath it.

        Raises:
            Refused: ``unknown-layout``, or ``layout-clash``: a class counts on it.
        """
        with self.store.lock:
            layouts.unlay(self.store, name, by, reason)
            return layout_views.layouts(self.view)

    def adopt(self, slice_id: int, by: str) -> None:
        """Take over a foreign slice: it is destroyed, and its place is the pool's."""
        self.staff.adopt(slice_id, by)

    def clear(self, slice_id: int, by: str) -> None:
        """Try again to destroy a quarantined slice."""
        self.staff.clear(slice_id, by)

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        """What staff say to whoever is at this server, in any of these courses; newest first."""
        return self.staff.messages_for(user, server, courses)


def _by_time(view: PoolView) -> tuple[object, ...]:
    """What time alone changes: the order of the queue, layouts, and GPUs that rest."""
    resting = [gpu.uuid for gpu in view.gpus.values() if gpu.is_resting]
    return list(queue.positions(view)), view.layouts_in_force, resting


__all__ = ["Case", "Finding", "Job", "JobKind", "Pool"]
