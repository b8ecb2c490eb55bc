"""Reservations: made, refused, cancelled, and when each is in force.

Decisions only.  What a reservation is doing at a moment follows from its row and the clock alone
(`phase`); the state in the row is what was noted last, for the ledger's history.  What is kept for
those in force is reserved.py's concern.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from zoneinfo import ZoneInfo

from miglab_spawner.gpu.shapes import Shape, ShapeError, parse_shape, resolve
from miglab_spawner.messages import ReservationRequest, ReservationState
from miglab_spawner.pool.core import Core
from miglab_spawner.pool.layouts.timetable import planned
from miglab_spawner.pool.ledger.ledger import Transaction
from miglab_spawner.pool.ledger.rows import LIVE_RESERVATIONS, ReservationRow
from miglab_spawner.pool.refused import Refused

from .calendar import (
    DAY_S,
    Occurrence,
    Rule,
    is_zone,
    local_day,
    mask_of,
    names_of,
    next_occurrence,
    occurrence,
    occurrences,
)
from .clashes import Room, first_clash, times

YEAR_S = 366 * DAY_S
AHEAD_DAYS = 366  # how far ahead a first day may lie

Phase = tuple[ReservationState, Occurrence | None]


# -- when ---------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _rule(weekdays: int, first: str, last: str, from_time: str, to_time: str, tz: str) -> Rule:
    return Rule(
        weekdays=weekdays,
        first=dt.date.fromisoformat(first),
        last=dt.date.fromisoformat(last) if last else None,
        starts=dt.time.fromisoformat(from_time),
        ends=dt.time.fromisoformat(to_time),
        tz=tz,
    )


def rule_of(row: ReservationRow) -> Rule:
    """The row's times."""
    return _rule(row.weekdays, row.first_date, row.last_date, row.from_time, row.to_time, row.tz)


def phase(row: ReservationRow, at: float, lead_s: float) -> Phase:
    """What a reservation is doing at a moment, by its row and the clock alone.

    Args:
        row: of a reservation that is not cancelled or refused.
        at: the moment.
        lead_s: how long before the start its places are set aside.

    Returns:
        ``kept`` from the lead before its start to the end of its grace, ``open`` from then to its
        end, ``planned`` before, each with the time it is about; ``over``, without one, after all.
    """
    rule = rule_of(row)
    found = next(occurrences(rule, at, at + lead_s), None)
    if found is None:
        ahead = next_occurrence(rule, at)
        return (ReservationState.PLANNED if ahead else ReservationState.OVER), ahead
    is_kept = at < kept_until(row, found)
    return (ReservationState.KEPT if is_kept else ReservationState.OPEN), found


def kept_until(row: ReservationRow, found: Occurrence) -> float:
    """When what was not taken up is free for all."""
    return min(found.starts_at + row.grace_s, found.ends_at)


def in_words(row: ReservationRow) -> str:
    """What is reserved and when, for people."""
    days = "+".join(names_of(row.weekdays)) or row.first_date
    when = f"{days} {row.from_time}-{row.to_time} {row.tz}"
    return f"{row.count} times {row.shape} for {row.course}, {when}"


# -- making -------------------------------------------------------------------------------------


def make(
    core: Core,
    asked: ReservationRequest,
    by: str,
    check: Callable[[ReservationRow, float], None] = lambda _row, _at: None,
) -> ReservationRow:
    """Reserve, or refuse with the reason, which is in the ledger too.

    Args:
        core: the pool.
        asked: what and when.
        by: who.
        check: refuses what goes well with the other reservations, but not with something else.
    """
    with core.write(durable=True) as tx:
        row = _row(core.ledger.new_id("reservation"), tx.at, asked, by)
        row, why = _judged(core, row, asked, tx.at, check)
        if why is not None:
            row = replace(
                row, state=ReservationState.REFUSED, reason=why.reason, message=why.message
            )
        tx.put(row, by, row.message or in_words(row))
    if why is not None:
        raise why
    return row


def change(
    core: Core,
    number: int,
    asked: ReservationRequest,
    by: str,
    check: Callable[[ReservationRow, float], None] = lambda _row, _at: None,
) -> ReservationRow:
    """Reserve otherwise under the same number; if that is refused, it stays as it was.

    What it keeps from now on follows from what it is now; leases drawn from it live on.
    """
    with core.write(durable=True) as tx:
        before = find(core, number)
        if before.state not in LIVE_RESERVATIONS:
            raise Refused("reservation-over", f"Reservation {number} is {before.state} already.")
        row = replace(_row(number, before.made_at, asked, by), state=before.state)
        row, why = _judged(core, row, asked, tx.at, check)
        if why is None:
            tx.put(row, by)
            tx.note(row, by, row.message or in_words(row), "change")
        else:
            tx.note(before, by, f"not changed: {why.message}", "refused")
    if why is not None:
        raise why
    return row


