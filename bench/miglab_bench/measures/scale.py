"""`./lab bench scale`: what two semesters and a full lab cost, beside the same lab without them.

Two pool services as `./lab up` starts them, each with eight simulated GPUs whose 56 slices are all
in use, and with students who wait.  The full one has two semesters in its ledger
(`harness.history`) and many reservations; the empty one has a hundredth of these leases, so that it
can estimate waits, and a few reservations.  Each request goes to both in turns, who goes first
changing each round, and follows a change of the pool, so that no answer is an earlier one.  There
is no hub: the operator asks.
"""

import datetime as dt
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated

import psutil
import typer

from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import TicketRequest, TicketView
from miglab_bench.harness.history import MODEL, HistorySize, course_names, write_history
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.harness.results import say, table_of
from miglab_bench.harness.temporary import prepared_lab, running_pool
from miglab_hub import forget
from miglab_hub.backup import make_backup
from miglab_hub.settings.lab_toml import Settings

RATIO, RATIO_WHERE_DRAWN = 1.2, 1.5
CALENDAR = "calendar page"
USAGE_OF_WEEK, USAGE_OF_SEMESTER = "usage of a week", "usage of a semester, by student"
FORGET, BACKUP, START, MEMORY = "forgetting a student", "a backup", "start", "memory, MB"
LIMITS_MS = {
    USAGE_OF_WEEK: 100.0,
    USAGE_OF_SEMESTER: 1000.0,
    START: 5000.0,
    FORGET: 10_000.0,
    BACKUP: 10_000.0,
}
"""The bounds of what has to grow with what it is about: as long as it may take with everything.

A report reads every lease of its period.  A start checks the whole file; a backup and forgetting
write it anew: at 40 MB/s, as on a slow disk, the full lab's takes nine seconds.
"""
RATIOS = {CALENDAR: RATIO_WHERE_DRAWN}
"""Where more is drawn: the full lab's calendar has 25 reservations in a week, the other has one."""
WEEK, SEMESTER, YEAR = (dt.timedelta(weeks=weeks) for weeks in (1, 16, 44))
POOL = """
queue_limit = 10000
longest_wait_s = 86400
lease_s = 86400
reservations_each = 1000
"""
PATIENT = "pool.attend_grace_s = 86400"
COURSE = """
[courses.{name}]
title = "{name}"
shapes = ["1g.5gb", "3g.20gb"]
default = "1g.5gb"
"""
SLICES_PER_GPU = 7
PART = re.compile(r'id="part-([\w-]+)" data-version="(\w+)"')
RESTARTS = 2
ANSWER_S = 300.0  # what takes so long is measured, too
MIB = 1 << 20
Seconds = tuple[float, float]
"""Of one round: the empty lab's, and the full one's."""


@dataclass(frozen=True)
class Crowd:
    """What is in a lab.

    Attributes:
        waiting: how many students wait.
        reservations: how many times are reserved in the next four weeks.
        history: what has happened.
    """

    waiting: int
    reservations: int
    history: HistorySize


@dataclass(frozen=True)
class ScaleRow:
    """One thing that takes time, or memory, in both labs; the least of all rounds.

    Attributes:
        what: what was done.
        empty_ms: in the lab with hardly a history; of memory, MB.
        full_ms: in the lab with two semesters; of memory, MB.
        ratio: of the two.
        bound: what is promised: of the ratio, or of the full lab's time.
        bounded: whether that holds.
    """

    what: str
    empty_ms: float
    full_ms: float
    ratio: float
    bound: str
    bounded: bool


