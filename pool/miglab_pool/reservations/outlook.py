"""How much of a reservation is certain, in words: for the form, the calendar and the pool page."""

from dataclasses import dataclass

from miglab_api.wording import clock_time
from miglab_pool.ledger.rows import FULL, GPU_OK, ReservationRow
from miglab_pool.reservations.feasible import feasible, guaranteed_ends, is_usable, starts
from miglab_pool.reservations.rules import schedule_of
from miglab_pool.reservations.slots import MINUTE_S, count_held_up, reserving, slots_of
from miglab_pool.schedule import Occurrence, occurrences
from miglab_pool.state.view import GpuSnapshot, PoolView


@dataclass(frozen=True)
class Certainty:
    """What a reservation will have at one of its times.

    Attributes:
        certain: how many of its slices are certain from the start on.
        all_from: when all of them are, if that is later.
        words: the same for people, with the reason; empty: all are certain.
    """

    certain: int
    all_from: float | None = None
    words: str = ""


def outlook(view: PoolView, row: ReservationRow, time: Occurrence) -> Certainty:
    """What a reservation, made or about to be, will have at one of its times."""
    is_made = view.reservations.get(row.id) == row
    others = (one for one in view.reservations.values() if one.id != row.id)
    rows = None if is_made else (*others, row)
    begins = max(view.at, time.starts_at)
    turns = [begins, *starts(view, begins, time.ends_at)]

    def held(since: float) -> int:
        moments = {since, *(at for at in turns if at >= since)}
        return min(feasible(view, at, None, rows).held.get(row.id, row.count) for at in moments)

    certain = held(begins)
    if certain == row.count:
        return _as_it_stands(view, row, time)
    ends = (at for at in guaranteed_ends(view) if begins < at < time.ends_at)
    all_from = next((at for at in ends if held(at) == row.count), None)
    words = f"{certain} of {row.count} at {clock_time(begins, row.tz)}"
    if all_from is not None:
        return Certainty(certain, all_from, f"{words}, all from {clock_time(all_from, row.tz)}.")
    lost = [_why_lost(gpu) for gpu in view.gpus.values() if not is_usable(gpu)]
    return Certainty(certain, None, f"{words}: {'; '.join(lost)}." if lost else f"{words}.")


def _as_it_stands(view: PoolView, row: ReservationRow, time: Occurrence) -> Certainty:
    """All find a place; but one may still be held up, or nothing is reclaimed for it."""
    if not view.settings.reclaim.acts:
        return Certainty(row.count, None, "Not certain: this lab does not end leases.")
    late = count_held_up(view, row) if time.starts_at <= view.at else 0
    if late:
        words = f"{row.count - late} of {row.count} now: the rest waits for servers to end."
        return Certainty(row.count - late, None, words)
    return Certainty(row.count)


def _why_lost(gpu: GpuSnapshot) -> str:
    row = gpu.row
    if row.draining:
        return f"GPU {row.idx} takes no new leases ({row.draining})"
    why = row.reason or "does not answer"
    said = why if row.state != GPU_OK else "its last servers have not ended"
    return f"GPU {row.idx}: {said}"


def of_week(view: PoolView, since: float, until: float) -> dict[tuple[int, float], str]:
    """The words of each time between two moments that is not all certain, by number and start."""
    found = {
        (row.id, time.starts_at): outlook(view, row, time).words
        for row in view.reservations.values()
        for time in occurrences(schedule_of(row), max(since, view.at), until)
    }
    return {key: words for key, words in found.items() if words}


def unkept(view: PoolView) -> list[str]:
    """The reservations in progress that lack slots although all of everybody's are feasible."""
    if any(gpu.is_resting for gpu in view.gpus.values()):
        return []
    found = []
    for one in reserving(view):
        moment = max(one.time.starts_at, view.at // MINUTE_S * MINUTE_S)
        held = feasible(view, moment).held
        is_all = all(held[number] == view.reservations[number].count for number in held)
        if one.has_begun and is_all and one.row.shape != FULL:
            slots = {slot.request for slot in slots_of(view).get(one.row.id, ())}
            if len(slots) < one.left:
                found.append(f"reservation {one.row.id} has {len(slots)} slots for {one.left}")
    return found
