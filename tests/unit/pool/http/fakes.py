"""A hub and a pool that answer from memory, and refuse when told to."""

import datetime as dt
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from miglab_api.gpus import GpuView, PoolSnapshot, SliceState, SliceView
from miglab_api.layouts import GpuLayout
from miglab_api.leases import Fence, LeaseState, LeaseView, ServerStatus
from miglab_api.offers import CourseOffers, Offers, ShapeOffer
from miglab_api.reservations import ReservationRequest, ReservationState, ReservationView
from miglab_api.staff import AuditEntry, SentMessage, StaffMessage
from miglab_api.tickets import Headcount, TicketRequest, TicketState, TicketView
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.gpu.readings import Versions
from miglab_pool.http.access.auth import STAFF_SCOPE
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.errors import DeniedError
from miglab_pool.refused import Refused
from miglab_pool.roster.rules import SharedProgress
from miglab_pool.usage.report import Facts
from miglab_pool.worker.gpu_health import Condition, Happening
from miglab_pool.worker.jobs import Job, JobKind

from .fake_layouts import FIRST, FakeLayouts
from .fake_staff import FakeStaff

PREFIX = "/services/pool"
SECRET = "the-spawners-own-secret"
ACCESS = HubAccess("http://hub.invalid/hub/api", "/hub/", PREFIX, "pool", "service-token")
BOOK = RoleBook(
    {
        "everyone": CourseStaff(),
        "ml": CourseStaff(frozenset({"ilse"}), frozenset({"timo"})),
        "vision": CourseStaff(frozenset({"vera"})),
    }
)
ENTRY = "access:services!service=pool"


def person(name: str, *scopes: str, entry: bool = True, **more: Any) -> dict[str, Any]:
    """What the hub says of a person's token."""
    return {"kind": "user", "name": name, "scopes": [*scopes, *([ENTRY] if entry else [])], **more}


OWNERS: dict[str, dict[str, Any]] = {
    "alice-token": person("alice", groups=["ml"]),
    "bob-token": person("bob"),
    "staff-token": person("ina", STAFF_SCOPE),
    "admin-token": person("root", admin=True),
    "instructor-token": person("ilse"),
    "assistant-token": person("timo"),
    "vision-token": person("vera"),
    "outsider-token": person("eve", entry=False),
    "service-token-alice": {"kind": "service", "name": "alice", "scopes": [ENTRY]},
    "alice-server": person("alice", "custom:miglab:lease!server=alice/", entry=False),
    "alice-lab2": person("alice", "custom:miglab:lease!server=alice/lab2", entry=False),
    "alice-two": person(
        "alice",
        "custom:miglab:lease!server=alice/",
        "custom:miglab:lease!server=alice/lab2",
        entry=False,
    ),
    "forged-server": person("bob", "custom:miglab:lease!server=alice/", entry=False),
    "user-wide": person("alice", "custom:miglab:lease!user=alice", entry=False),
}


class FakeTokens(HubTokens):
    """A hub that knows `OWNERS`."""

    silent = False

    async def owner(self, token: str, address: str) -> dict[str, Any] | None:
        if self.silent:
            raise DeniedError(503, "hub-silent", "The hub does not answer.")
        return OWNERS.get(token)

    async def token_for_code(self, code: str, verifier: str | None) -> str:
        assert verifier
        if code not in OWNERS:
            raise DeniedError(403, "sign-in-failed", "The hub refused the sign-in.")
        return code


def lease_view(number: int, user: str, **more: Any) -> LeaseView:
    """A running lease of one slice."""
    values: dict[str, Any] = {
        "id": number, "ticket": number, "generation": number, "user": user, "server": "",
        "course": "ml", "shape": "1g.5gb", "state": LeaseState.RUNNING, "granted_at": 1000.0,
        "guaranteed_until": 2000.0,
        "holder": f"container:{number:064x}", "uuids": (f"MIG-{number}",),
    }  # fmt: skip
    return LeaseView(**{**values, **more})


def slice_view(number: int, start: int, user: str | None = None, **more: Any) -> SliceView:
    """A slice of one memory slice, leased if it has a user."""
    values: dict[str, Any] = {
        "slice_id": number, "gpu": 0, "uuid": f"MIG-{number}", "profile": "1g.5gb", "start": start,
        "size": 1, "generation": number, "sm_count": 14, "memory_mib": 4864,
        "state": SliceState.LEASED if user else SliceState.FREE, "lease": number if user else None,
        "user": user, "server": "" if user else None, "course": "ml" if user else None,
    }  # fmt: skip
    return SliceView(**{**values, **more})


