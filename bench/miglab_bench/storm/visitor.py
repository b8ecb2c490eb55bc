"""A student of `./lab bench storm`: signs in, asks, opens the server, and leaves; all timed."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from miglab_bench.harness.student import CheckFailed, Student

SPAWN = ("POST", "spawn")
PROGRESS = "progress"
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

    def __init__(self, url: str, name: str, password: str, way: httpx.BaseTransport) -> None:
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