def _judged(
    core: Core,
    row: ReservationRow,
    asked: ReservationRequest,
    at: float,
    check: Callable[[ReservationRow, float], None],
) -> tuple[ReservationRow, Refused | None]:
    """The row with its shape and first day worked out, and why it cannot be."""
    try:
        row = replace(row, shape=_shape(core, asked))
        _check_times(asked, at)
        row = replace(row, first_date=(asked.date or local_day(at, asked.tz)).isoformat())
        _check_ahead(row, at)
        _check_room(core, row)
        _check_clashes(core, row, at)
        check(row, at)
    except Refused as error:
        return row, error
    return row, None


def _row(number: int, made_at: float, asked: ReservationRequest, by: str) -> ReservationRow:
    return ReservationRow(
        id=number,
        course=asked.course,
        shape=asked.shape,
        count=asked.count,
        weekdays=mask_of(asked.weekdays),
        first_date=asked.date.isoformat() if asked.date else "",
        last_date=asked.until.isoformat() if asked.until else "",
        from_time=asked.from_time,
        to_time=asked.to_time,
        tz=asked.tz,
        grace_s=asked.grace_s,
        made_by=by,
        made_at=made_at,
        state=ReservationState.PLANNED,
        message=asked.reason,
    )


def _shape(core: Core, asked: ReservationRequest) -> str:
    """The shape, resolved; it must be one that students of the course can ask for."""
    rules = core.settings.courses.get(asked.course)
    if rules is None:
        names = ", ".join(sorted(core.settings.courses)) or "none"
        raise Refused(
            "not-in-course", f"There is no course {asked.course!r} here. Courses: {names}.", 422
        )
    if not core.infos:
        raise Refused("gpus-unknown", "No GPU has answered yet. Try again in a minute.", 503)
    geometries = [info.geometry for info in core.infos.values()]
    try:
        shape = resolve(asked.shape, geometries)
        offered = {str(resolve(text, geometries)) for text in rules.shapes}
    except ShapeError as error:
        raise Refused("bad-shape", str(error), 422) from error
    if shape.is_cpu:
        raise Refused("bad-shape", "'cpu' needs no slice: there is nothing to reserve.", 422)
    if str(shape) not in offered:
        raise Refused(
            "shape-not-offered",
            f"{rules.title or asked.course} does not offer {shape}; it offers "
            f"{', '.join(rules.shapes) or 'nothing'}. Students could not ask for what is reserved.",
            422,
        )
    return str(shape)


def _check_times(asked: ReservationRequest, at: float) -> None:
    if not is_zone(asked.tz):
        raise _bad_time(
            f"There is no time zone {asked.tz!r}; use an IANA name such as Europe/Berlin."
        )
    if asked.from_time >= asked.to_time:
        raise _bad_time(
            f"{asked.from_time} to {asked.to_time} is no time: the end must be later than the "
            "start, on the same day. Make two reservations for a class over midnight."
        )
    if not asked.weekdays:
        _check_once(asked)
    today = local_day(at, asked.tz)
    first = asked.date or today
    if first > today + dt.timedelta(days=AHEAD_DAYS):
        raise _bad_time(f"{first} is more than a year ahead; reserve later.")
    if asked.until is not None and asked.until < first:
        raise _bad_time(f"It would end on {asked.until}, before its first day, {first}.")


def _check_once(asked: ReservationRequest) -> None:
    if asked.date is None:
        raise _bad_time("Say when: on which weekdays, or on which date.")
    if asked.until is not None:
        raise _bad_time("A single time has no last day; leave it out, or name weekdays.")


def _check_ahead(row: ReservationRow, at: float) -> None:
    """It must take place again, and a single one must not have begun."""
    rule = rule_of(row)
    found = next_occurrence(rule, at)
    is_ahead = rule.first >= local_day(at, row.tz)
    if not row.weekdays and is_ahead and occurrence(rule, rule.first) is None:
        raise _bad_time("The clocks go forward over the whole of that time: it does not exist.")
    if found is None or (not row.weekdays and found.starts_at <= at):
        raise Refused(
            "in-the-past",
            f"{in_words(row)}: that has begun or is over. Choose a time ahead.",
            422,
        )


def _bad_time(why: str) -> Refused:
    return Refused("bad-time", why, 422)


def _check_room(core: Core, row: ReservationRow) -> None:
    if not _fit(core, [row]):
        raise Refused(
            "impossible-reservation",
            f"{row.count} times {row.shape} do not fit on {_gpus(core, row.course)}, even "
            "if nothing else lies there. Reserve fewer, or a smaller shape.",
            422,
        )


def _check_clashes(core: Core, row: ReservationRow, at: float) -> None:
    others = {n: one for n, one in core.state.reservations.items() if n != row.id}
    rule = rule_of(row)
    first = next_occurrence(rule, at)
    assert first is not None
    clash = first_clash(
        rule,
        {number: rule_of(other) for number, other in others.items()},
        (at, first.starts_at + YEAR_S),
        lambda beside: _fit(core, [row, *(others[number] for number in beside)]),
    )
    if clash is not None:
        moment, numbers = clash
        theirs = "; ".join(f"{n} ({in_words(others[n])})" for n in sorted(numbers))
        raise Refused(
            "reservation-clash",
            f"On {_local(moment, row.tz)} it clashes with reservation {theirs}: together they do "
            f"not fit on {_gpus(core, row.course)}. Reserve fewer, a smaller shape, or another "
            "time.",
        )


