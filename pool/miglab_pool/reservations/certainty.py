"""How much of a reservation is certain, in numbers and in words.  Reads only.

Form, calendar and pool page show the words.
"""

from dataclasses import dataclass

from miglab_api.wording import clock_time
from miglab_pool.ledger.rows import FULL, GPU_OK, ReservationRow
from miglab_pool.reservations.feasible import (
    count_room_beside,
    feasible,
    guaranteed_ends,
    is_usable,
    start_times,
)
from miglab_pool.reservations.rules import ReservationInForce
from miglab_pool.reservations.slots import (
    MINUTE_S,
    count_held_up,
    reservations_with_slots,
    slots_of,
)
from miglab_pool.schedule import (
    Occurrence,
    occurrences,
)
from miglab_pool.state.reservation_times import schedule_of
from miglab_pool.state.view import GpuSnapshot, PoolView, cached_on_instance

HOUR_S = 3600.0


@dataclass(frozen=True)
class Certainty:
    """How much of a reservation is certain at one of its times.

    Attributes:
        certain: how many of its leases are certain from the start on.
        all_from: when all of them are, if that is later.
        message: the same for people, with the reason; empty: all are certain.
    """

    certain: int
    all_from: float | None = None
    message: str = ""


@cached_on_instance
def outlook(view: PoolView, row: ReservationRow, time: Occurrence, zone: str) -> Certainty:
    """Return how much of a reservation, made or about to be, is certain at one of its times.

    The message gives times in the time zone ``zone``.
    """
    is_saved = view.reservations.get(row.id) == row
    begins = max(view.at, time.starts_at)
    near_rows = () if is_saved else view.reservations.between(begins, time.ends_at)
    rows = None if is_saved else (*(other for other in near_rows if other.id != row.id), row)
    starts = [begins, *start_times(view, begins, time.ends_at)]

    def least_count(since: float) -> int:
        moments = {since, *(at for at in starts if at >= since)}
        return min(feasible(view, at, None, rows).counts.get(row.id, row.count) for at in moments)

    certain = least_count(begins)
    if certain == row.count:
        return _certainty_of_all(view, row, time)
    ends = (at for at in guaranteed_ends(view) if begins < at < time.ends_at)
    all_from = next((at for at in ends if least_count(at) == row.count), None)
    message = f"{certain} of {row.count} at {clock_time(begins, zone)}"
    if all_from is not None:
        since = clock_time(all_from, zone)
        return Certainty(certain, all_from, f"{message}, all from {since}.")
    lost = [_describe_unusable(gpu) for gpu in view.gpus.values() if not is_usable(gpu)]
    return Certainty(certain, None, f"{message}: {'; '.join(lost)}." if lost else f"{message}.")


def _certainty_of_all(view: PoolView, row: ReservationRow, time: Occurrence) -> Certainty:
    """Return the certainty of a reservation all of whose leases have room.

    Some may still wait for a lease to end, and where nothing is reclaimed, none is certain.
    """
    if not view.settings.reclaim.acts:
        return Certainty(row.count, None, "Not certain: this lab does not end leases.")
    late = count_held_up(view, row) if time.starts_at <= view.at else 0
    if late:
        message = f"{row.count - late} of {row.count} now: the rest waits for servers to end."
        return Certainty(row.count - late, None, message)
    return Certainty(row.count)


def _describe_unusable(gpu: GpuSnapshot) -> str:
    """Return why reservations cannot count on a GPU."""
    row = gpu.row
    if row.draining:
        return f"GPU {row.idx} takes no new leases ({row.draining})"
    reason = row.reason or "does not answer"
    state = reason if row.state != GPU_OK else "its last servers have not ended"
    return f"GPU {row.idx}: {state}"


def week_outlooks(
    view: PoolView, since: float, until: float, zone: str
) -> dict[tuple[int, float], str]:
    """Return the messages of the times that are not fully certain, by number and start."""
    outlooks = {
        (row.id, time.starts_at): outlook(view, row, time, zone).message
        for row in view.reservations.between(max(since, view.at), until)
        for time in occurrences(schedule_of(row), max(since, view.at), until)
    }
    return {key: message for key, message in outlooks.items() if message}


def reservable_by_hour(
    view: PoolView, course: str, shape: str, since: float, until: float
) -> dict[float, int]:
    """Return how many more leases of a shape a course can reserve, by the start of each hour.

    They are counted as `check_room` does: beside all other reservations, on otherwise empty GPUs.
    Hours that are over, and those in which the lab is closed, are left out.
    """
    windows = view.settings.maintenance_windows
    closed = [closed_time for rule in windows for closed_time in occurrences(rule, since, until)]
    all_times = [
        ReservationInForce(row, time, False, True, row.count)
        for row in view.reservations.between(since, until)
        for time in occurrences(schedule_of(row), since, until)
    ]

    def count_at(moment: float) -> int:
        reservations = [r for r in all_times if r.time.starts_at <= moment < r.time.ends_at]
        return count_room_beside(view, course, shape, reservations)

    starts = sorted({reservation.time.starts_at for reservation in all_times})
    hours = (since + n * HOUR_S for n in range(round((until - since) / HOUR_S)))
    return {
        at: min(map(count_at, (at, *(start for start in starts if at < start < at + HOUR_S))))
        for at in hours
        if at + HOUR_S > view.at
        and not any(Occurrence(at, at + HOUR_S).overlaps(closed_time) for closed_time in closed)
    }


def unkept_reservations(view: PoolView) -> list[str]:
    """Return, in words, the reservations in progress that lack slots although all are feasible."""
    if any(gpu.is_resting or gpu.closed for gpu in view.gpus.values()):
        return []
    shortfalls = []
    for reservation in reservations_with_slots(view):
        moment = max(reservation.time.starts_at, view.at // MINUTE_S * MINUTE_S)
        counts = feasible(view, moment).counts
        row = reservation.row
        are_feasible = all(counts[number] == view.reservations[number].count for number in counts)
        if reservation.has_begun and are_feasible and row.shape != FULL:
            slots = {slot.request for slot in slots_of(view).get(row.id, ())}
            if len(slots) < reservation.undrawn:
                shortfalls.append(
                    f"reservation {row.id} has {len(slots)} slots for {reservation.undrawn}"
                )
    return shortfalls
