"""A student of `./lab bench hub`: signs in, asks, watches the progress, opens the server; timed."""

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
        start_s: from asking for a server to its first answer; None if there was none.
        why_not: what went wrong; empty if nothing did.
        requests: (what was asked of the hub, seconds to the answer's head), in order.
    """

    start_s: float | None = None
    why_not: str = ""
    requests: list[tuple[str, float]] = field(default_factory=list)


class TimingTransport(httpx.BaseTransport):
    """Times what is asked of the hub, but for what waits by design.

    Those are the progress, and the spawn form: JupyterHub waits up to a second before it answers.
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
    if words[0] == "user" or words[-1] == PROGRESS:
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


def visit(url: str, name: str, password: str, shape: str, way: httpx.BaseTransport) -> VisitTimes:
    """One student's visit, whatever comes of it."""
    seen = VisitTimes()
    student = Visitor(url, name, password, TimingTransport(way, seen))
    try:
        seen.start_s = student.visit(shape)
    except EXPECTED as error:
        seen.why_not = str(error) or type(error).__name__
    finally:
        student.close()
    return seen