class ScaleLab(PoolOperator):
    """A pool whose slices are all in use, and its operator.

    Args:
        settings: of the lab, which is prepared.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.http.timeout = ANSWER_S
        self._numbers = count()
        self._service = ExitStack()
        self._held = ExitStack()

    def begin(self, crowd: Crowd, gpus: int) -> None:
        """Write the history, start the service, and fill the lab.

        Args:
            crowd: what is in it.
            gpus: how many it has.
        """
        with running_pool(self.settings):  # the ledger then has its GPUs
            pass
        write_history(self.settings.ledger, crowd.history, time.time())
        self.start()
        for number in range(gpus * SLICES_PER_GPU):
            self._held.enter_context(self.held(f"holder-{number}"))
        self._wait_and_reserve(crowd)

    def _wait_and_reserve(self, crowd: Crowd) -> None:
        courses = course_names(HistorySize.courses)
        for number in range(crowd.waiting):
            self.join_queue(f"student-{number}", courses[number % len(courses)])
        tomorrow = dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)
        for number in range(crowd.reservations):
            hour = 8 + number % 10
            self.reserve(
                ReservationRequest(
                    course=courses[number % len(courses)], shape=SHAPE, count=3, tz="UTC",
                    date=tomorrow + dt.timedelta(days=number * 28 // crowd.reservations),
                    from_time=f"{hour:02}:00", to_time=f"{hour + 1:02}:30",
                )
            )  # fmt: skip

    def start(self) -> float:
        """Start the service; returns the seconds until it answers."""
        started_at = time.perf_counter()
        self._process = self._service.enter_context(running_pool(self.settings))
        return time.perf_counter() - started_at

    def stop(self) -> None:
        """Stop the service; holders stay."""
        self._service.close()

    def close(self) -> None:
        """Stop everything."""
        self.stop()
        self._held.close()
        super().close()

    @property
    def memory_mb(self) -> float:
        """The service's resident memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / MIB

    def join_queue(self, user: str, course: str = "everyone") -> TicketView:
        """Put a ticket in the queue."""
        request = TicketRequest(user=user, server="", course=course, shape=SHAPE)
        return TicketView.model_validate_json(self.ask("/api/tickets", request))

    def change(self) -> None:
        """Change the pool: somebody asks, and leaves."""
        self.leave_queue(self.join_queue(f"passer-{next(self._numbers)}"))

    def leave_queue(self, ticket: TicketView) -> None:
        """Cancel a ticket."""
        self.ask(f"/api/tickets/{ticket.id}", {}, "DELETE")

    def get(self, path: str) -> str:
        """Get a page or a part of one."""
        return self.ask(path).decode()


# -- what is timed ---------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> float:
    """How long it takes, seconds."""
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


def time_request(path: str, lab: ScaleLab) -> float:
    """The seconds of a GET that follows a change."""
    lab.change()
    return timed(lambda: lab.get(path))


def time_decision(lab: ScaleLab) -> float:
    """The seconds in which somebody gets a ticket."""
    name = f"decided-{time.monotonic_ns()}"
    started_at = time.perf_counter()
    ticket = lab.join_queue(name)
    took_s = time.perf_counter() - started_at
    lab.leave_queue(ticket)
    return took_s


def time_update(lab: ScaleLab) -> float:
    """The seconds in which a browser gets what has changed on the pool page."""
    versions = ",".join(".".join(part) for part in PART.findall(lab.get("/")))
    return time_request(f"/fragment?have={versions}", lab)


def time_preview(lab: ScaleLab) -> float:
    """The seconds in which staff see what would be reserved."""
    request = ReservationRequest(
        course="everyone", shape=SHAPE, count=3, date=_today() + WEEK, from_time="10:00",
        to_time="12:00", tz="UTC",
    )  # fmt: skip
    lab.change()
    return timed(lambda: lab.ask("/api/reservations/preview", request))


def time_ticket(lab: ScaleLab) -> float:
    """The seconds in which a student's start gets its ticket."""
    ticket = next(iter(lab.tickets().values()))
    return time_request(f"/api/tickets/{ticket.id}", lab)


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _requests() -> Mapping[str, Callable[[ScaleLab], float]]:
    today = _today()

    def usage(length: dt.timedelta, group: str) -> Callable[[ScaleLab], float]:
        since = today - length
        return partial(time_request, f"/usage?since={since}&until={today}&by={group}")

    return {
        "a decision": time_decision,
        "pool page": partial(time_request, "/"),
        "update of the pool page": time_update,
        "a student's ticket": time_ticket,
        "the staff's queue": partial(time_request, "/api/pool"),
        CALENDAR: partial(time_request, f"/reservations?monday={today + WEEK}"),
        "preview of a reservation": time_preview,
        USAGE_OF_WEEK: usage(WEEK, "course"),
        USAGE_OF_SEMESTER: usage(SEMESTER, "user"),
        "log of a year ago": partial(time_request, f"/log?until={today - YEAR}"),
        "all of the log a year ago": partial(
            time_request, f"/log?until={today - YEAR}&everything=1"
        ),
    }


def forgotten(round_: int, lab: ScaleLab) -> None:
    """Forget a student who neither waits nor has a slice."""
    forget.forget(lab.settings, f"student-{HistorySize.students - 1 - round_}")


def backed_up(round_: int, lab: ScaleLab) -> None:
    """Make a backup, and throw it away."""
    with tempfile.TemporaryDirectory() as folder:
        make_backup(lab.settings, Path(folder) / f"{round_}.tar")


# -- both labs -------------------------------------------------------------------------------------