def entry(number: int, **more: Any) -> AuditEntry:
    """What ina did: she asked for lease 1 back."""
    values: dict[str, Any] = {
        "id": number, "at": 1e9, "by": "person:ina", "action": "reclaim", "kind": "lease",
        "target": "1", "from_state": "running", "to_state": "warned", "reason": "Exam.",
        "course": "ml",
    }  # fmt: skip
    return AuditEntry(**(values | more))


def reservation_view(number: int, **more: Any) -> ReservationView:
    """Seven slices for ml, Tuesdays from 10 to 12 in Berlin."""
    values: dict[str, Any] = {
        "course": "ml", "shape": "1g.5gb", "count": 7, "weekdays": ("tue",), "until": None,
        "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin", "grace_s": 900.0,
        "state": ReservationState.PLANNED, "starts_at": 1_780_387_200.0, "made_by": "ina",
        "ends_at": 1_780_394_400.0, "made_at": 990.0,
        "reserved_from": 1_780_386_300.0, "reserved_until": 1_780_388_100.0,
        "message": more.pop("reason", "week 1"),
    } | more  # fmt: skip
    values["date"] = values.get("date") or dt.date(2026, 6, 2)
    return ReservationView(id=number, **values)


@dataclass
class FakePool(FakeLayouts):
    """Keeps what it is told; decides nothing but who is refused."""

    version: int = 1
    slices: list[SliceView] = field(default_factory=list)
    held: dict[int, LeaseView] = field(default_factory=dict)
    queued: dict[int, TicketView] = field(default_factory=dict)
    reserved: dict[int, ReservationView] = field(default_factory=dict)
    messages: list[StaffMessage] = field(default_factory=list)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    turns: int = 0
    queue_full: bool = False
    gpu_state: str = "ok"
    shows_waiting: bool = True
    used: Facts = field(default_factory=Facts)
    infos: dict[str, Any] = field(default_factory=dict)
    history: tuple[Happening, ...] = ()
    contradictions: list[str] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    findings: list[Any] = field(default_factory=list)
    sent: dict[int, SentMessage] = field(default_factory=dict)
    done: list[AuditEntry] = field(default_factory=list)
    gpu_course: str = ""
    laid: GpuLayout = FIRST

    @property
    def staff(self) -> FakeStaff:
        """What staff do by hand."""
        return FakeStaff(self)

    @property
    def roster(self) -> SimpleNamespace:
        """What servers tell of their students: nothing."""
        return SimpleNamespace(shared=lambda _course: SharedProgress(), looked=self._looked)

    def _looked(self, course: str, by: str, action: str) -> None:
        self.calls.append(("looked", course, by, action))

    @property
    def tickets(self) -> SimpleNamespace:
        """What is asked of tickets, as the pool names it."""
        return SimpleNamespace(
            find=self.ticket, of_server=self.ticket_of, request=self.request, attend=self.attend,
            take=self.take, cancel=self.cancel, cancel_of_server=self.cancel_of,
            server_status=self.server_status, requeue=self.requeue,
            alternatives=self.alternatives,
        )  # fmt: skip

    @property
    def leases(self) -> SimpleNamespace:
        """The same of leases."""
        return SimpleNamespace(
            find=self.lease, of_server=self.lease_of, live=self.live_leases,
            brief=self.brief_leases, warned=self.warned, attach=self.attach, running=self.running,
            release=self.release, extend=self.extend, keepalive=self.keepalive,
        )  # fmt: skip

    @property
    def reservations(self) -> SimpleNamespace:
        """The same of reservations."""
        return SimpleNamespace(
            all=self.all_reservations, make=self.reserve, change=self.change_reservation,
            cancel=self.unreserve, outlooks=lambda since, until: {},
            preview=lambda asked, number: reservation_view(number, **asked.model_dump()),
        )  # fmt: skip

    @property
    def layouts(self) -> SimpleNamespace:
        """The same of layouts."""
        return SimpleNamespace(all=self.all_layouts, diff=self.layout_diff, apply=self.lay)

    def _changed(self, *call: Any) -> None:
        self.calls.append(call)
        self.version += 1

    def request(self, request: TicketRequest) -> TicketView:
        if self.queue_full:
            raise Refused("queue-full", "200 wait already. Try later, or start without a GPU.", 429)
        same = [
            t for t in self.queued.values() if (t.user, t.shape) == (request.user, request.shape)
        ]
        if same:
            return same[0]
        number = len(self.queued) + 1
        self.queued[number] = TicketView(
            id=number, state=TicketState.WAITING, position=number, waiting=number,
            created_at=990.0, **request.model_dump(exclude={"only_if_free"}),
        )  # fmt: skip
        self._changed("request", number)
        return self.queued[number]

    def ticket_of(self, user: str, server: str) -> int | None:
        there = (one.id for one in self.queued.values() if (one.user, one.server) == (user, server))
        return next(there, None)

    def request_of_alice(self) -> TicketView:
        """A waiting ticket of alice's."""
        return self.request(TicketRequest(user="alice", server="", course="ml", shape="1g.5gb"))

    def ticket(self, number: int) -> TicketView:
        if number not in self.queued:
            raise Refused("unknown-ticket", f"There is no ticket {number}.", 404)
        return self.queued[number]

    def attend(self, number: int) -> TicketView:
        self.calls.append(("attend", number))
        return self.ticket(number)

    def set_ticket(self, number: int, **changes: Any) -> None:
        self.queued[number] = self.ticket(number).model_copy(update=changes)
        self._changed("set_ticket", number)

    def cancel(self, number: int, by: str, reason: str = "") -> TicketView:
        self.set_ticket(number, state=TicketState.CANCELLED, position=None, reason="cancelled")
        self._changed("cancel", number, by)
        return self.queued[number]

    def take(self, number: int) -> LeaseView:
        ticket = self.ticket(number)
        if ticket.lease is None:
            raise Refused("not-offered", "The ticket holds no offer.")
        self.set_ticket(number, state=TicketState.TAKEN)
        return self.held[ticket.lease]

    def lease(self, number: int) -> LeaseView:
        if number not in self.held:
            raise Refused("unknown-lease", f"There is no lease {number}.", 404)
        return self.held[number]

    def live_leases(self, user: str | None = None) -> list[LeaseView]:
        return [lease for lease in self.held.values() if user in (None, lease.user)]

    def brief_leases(self) -> list[LeaseView]:
        return self.live_leases()

    def warned(self) -> frozenset[int]:
        return frozenset(lease.id for lease in self.held.values() if lease.warning is not None)

    def lease_of(self, user: str, server: str) -> LeaseView | None:
        found = [le for le in self.held.values() if (le.user, le.server) == (user, server)]
        return found[0] if found else None

    def server_status(self, user: str, server: str, known: int | None = None) -> ServerStatus:
        self.calls.append(("server_status", user, server, known))
        found = [t for t in self.queued.values() if (t.user, t.server) == (user, server)]
        return ServerStatus(lease=self.lease_of(user, server), ticket=found[0] if found else None)

    def alternatives(self, number: int) -> list[ShapeOffer]:
        self.ticket(number)
        return []

    def cancel_of(self, user: str, server: str, by: str) -> TicketView:
        ticket = self.server_status(user, server).ticket
        if ticket is None:
            raise Refused("unknown-ticket", "This server is not waiting for a slice.", 404)
        return self.cancel(ticket.id, by)

    def requeue(self, user: str, server: str, number: int, courses: Collection[str]) -> TicketView:
        before = self.ticket(number)
        self._changed("requeue", user, server, number, tuple(sorted(courses)))
        return before

    def attach(
        self, number: int, generation: int, holder: str, ledger: str = "", server_started: str = ""
    ) -> LeaseView:
        if generation != self.lease(number).generation:
            raise Refused("stale-lease", "The lease is over.")
        self._changed("attach", number, generation, holder)
        return self.held[number]

    def running(self, number: int, fence: Fence | None = None) -> LeaseView:
        self._changed("running", number)
        return self.lease(number)

    def release(
        self, number: int, by: str, reason: str = "", fence: Fence | None = None
    ) -> LeaseView:
        lease = self.lease(number).model_copy(update={"state": LeaseState.RELEASING})
        self.held[number] = lease
        self._changed("release", number, by, reason)
        return lease

    def extend(self, number: int, by_s: float, by: str) -> LeaseView:
        self._changed("extend", number, by_s, by)
        return self.lease(number)

    def keepalive(self, number: int, by: str) -> LeaseView:
        self._changed("keepalive", number, by)
        return self.lease(number)

    def reserve(self, asked: ReservationRequest, by: str) -> ReservationView:
        if asked.count > 7:
            raise Refused("reservation-clash", "It clashes with reservation 1. Reserve fewer.")
        number = len(self.reserved) + 1
        self.reserved[number] = reservation_view(number, made_by=by, **asked.model_dump())
        self._changed("reserve", number, by)
        return self.reserved[number]

    def change_reservation(
        self, number: int, asked: ReservationRequest, by: str
    ) -> ReservationView:
        if number not in self.reserved:
            raise Refused("unknown-reservation", f"There is no reservation {number}.", 404)
        self.reserved[number] = reservation_view(number, made_by=by, **asked.model_dump())
        self._changed("change_reservation", number, by)
        return self.reserved[number]

    def all_reservations(self) -> list[ReservationView]:
        return list(self.reserved.values())

    def unreserve(self, number: int, by: str, reason: str = "") -> ReservationView:
        if number not in self.reserved:
            raise Refused("unknown-reservation", f"There is no reservation {number}.", 404)
        self._changed("unreserve", number, by, reason)
        over = {"state": ReservationState.CANCELLED, "reason": "cancelled", "message": reason}
        return self.reserved.pop(number).model_copy(update=over)

    def estimate(self) -> None:
        """Nothing is known."""

    def offers(self, courses: Sequence[str], user: str | None = None) -> Offers:
        shape = ShapeOffer(
            shape="1g.5gb", sm_count=14, memory_mib=4864, slices=1, good_for="Most.", free_now=2
        )
        return Offers(
            simulated=True,
            courses=tuple(
                CourseOffers(course=name, title=name, shapes=(shape,), default="1g.5gb")
                for name in courses
            ),
        )

    def snapshot(self) -> PoolSnapshot:
        self.calls.append(("snapshot",))
        gpu = GpuView(
            index=0, uuid="GPU-0", name="A100", memory_slices=8, memory_mib=40960, mig=True,
            state=self.gpu_state, slices=tuple(self.slices), course=self.gpu_course,
        )  # fmt: skip
        waiting = tuple(t for t in self.queued.values() if t.state in ("waiting", "offered"))
        waiting = waiting if self.shows_waiting else ()
        people = Headcount(waiting=len(waiting))
        return PoolSnapshot(at=1000.0, simulated=True, gpus=(gpu,), waiting=waiting, people=people)

    def check_invariants(self) -> list[str]:
        return self.contradictions

    def turn(self) -> None:
        self.turns += 1

    gpu_uuids = ("GPU-0",)
    longest_call_s = 0.0

    def may_have_jobs(self, kinds: frozenset[JobKind]) -> bool:
        return False

    def next_job(self, kinds: frozenset[JobKind], busy: Collection[str] = ()) -> Job | None:
        return None

    def begin_reconcile(self) -> list[Any]:
        self.calls.append(("begin_reconcile",))
        return self.findings

    def inspect(self, gpu: str) -> list[Any]:
        self.calls.append(("inspect",))
        return []

    def read_versions(self) -> None: ...

    def ask_after_holders(self) -> list[Any]:
        self.calls.append(("ask_after_holders",))
        return []

    def usage_facts(
        self, since: float, until: float, courses: Collection[str] | None = None
    ) -> Facts:
        self.calls.append(("usage_facts", since, until, courses))
        kept = {
            name: tuple(
                one
                for one in getattr(self.used, name)
                if courses is None or one.who.course in courses
            )
            for name in ("held", "reclaims", "refusals")
        }
        return replace(self.used, **kept)

    def condition(self) -> Condition:
        return Condition(Versions("580.1", "13.0"), self.infos, self.said, self.history)

    def wellness(self) -> dict[str, Any]:
        return self.said

    def sample(self, gpu: str | None = None) -> None:
        self.calls.append(("sample",))

    def names(self) -> Iterable[str]:
        """The calls so far, by name."""
        return [call[0] for call in self.calls]
