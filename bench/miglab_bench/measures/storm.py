"""`./lab bench storm`: a class that comes within a minute, through the whole lab, and leaves.

Proxy, hub and pool as `./lab up` starts them, with simulated GPUs without delays and one slice for
each student; only the students' servers are the smallest there are, so that the lab is measured and
not JupyterLab.  A class whose servers JupyterHub's own spawner starts comes to the same hub, before
or after.

Each student signs in, asks, opens the server, and leaves.  Meanwhile another process leases and
gives back twice a second, to time the pool.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, NoReturn

import httpx
import typer

from miglab_api.leases import ReleaseRequest
from miglab_bench.harness import flame_graph
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.harness.results import p95, say, table_of
from miglab_bench.harness.student import CheckFailed, Student
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings

OURS, PLAIN = "miglab", "plain"  # the beginnings of students' names
CLASSES = (50, 200, 440)
MOST_TIMES_PLAIN, MOST_POOL_MS = 1.2, 45.0
"""The bounds of the processor time: that of the whole lab beside plain's, and the pool's."""
HUB_CONFIG = """
from miglab_bench.measures.both_spawners import use_both_spawners

use_both_spawners(c)
"""
SLICES_PER_GPU = 7
FOR_THE_PROBE = 2  # GPUs
SPAWN = ("POST", "spawn")
PROGRESS = "progress"
PROBE_EVERY_S = 0.5
PROBES = 14  # at a time: there are slices for so many
EXPECTED = (CheckFailed, httpx.HTTPError, ValueError)
Requests = list[tuple[str, float]]


@dataclass
class VisitTimes:
    """How it went.

    Attributes:
        start_s: from the spawn form to the server's first answer; None if there was none.
        stop_s: from asking for its end until the hub has no server; None if there was none.
        failure: what went wrong; empty if nothing did.
        requests: (what was asked of the hub, seconds to the answer's head), in order.
    """

    start_s: float | None = None
    stop_s: float | None = None
    failure: str = ""
    requests: Requests = field(default_factory=list)


def kind_of(method: str, path: str) -> str:
    """Return the kind of a request to the hub, without names; empty for what is not timed."""
    segments = path.strip("/").split("/")
    if segments[0] == "user" or segments[-1] == PROGRESS or method == "DELETE":
        return ""
    page = segments[1] if len(segments) > 1 else ""
    return "" if (method, page) == SPAWN else f"{method} /{'/'.join(segments[:2])}"


def time_requests(http: httpx.Client, kind_of: Callable[[str, str], str]) -> Requests:
    """Every request from now on, as the answer's head comes: what was asked, and the seconds.

    Args:
        http: makes the requests.
        kind_of: what is asked, by method and path; empty for what is not timed.
    """
    timed: Requests = []

    def note_request(request: httpx.Request) -> None:
        request.extensions["asked"] = time.perf_counter()

    def note_answer(answer: httpx.Response) -> None:
        if kind := kind_of(answer.request.method, answer.request.url.path):
            timed.append((kind, time.perf_counter() - answer.request.extensions["asked"]))

    http.event_hooks = {"request": [note_request], "response": [note_answer]}
    return timed


class Visitor(Student):
    """A student who waits as the spawn-pending page does, by listening to the progress.

    Requests to the hub are timed, but for what waits by design: the progress, the spawn form
    (JupyterHub waits up to a second before it answers), and the end of a server.

    Attributes:
        times: how it went, whatever came of it.
    """

    def __init__(
        self, url: str, name: str, password: str, way: httpx.BaseTransport | None = None
    ) -> None:
        super().__init__(url, name, password, way)
        self.times = VisitTimes(requests=time_requests(self._http, kind_of))

    def come(self, shape: str) -> None:
        """Get a server."""
        with self._noting_failure():
            self.sign_in()
            asked_at = time.perf_counter()
            self.ask(shape)
            self.listen()
            answer = self._http.get(f"{self._url}/user/{self.name}/")
            if not answer.is_success:
                raise CheckFailed(f"the server of {self.name} gave HTTP {answer.status_code}")
            self.times.start_s = time.perf_counter() - asked_at

    def go(self) -> None:
        """End the server, if there is one, and close the browser."""
        asked_at = time.perf_counter()
        with self._noting_failure():
            if self.times.start_s is not None:
                self.leave()
                self.times.stop_s = time.perf_counter() - asked_at
        self.close()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except EXPECTED as error:
            self.times.failure = str(error) or type(error).__name__

    def listen(self) -> None:
        """Listen to the progress until it says ready."""
        path = f"/hub/api/users/{self.name}/server/{PROGRESS}"
        headers = {"X-XSRFToken": self._cookie("_xsrf", path), "Referer": f"{self._url}/hub/home"}
        with self._http.stream("GET", self._url + path, headers=headers) as events:
            events.raise_for_status()
            for line in events.iter_lines():
                event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if event.get("failed"):
                    raise CheckFailed(f"{self.name}: {event.get('message')}")
                if event.get("ready"):
                    return
        raise CheckFailed(f"the progress of {self.name} ended without a server")


def _storm(
    settings: Settings, names: Sequence[str], within_s: float
) -> tuple[list[VisitTimes], list[float]]:
    """Let the class come and leave.

    Returns:
        How it went for each student, and the seconds of each request to the pool that does not
        wait.
    """
    password = lab_secrets.read_passwords(settings).student
    visits = [Visitor(settings.public_url, name, password) for name in names]
    with ProcessPoolExecutor(1) as other, ThreadPoolExecutor(len(names)) as class_room:
        probe = other.submit(probe_pool, settings, 2 * within_s)  # first: no thread is forked
        _run_evenly(class_room, [partial(visitor.come, SHAPE) for visitor in visits], within_s)
        _run_evenly(class_room, [visitor.go for visitor in visits], within_s)
        return [visitor.times for visitor in visits], probe.result()


def _run_evenly(
    class_room: ThreadPoolExecutor, acts: Sequence[Callable[[], None]], within_s: float
) -> None:
    """Begin the acts evenly spread over the time, and wait for the last to end."""
    begin = time.monotonic()

    def act_at(number: int) -> None:
        time.sleep(max(0.0, begin + within_s * number / len(acts) - time.monotonic()))
        acts[number]()

    list(class_room.map(act_at, range(len(acts))))


def probe_pool(settings: Settings, seconds: float) -> list[float]:
    """Lease and give back, twice a second.

    Returns:
        Seconds of each request that does not wait.
    """
    pool = PoolOperator(settings)
    took_s = time_requests(pool.http, lambda method, _path: "" if method == "GET" else method)

    def lease_once(user: str) -> None:
        lease = pool.grant(user)
        release = ReleaseRequest(reason="bench", generation=lease.generation)
        pool.ask(f"/api/leases/{lease.id}/release", release)

    with closing(pool), ThreadPoolExecutor(PROBES) as probes:
        count = max(1, int(seconds / PROBE_EVERY_S))
        acts = [partial(lease_once, f"probe-{number}") for number in range(count)]
        _run_evenly(probes, acts, seconds)
    return [seconds for _, seconds in took_s]


# -- what came of it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class StormRow:
    """What the students of one spawner met; of several rounds the median of each figure.

    Attributes:
        failed: how many got no server, or could not end it; of several rounds the sum.
        start_p50_s: from the spawn form to the server's first answer, median.
        start_p95_s: the same, 95th percentile.
        hub_p95_s: one request to the hub that does not wait by design, 95th percentile.
        pool_p95_s: one request to the pool that does not wait, 95th percentile.
        stop_s: from asking for the server's end until it has ended, 95th percentile.
        hub_cpu_ms: processor milliseconds of the hub for each student, from the first one's coming
            to the last one's end.
        pool_cpu_ms: the same of the pool, which reads its GPUs and leases to the timing process
            while a plain class comes, too.
        proxy_cpu_ms: the same of the proxy.
    """

    students: int
    spawner: str
    failed: int
    start_p50_s: float
    start_p95_s: float
    hub_p95_s: float
    pool_p95_s: float
    stop_s: float
    hub_cpu_ms: float
    pool_cpu_ms: float
    proxy_cpu_ms: float


@dataclass(frozen=True)
class ProcessorTime:
    """What a class costs beside a plain one.

    Attributes:
        times_plain: processor time of hub, pool and proxy, divided by that of the plain class's hub
            and proxy.
        pool_ms: processor milliseconds of the pool for each student.
        pool_ms_anyway: the part of it that the pool takes while a plain class comes as well: for
            its timers, its readings of GPUs, and the leases of the timing process.
        is_within_bounds: whether both are.
    """

    students: int
    times_plain: float
    pool_ms: float
    pool_ms_anyway: float
    is_within_bounds: bool

    def __str__(self) -> str:
        return (
            f"{self.students} students: hub, pool and proxy take {self.times_plain:.2f} times the "
            f"processor time of plain's hub and proxy (at most {MOST_TIMES_PLAIN:g}), the pool "
            f"{self.pool_ms:.0f} ms a student (at most {MOST_POOL_MS:g}): "
            f"{'held' if self.is_within_bounds else 'MISSED'}; without the class the pool takes "
            f"{self.pool_ms_anyway:.0f} of these ms, too"
        )


def compare_processor_time(miglab_row: StormRow, plain_row: StormRow) -> ProcessorTime:
    """Compare the processor time of two classes of one size."""
    lab_ms = miglab_row.hub_cpu_ms + miglab_row.pool_cpu_ms + miglab_row.proxy_cpu_ms
    times_plain = lab_ms / max(plain_row.hub_cpu_ms + plain_row.proxy_cpu_ms, 1e-9)
    pool_ms = miglab_row.pool_cpu_ms
    is_within_bounds = times_plain <= MOST_TIMES_PLAIN and pool_ms <= MOST_POOL_MS
    return ProcessorTime(
        miglab_row.students,
        round(times_plain, 3),
        pool_ms,
        plain_row.pool_cpu_ms,
        is_within_bounds,
    )


def bench_storm(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    students: Annotated[
        list[int] | None,
        typer.Option(min=2, help="How many students come; may be given more than once."),
    ] = None,
    within_s: Annotated[
        float, typer.Option(min=1, help="Seconds in which they come, and in which they leave.")
    ] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each spawner is tried.")] = 1,
    profile: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="Folder for a flame graph of the pool while the last class comes and leaves; "
            "needs py-spy, which slows the pool down.",
        ),
    ] = None,
) -> None:
    """Storm: a class comes within a minute and leaves, beside JupyterHub's own spawner."""
    reasons: set[str] = set()
    sizes = students or CLASSES
    pairs = [measure(size, within_s, rounds, reasons, profile) for size in sizes]
    processor = [compare_processor_time(*pair) for pair in pairs]
    rows = [asdict(row) for pair in pairs for row in pair]
    method = (
        f"students come evenly within {within_s:.0f} s, one slice each, and leave within as long; "
        f"{rounds} round{'s' if rounds > 1 else ''} of both spawners on one hub, who goes first "
        f"changes each round; servers that only answer; requests that do not wait by design; "
        f"students and lab on the same {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at "
        f"the end"
    )
    report = {
        "rows": rows,
        "processor": [asdict(comparison) for comparison in processor],
        "reasons": sorted(reasons),
        "how": method,
    }
    say(report, table_of(rows), *map(str, processor), *sorted(reasons), method, as_json=as_json)


def measure(
    students: int, within_s: float, rounds: int, reasons: set[str], profile: Path | None = None
) -> tuple[StormRow, StormRow]:
    """Let classes of one size come to one hub, and return the rows of ours and of plain.

    Students' names decide the spawner.

    Args:
        students: how many come at a time.
        within_s: as fast.
        rounds: how often each spawner is tried.
        reasons: gets what students were told who got no server.
        profile: gets a flame graph of the pool; None for none.

    Raises:
        StartError: there is no py-spy for the flame graph.
    """
    rows: dict[str, list[StormRow]] = {OURS: [], PLAIN: []}
    gpus = students // SLICES_PER_GPU + FOR_THE_PROBE
    if profile is not None:
        _sampler()  # before anything is started
    with temporary_lab(
        docker=False, shapes=(SHAPE,), patience="", hub_config=HUB_CONFIG, gpus=gpus
    ) as lab:
        signal.signal(signal.SIGTERM, lambda *_: _end_now(lab))
        for number in range(rounds):
            for spawner in (PLAIN, OURS) if number % 2 == 0 else (OURS, PLAIN):
                before = lab.processor_times()
                names = [f"{spawner}-{number}-{student}" for student in range(students)]
                with _recording(lab, profile if spawner == OURS else None):
                    visits, pool_s = _storm(lab.settings, names, within_s)
                spent_s = {part: at - before[part] for part, at in lab.processor_times().items()}
                rows[spawner].append(row_of(spawner, visits, pool_s, spent_s))
                reasons |= {visit.failure for visit in visits if visit.failure}
    return median_of(rows[OURS]), median_of(rows[PLAIN])


def _sampler() -> str:
    sampler = shutil.which("py-spy")
    if sampler is None:
        raise StartError("--profile needs py-spy on the PATH: pipx install py-spy")
    return sampler


@contextmanager
def _recording(lab: TemporaryLab, folder: Path | None) -> Iterator[None]:
    """Sample the pool's stacks with py-spy, and draw them; without a folder do nothing."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    stacks = folder / "pool.raw"
    stacks.unlink(missing_ok=True)
    options = ("--threads", "--rate", "250", "--format", "raw", "--output", str(stacks))
    command = [_sampler(), "record", "--pid", str(lab.pid_of("pool")), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as recorder:
        try:
            yield
        finally:
            recorder.send_signal(signal.SIGINT)
    if stacks.exists():
        flame_graph.draw_file(stacks, "The pool while a class comes and leaves")
    else:
        note = "py-spy could not sample the pool; may this user trace processes (ptrace)?"
        typer.echo(note, err=True)


def _end_now(lab: TemporaryLab) -> NoReturn:
    """Leave no process behind; students' threads may sleep for a minute, so they are not joined."""
    lab.process.terminate()
    lab.process.wait()
    os._exit(128 + signal.SIGTERM)


def row_of(
    spawner: str,
    visits: Sequence[VisitTimes],
    pool_s: Sequence[float],
    spent_s: Mapping[str, float],
) -> StormRow:
    """The figures of one class; meanwhile, the processor seconds of hub, pool and proxy."""
    starts = [visit.start_s for visit in visits if visit.start_s is not None]
    stops = [visit.stop_s for visit in visits if visit.stop_s is not None]
    hub = [seconds for visit in visits for _, seconds in visit.requests]
    return StormRow(
        students=len(visits),
        spawner=spawner,
        failed=sum(bool(visit.failure) for visit in visits),
        start_p50_s=round(median(starts), 3) if starts else 0.0,
        start_p95_s=round(p95(starts), 3),
        hub_p95_s=round(p95(hub), 3),
        pool_p95_s=round(p95(pool_s), 4),
        stop_s=round(p95(stops), 3),
        **{f"{part}_cpu_ms": round(1000 * s / len(visits), 1) for part, s in spent_s.items()},
    )


def median_of(rounds: Sequence[StormRow]) -> StormRow:
    """One row for several rounds of the same class and spawner."""
    first = rounds[0]
    middle = {
        name: round(median(getattr(row, name) for row in rounds), 4)
        for name in asdict(first).keys() - {"students", "spawner"}
    }
    return replace(first, **{**middle, "failed": sum(row.failed for row in rounds)})