@contextmanager
def both_labs(empty: Crowd, full: Crowd, gpus: int) -> Iterator[tuple[ScaleLab, ScaleLab]]:
    """The lab with hardly a history, and the one with two semesters, both running."""
    courses = course_names(HistorySize.courses)
    with ExitStack() as stack:
        labs = []
        for crowd in (empty, full):
            course_tables = "".join(COURSE.format(name=name) for name in courses)
            options = {"pool": POOL, "testing": PATIENT, "more": course_tables}
            settings = stack.enter_context(prepared_lab(gpus=gpus, **options))
            lab = ScaleLab(settings)
            stack.callback(lab.close)
            lab.begin(crowd, gpus)
            labs.append(lab)
        yield labs[0], labs[1]


def in_turns(
    labs: tuple[ScaleLab, ScaleLab], round_: int, work: Callable[[ScaleLab], float]
) -> Seconds:
    """The seconds of both labs, one right after the other; who goes first changes each round."""
    if round_ % 2 == 0:
        return work(labs[0]), work(labs[1])
    full_s = work(labs[1])
    return work(labs[0]), full_s


def measure(empty: Crowd, full: Crowd, gpus: int, rounds: int) -> list[ScaleRow]:
    """Measure everything in both labs; each round measures each request once."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leave nothing behind
    samples: dict[str, list[Seconds]] = {}
    with both_labs(empty, full, gpus) as labs:
        for round_ in range(rounds + 1):
            for name, work in _requests().items():
                samples.setdefault(name, []).append(in_turns(labs, round_, work))
        samples = {name: pairs[1:] for name, pairs in samples.items()}  # the first warms up
        memory = labs[0].memory_mb / 1000, labs[1].memory_mb / 1000
        for round_ in range(RESTARTS):
            for lab in labs:
                lab.stop()
            samples.setdefault(START, []).append(in_turns(labs, round_, ScaleLab.start))
        for lab in labs:
            lab.stop()
        for name, act in ((BACKUP, backed_up), (FORGET, forgotten)):
            for round_ in range(RESTARTS):
                work = partial(_time_act, act, round_)
                samples.setdefault(name, []).append(in_turns(labs, round_, work))
        samples[MEMORY] = [memory]
    return [row_of(name, pairs) for name, pairs in samples.items()]


def _time_act(act: Callable[[int, ScaleLab], None], round_: int, lab: ScaleLab) -> float:
    return timed(lambda: act(round_, lab))


def row_of(name: str, pairs: Sequence[Seconds]) -> ScaleRow:
    """One row from the seconds of all rounds: what else runs here adds to them, nothing lessens."""
    empty_ms, full_ms = (1000 * min(times) for times in zip(*pairs, strict=True))
    ratio = full_ms / empty_ms
    limit_ms, most = LIMITS_MS.get(name), RATIOS.get(name, RATIO)
    return ScaleRow(
        name,
        round(empty_ms, 1),
        round(full_ms, 1),
        round(ratio, 2),
        f"{most} times" if limit_ms is None else f"{limit_ms:g} ms",
        bool(ratio <= most if limit_ms is None else full_ms <= limit_ms),
    )


def bench_scale(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each request is timed.")] = 20,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs, all of whose slices are in use.")] = 8,
    waiting: Annotated[int, typer.Option(min=1, help="How many students wait.")] = 400,
    reservations: Annotated[int, typer.Option(min=4, help="Of the full lab.")] = 100,
    leases: Annotated[int, typer.Option(min=1, help="In the full lab's history.")] = 150_000,
) -> None:
    """Scale: two semesters' ledger and many reservations, beside the same lab without them."""
    history = HistorySize(leases=leases)
    few = HistorySize(leases=-(-leases // 100))  # without any, there would be no estimates of waits
    empty, full = Crowd(waiting, 4, few), Crowd(waiting, reservations, history)
    rows = measure(empty, full, gpus, rounds)
    method = (
        f"{gpus} simulated {MODEL} in full use, {waiting} wait; {leases} leases of two semesters "
        f"and {reservations} reservations beside a hundredth and 4; the least of {rounds} "
        f"alternated rounds ({RESTARTS} of start, backup and forgetting), each after a change of "
        f"the pool; without a hub; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at "
        "the end"
    )
    broken = [row.what for row in rows if not row.bounded]
    verdict = f"BOUND BROKEN: {', '.join(broken)}" if broken else "all bounds hold"
    figures = [asdict(row) for row in rows]
    say({"rows": figures, "how": method}, table_of(figures), verdict, method, as_json=as_json)
    if broken:
        raise typer.Exit(1)
