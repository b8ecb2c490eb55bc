"""A class that comes within so many seconds, and leaves within as many; all of it timed.

Each student signs in, asks, opens the server, and leaves.  Meanwhile another process leases and
gives back twice a second, to time the pool.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import httpx

from miglab_api.leases import ReleaseRequest
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.harness.student import CheckFailed, Student
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings

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
        why_not: what went wrong; empty if nothing did.
        requests: (what was asked of the hub, seconds to the answer's head), in order.
    """

    start_s: float | None = None
    stop_s: float | None = None
    why_not: str = ""
    requests: Requests = field(default_factory=list)


def kind_of(method: str, path: str) -> str:
    """What is asked of the hub, without names; empty for what is not timed."""
    words = path.strip("/").split("/")
    if words[0] == "user" or words[-1] == PROGRESS or method == "DELETE":
        return ""
    page = words[1] if len(words) > 1 else ""
    return "" if (method, page) == SPAWN else f"{method} /{'/'.join(words[:2])}"


def time_requests(http: httpx.Client, kind_of: Callable[[str, str], str]) -> Requests:
    """Every request from now on, as the answer's head comes: what was asked, and the seconds.

    Args:
        http: makes the requests.
        kind_of: what is asked, by method and path; empty for what is not timed.
    """
    timed: Requests = []

    def asked(request: httpx.Request) -> None:
        request.extensions["asked"] = time.perf_counter()

    def answered(answer: httpx.Response) -> None:
        if what := kind_of(answer.request.method, answer.request.url.path):
            timed.append((what, time.perf_counter() - answer.request.extensions["asked"]))

    http.event_hooks = {"request": [asked], "response": [answered]}
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
            asked = time.perf_counter()
            self.ask(shape)
            self.listen()
            answer = self._http.get(f"{self._url}/user/{self.name}/")
            if not answer.is_success:
                raise CheckFailed(f"the server of {self.name} gave HTTP {answer.status_code}")
            self.times.start_s = time.perf_counter() - asked

    def go(self) -> None:
        """End the server, if there is one, and close the browser."""
        asked = time.perf_counter()
        with self._noting_failure():
            if self.times.start_s is not None:
                self.leave()
                self.times.stop_s = time.perf_counter() - asked
        self.close()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except EXPECTED as error:
            self.times.why_not = str(error) or type(error).__name__

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


def storm(
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
        _evenly(class_room, [partial(each.come, SHAPE) for each in visits], within_s)
        _evenly(class_room, [each.go for each in visits], within_s)
        return [each.times for each in visits], probe.result()


def _evenly(
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
        gone = ReleaseRequest(reason="bench", generation=lease.generation)
        pool.ask(f"/api/leases/{lease.id}/release", gone)

    with closing(pool), ThreadPoolExecutor(PROBES) as probes:
        count = max(1, int(seconds / PROBE_EVERY_S))
        acts = [partial(lease_once, f"probe-{number}") for number in range(count)]
        _evenly(probes, acts, seconds)
    return [each for _, each in took_s]
