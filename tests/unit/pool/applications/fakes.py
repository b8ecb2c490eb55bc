"""A hub that answers from memory, and refuses when told to; what the pool's answers look like."""

import datetime as dt
from typing import Any

from miglab_api.gpus import GpuView, PoolSnapshot, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.reservations import ReservationState, ReservationView
from miglab_api.scopes import STAFF_SCOPE
from miglab_api.staff import AuditEntry
from miglab_api.tickets import Headcount, TicketState, TicketView
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.access.principal import Principal, PrincipalKind
from miglab_pool.http.errors import DeniedError

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
ROOT = Principal(PrincipalKind.PERSON, "root", admin=True)
ILSE = Principal(PrincipalKind.PERSON, "ilse", instructs=frozenset({"ml"}))
TIMO = Principal(PrincipalKind.PERSON, "timo", assists=frozenset({"ml"}))
VERA = Principal(PrincipalKind.PERSON, "vera", instructs=frozenset({"vision"}))
ALICE = Principal(PrincipalKind.PERSON, "alice", course_names=("ml",))
ENTRY = "access:services!service=pool"


def person(name: str, *scopes: str, entry: bool = True, **fields: Any) -> dict[str, Any]:
    """What the hub says of a person's token."""
    return {
        "kind": "user",
        "name": name,
        "scopes": [*scopes, *([ENTRY] if entry else [])],
        **fields,
    }


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


def lease_view(number: int, user: str, **fields: Any) -> LeaseView:
    """A running lease of one slice."""
    values: dict[str, Any] = {
        "id": number, "ticket": number, "generation": number, "user": user, "server": "",
        "course": "ml", "shape": "1g.5gb", "state": LeaseState.RUNNING, "granted_at": 1000.0,
        "guaranteed_until": 2000.0,
        "holder": f"container:{number:064x}", "uuids": (f"MIG-{number}",),
    }  # fmt: skip
    return LeaseView(**{**values, **fields})


def slice_view(number: int, start: int, user: str | None = None, **fields: Any) -> SliceView:
    """A slice of one memory slice, leased if it has a user."""
    values: dict[str, Any] = {
        "slice_id": number, "gpu": 0, "uuid": f"MIG-{number}", "profile": "1g.5gb", "start": start,
        "size": 1, "generation": number, "sm_count": 14, "memory_mib": 4864,
        "state": SliceState.LEASED if user else SliceState.FREE, "lease": number if user else None,
        "user": user, "server": "" if user else None, "course": "ml" if user else None,
    }  # fmt: skip
    return SliceView(**{**values, **fields})


def entry(number: int, **fields: Any) -> AuditEntry:
    """What ina did: she asked for lease 1 back."""
    values: dict[str, Any] = {
        "id": number, "at": 1e9, "by": "person:ina", "action": "reclaim", "kind": "lease",
        "target": "1", "from_state": "running", "to_state": "warned", "reason": "Exam.",
        "course": "ml",
    }  # fmt: skip
    return AuditEntry(**(values | fields))


def reservation_view(number: int, **fields: Any) -> ReservationView:
    """Seven slices for ml, Tuesdays from 10 to 12 in Berlin."""
    values: dict[str, Any] = {
        "course": "ml", "shape": "1g.5gb", "count": 7, "weekdays": ("tue",), "until": None,
        "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin", "grace_s": 900.0,
        "state": ReservationState.PLANNED, "starts_at": 1_780_387_200.0, "made_by": "ina",
        "ends_at": 1_780_394_400.0, "made_at": 990.0,
        "reserved_from": 1_780_386_300.0, "reserved_until": 1_780_388_100.0,
        "message": fields.pop("reason", "week 1"),
    } | fields  # fmt: skip
    values["date"] = values.get("date") or dt.date(2026, 6, 2)
    return ReservationView(id=number, **values)


def ticket_view(number: int, user: str, **fields: Any) -> TicketView:
    """Who waits for one slice of ml."""
    values: dict[str, Any] = {
        "id": number, "user": user, "server": "", "course": "ml", "shape": "1g.5gb",
        "state": TicketState.WAITING, "position": number, "waiting": number, "created_at": 990.0,
    }  # fmt: skip
    return TicketView(**{**values, **fields})


def gpu_view(*slices: SliceView, index: int = 0, **fields: Any) -> GpuView:
    """An A100 with these slices, which answers."""
    values: dict[str, Any] = {
        "index": index, "uuid": f"GPU-{index}", "name": "A100", "memory_slices": 8,
        "memory_mib": 40960, "mig": True, "state": "ok", "slices": slices,
    }  # fmt: skip
    return GpuView(**(values | fields))


def snapshot(*gpus: GpuView, waiting: tuple[TicketView, ...] = (), **fields: Any) -> PoolSnapshot:
    """A pool of these GPUs, and who waits."""
    people = Headcount(waiting=len(waiting))
    return PoolSnapshot(
        at=1000.0, simulated=True, gpus=gpus, waiting=waiting, people=people, **fields
    )
