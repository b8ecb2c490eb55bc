"""What staff do to the fake pool: it keeps what it is told, and refuses what is not there."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from miglab_api.gpus import GpuView, SliceView
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.staff import AuditEntry, MessageRequest, SentMessage, StaffMessage
from miglab_api.tickets import TicketView
from miglab_pool.refused import Refused
from miglab_pool.staff.log import Question

if TYPE_CHECKING:
    from .fakes import FakePool


class FakeStaff:
    """See the module."""

    def __init__(self, pool: "FakePool") -> None:
        self._pool = pool

    def _did(self, *call: Any) -> None:
        self._pool._changed(*call)

    # -- places -------------------------------------------------------------------------------

    def gpu(self, uuid: str) -> GpuView:
        for gpu in self._pool.snapshot().gpus:
            if gpu.uuid == uuid:
                return gpu
        raise Refused("unknown-gpu", f"This lab has no GPU {uuid!r}.", 404)

    def gpu_under(self, number: int) -> GpuView:
        self.slice(number)
        return self.gpu("GPU-0")

    def slice(self, number: int) -> SliceView:
        for item in self._pool.slices:
            if item.slice_id == number:
                return item
        raise Refused("unknown-slice", f"There is no slice {number}.", 404)

    def drain_gpu(self, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuView:
        self._did("drain_gpu", uuid, reason, by, expected)
        return self.gpu(uuid).model_copy(update={"draining": reason})

    def undrain_gpu(self, uuid: str, reason: str, by: str, expected: str | None = None) -> GpuView:
        self._did("undrain_gpu", uuid, reason, by, expected)
        return self.gpu(uuid)

    def drain_slice(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        self._did("drain_slice", number, reason, by, expected)
        return self.slice(number).model_copy(update={"draining": reason})

    def undrain_slice(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        self._did("undrain_slice", number, reason, by, expected)
        return self.slice(number)

    def quarantine(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> SliceView:
        self._did("quarantine", number, reason, by, expected)
        return self.slice(number)

    def clear(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        self._did("clear", number, by, reason, expected)
        return self.slice(number)

    def adopt(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> SliceView:
        self._did("adopt", number, by, reason, expected)
        return self.slice(number)

    # -- leases and tickets -------------------------------------------------------------------

    def pause(self, reason: str, by: str) -> None:
        self._did("pause", reason, by)

    def resume(self, by: str) -> None:
        self._did("resume", by)

    def messages_for(
        self, user: str, server: str, courses: Collection[str]
    ) -> tuple[StaffMessage, ...]:
        self._pool.calls.append(("messages_for", user, server, tuple(courses)))
        return tuple(self._pool.messages)

    def reclaim(
        self, number: int, reason: str, by: str, warning_s: float, expected: str | None = None
    ) -> LeaseView:
        self._did("reclaim", number, reason, by, warning_s, expected)
        state = LeaseState.WARNED if warning_s else LeaseState.RELEASING
        return self._pool.leases.find(number).model_copy(update={"state": state})

    def release_reclaimed(self) -> list[LeaseView]:
        return []

    def extend(
        self, number: int, by_s: float, by: str, reason: str = "", expected: str | None = None
    ) -> LeaseView:
        self._did("staff_extend", number, by_s, by, reason, expected)
        return self._pool.leases.find(number)

    def put_in_front(
        self, number: int, reason: str, by: str, expected: str | None = None
    ) -> TicketView:
        self._did("put_in_front", number, reason, by, expected)
        return self._pool.tickets.find(number).model_copy(update={"is_next": True})

    def put_back(
        self, number: int, by: str, reason: str = "", expected: str | None = None
    ) -> TicketView:
        self._did("put_back", number, by, reason, expected)
        return self._pool.tickets.find(number)

    # -- messages and audit -------------------------------------------------------------------

    def send(self, asked: MessageRequest, by: str) -> SentMessage:
        number = len(self._pool.sent) + 1
        said = asked.model_dump(exclude={"all", "minutes"})
        self._pool.sent[number] = SentMessage(id=number, at=1000.0, by=by, until=2000.0, **said)
        self._did("send", number, by)
        return self._pool.sent[number]

    def message(self, number: int) -> SentMessage:
        if number not in self._pool.sent:
            raise Refused("unknown-message", f"No message {number} is on display.", 404)
        return self._pool.sent[number]

    def end_message(self, number: int, by: str, reason: str = "") -> SentMessage:
        self._did("end_message", number, by, reason)
        return self._pool.sent.pop(number)

    def messages(self) -> list[SentMessage]:
        return list(self._pool.sent.values())

    def audit(self, asked: Question) -> list[AuditEntry]:
        self._pool.calls.append(("audit", asked))
        return self._pool.done