def _local(at: float, tz: str) -> str:
    """A moment as a clock of that time zone shows it."""
    return dt.datetime.fromtimestamp(at, ZoneInfo(tz)).strftime("%Y-%m-%d at %H:%M")


def _fit(core: Core, rows: Collection[ReservationRow]) -> bool:
    """Whether these fit at once, if every layout gave its course whole GPUs all the time.

    What there really is at each moment is `promises`'s.
    """
    return fit(rows, partial(_room, core))


def fit(rows: Collection[ReservationRow], room: Callable[[str], Room]) -> bool:
    """Whether these fit at once: what their courses' own GPUs hold there, the rest on the others.

    Args:
        rows: the reservations.
        room: the GPUs that are a course's own; of no course: those of nobody's own.
    """
    rest: Counter[str] = Counter()
    for course in {row.course for row in rows}:
        own, taken = room(course), Counter[str]()
        for row in (row for row in rows if row.course == course):
            names = profiles(row.shape)
            number = _most(row, own, taken)
            taken += times(names, number)
            rest += times(names, row.count - number)
    return room("").holds(rest)


def _most(row: ReservationRow, room: Room, taken: Mapping[str, int]) -> int:
    """How many of a reservation's leases a room holds beside what is taken of it."""
    names = profiles(row.shape)
    low, high = 0, row.count
    while low < high:
        middle = (low + high + 1) // 2
        if room.holds(times(names, middle) + Counter(taken)):
            low = middle
        else:
            high = middle - 1
    return low


def _room(core: Core, course: str) -> Room:
    """The GPUs that are a course's own, and others' that a layout gives it; of none: the rest."""
    whose, lent = core.settings.assigned_course, _lent(core, course)
    rows = [row for row in core.state.gpus.values() if row.uuid in core.infos]
    rows = [row for row in rows if whose(row.uuid, row.idx) == course or row.uuid in lent]
    cut = tuple(core.infos[row.uuid].geometry for row in rows if not core.is_whole(row))
    return Room(cut, len(rows) - len(cut))


def _lent(core: Core, course: str) -> set[str]:
    """Other courses' own GPUs that layouts give to this one, now or at their times."""
    mine = [row for row in core.state.layouts.values() if course and row.course == course]
    named = {gpu for row in mine for gpu in planned(row).cuts}
    whose, rows = core.settings.assigned_course, core.state.gpus
    return {gpu for gpu in named if gpu in rows and whose(gpu, rows[gpu].idx)}


def _gpus(core: Core, course: str) -> str:
    """The GPUs that a course may use, for people."""
    rooms = [_room(core, whose) for whose in {course, ""}]
    number = sum(len(room.geometries) + room.whole for room in rooms)
    if core.settings.assigned:
        return f"the GPUs that {course} may use ({number})"
    return "the lab's one GPU" if number == 1 else f"the lab's {number} GPUs"


@lru_cache(maxsize=1024)
def profiles(shape: str) -> tuple[str, ...]:
    """The profiles of a shape that was resolved when it was reserved."""
    parsed = parse_shape(shape)
    assert isinstance(parsed, Shape)
    return parsed.profiles


# -- finding and ending -------------------------------------------------------------------------


def find(core: Core, number: int) -> ReservationRow:
    """The reservation, live or over; Refused if there never was one."""
    row = core.ledger.find_reservation(number)
    if row is None:
        raise Refused("unknown-reservation", f"There is no reservation {number}.", 404)
    return row


def cancel(core: Core, number: int, by: str, reason: str = "") -> ReservationRow:
    """End a reservation: what it keeps is free for all at once; leases drawn from it live on."""
    with core.write(durable=True) as tx:
        row = find(core, number)
        if row.state not in LIVE_RESERVATIONS:
            raise Refused("reservation-over", f"Reservation {number} is {row.state} already.")
        message = reason or f"{by} cancelled it."
        row = replace(row, state=ReservationState.CANCELLED, reason="cancelled", message=message)
        tx.put(row, by, message)
    return row


def note_phases(core: Core, tx: Transaction) -> None:
    """Put into the ledger what the clock has made of each; a change wakes who waits for news."""
    for row in list(core.state.reservations.values()):
        state, found = phase(row, tx.at, core.settings.reserve_lead_s)
        if state != row.state:
            tx.put(replace(row, state=state), reason=_what_now(row, state, found))


def _what_now(row: ReservationRow, state: ReservationState, found: Occurrence | None) -> str:
    if state is ReservationState.KEPT:
        return f"from now on its places are set aside: {in_words(row)}"
    if state is ReservationState.OPEN:
        return "the time to take it up is over: what was not taken is free for all"
    if found is None:
        return "it does not take place again"
    return f"it is over for this time; the next begins at {found.starts_at:.0f}"
