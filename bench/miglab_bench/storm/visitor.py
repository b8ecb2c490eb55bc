"""A student of `./lab bench storm`: signs in, asks, opens the server, and leaves; all timed."""

import json
import time
from dataclasses import dataclass, field

import httpx

from miglab_bench.harness.student import CheckFailed, Student

SPAWN = ("POST", "spawn")
PROGRESS = "progress"
EXPECTED = (CheckFailed, httpx.HTTPError, ValueError)


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
    requests: list[tuple[str, float]] = field(default_factory=list)


class TimingTransport(httpx.BaseTransport):
    """Times what is asked of the hub, but for what waits by design.

    That is the progress, the spawn form (JupyterHub waits up to a second before it answers), and
    the end of a server.
    """

    def __init__(self, way: httpx.BaseTransport, visit: VisitTimes) -> None:
        self._way = way
        self._visit = visit

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on, and look at the clock."""
        asked = time.perf_counter()
        answer = self._way.handle_request(request)
        what = kind_of(request.method, request.url.path)
        if what:
            self._visit.requests.append((what, time.perf_counter() - asked))
        return answer

    def close(self) -> None:
        """Close the connections."""
        self._way.close()


def kind_of(method: str, path: str) -> str:
    """What is asked of the hub, without names; empty for what is not timed."""
    words = path.strip("/").split("/")
    if words[0] == "user" or words[-1] == PROGRESS or method == "DELETE":
        return ""
    page = words[1] if len(words) > 1 else ""
    return "" if (method, page) == SPAWN else f"{method} /{'/'.join(words[:2])}"


class Visitor(Student):
    """A student who waits as the spawn-pending page does, by listening to the progress."""

    def visit(self, shape: str) -> float:
        """From the login form to the server's first answer.

        Returns:
            Seconds from sending the spawn form to that answer.

        Raises:
            CheckFailed: there is no server.
        """
        self.sign_in()
        asked = time.perf_counter()
        self.ask(shape)
        self.listen()
        answer = self._http.get(f"{self._url}/user/{self.name}/")
        if not answer.is_success:
            raise CheckFailed(f"the server of {self.name} gave HTTP {answer.status_code}")
        return time.perf_counter() - asked

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


class TimedVisit:
    """One student's visit, whatever comes of it.

    Args:
        url: the lab's public address.
        name: whom to sign in as.
        password: the students' password.
        way: how requests travel.
    """

    def __init__(self, url: str, name: str, password: str, way: httpx.BaseTransport) -> None:
        self.times = VisitTimes()
        self._student = Visitor(url, name, password, TimingTransport(way, self.times))

    def come(self, shape: str) -> None:
        """Get a server."""
        try:
            self.times.start_s = self._student.visit(shape)
        except EXPECTED as error:
            self.times.why_not = str(error) or type(error).__name__

    def leave(self) -> None:
        """End the server, if there is one, and close the browser."""
        asked = time.perf_counter()
        try:
            if self.times.start_s is not None:
                self._student.leave()
                self.times.stop_s = time.perf_counter() - asked
        except EXPECTED as error:
            self.times.why_not = str(error) or type(error).__name__
        finally:
            self._student.close()
