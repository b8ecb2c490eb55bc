"""`lab bench hub`: what is timed, how it is summed up, what is printed."""

import contextlib
import json

import httpx
import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.harness.visitor import TimingTransport, VisitTimes, kind_of, visit
from miglab_bench.measures import hub

VISITS = [
    VisitTimes(1.0, "", [("GET /hub/login", 0.01), ("POST /hub/login", 0.03)]),
    VisitTimes(3.0, "", [("GET /hub/login", 0.02), ("POST /hub/login", 0.05)]),
    VisitTimes(None, "no slice today", [("GET /hub/login", 0.01)]),
]
URL = "http://lab"
FORM = '<input name="shape" value="1g.5gb">'


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/hub/login", "GET /hub/login"),
        ("GET", "/hub/spawn-pending/ada", "GET /hub/spawn-pending"),
        ("GET", "/hub/", "GET /hub"),
        ("GET", "/", "GET /"),
        ("POST", "/hub/spawn/ada", ""),
        ("GET", "/hub/api/users/ada/server/progress", ""),
        ("GET", "/user/ada/", ""),
    ],
)
def test_what_waits_by_design_is_not_timed(method: str, path: str, kind: str) -> None:
    """Pages are, without names; the spawn form, the progress and servers are not."""
    assert kind_of(method, path) == kind


def test_the_stopwatch_times_the_hub_alone() -> None:
    """Each request to the hub once; one to a server not at all."""
    seen = VisitTimes()
    way = TimingTransport(httpx.MockTransport(lambda _: httpx.Response(200)), seen)
    with httpx.Client(transport=way, base_url=URL) as client:
        client.get("/hub/login")
        client.get("/user/ada/")
    ((what, seconds),) = seen.requests
    assert what == "GET /hub/login"
    assert seconds >= 0


def hub_that_says(*events: dict[str, object], server: int = 200) -> httpx.MockTransport:
    """A hub that lets everybody in, and whose progress says these things."""
    said = "".join(f"data: {json.dumps(event)}\n\n" for event in events)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/progress"):
            return httpx.Response(200, text=said)
        if request.url.path == "/user/ada/":
            return httpx.Response(server)
        if request.url.path == "/hub/login" and request.method == "POST":
            return httpx.Response(302, headers={"Location": "/hub/spawn"})
        return httpx.Response(200, text=FORM)

    return httpx.MockTransport(answer)


def test_a_visit_ends_with_an_open_server() -> None:
    """Signed in, asked, listened, opened: a time, and no complaint."""
    way = hub_that_says({"progress": 0, "message": "asked"}, {"progress": 100, "ready": True})
    seen = visit(URL, "ada", "secret", "1g.5gb", way)
    assert seen.why_not == ""
    assert seen.start_s is not None
    assert [what for what, _ in seen.requests] == [
        "GET /hub/login",
        "POST /hub/login",
        "GET /hub/spawn",
        "GET /hub/spawn",
    ]


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (hub_that_says({"failed": True, "message": "no room"}), "no room"),
        (hub_that_says({"progress": 50}), "ended without a server"),
        (hub_that_says({"ready": True}, server=503), "HTTP 503"),
        (httpx.MockTransport(lambda _: httpx.Response(500)), "could not sign in"),
    ],
)
def test_a_failed_spawn_says_why(way: httpx.MockTransport, why: str) -> None:
    """A refusal, a silent end, a server that does not answer, a hub that errs: no success."""
    seen = visit(URL, "ada", "secret", "1g.5gb", way)
    assert seen.start_s is None
    assert why in seen.why_not


def test_the_summary_counts_failures_and_takes_percentiles() -> None:
    """Over all requests, and over each kind; reasons once each."""
    got = hub.summary([*VISITS, VisitTimes(None, "no slice today")], 60.0, [0.01] * 30)
    assert (got.students, got.failed, got.why) == (4, 2, ("no slice today",))
    assert got.start_s == 2.0
    assert got.pool_p95_s == pytest.approx(0.01)
    assert got.hub_p95_s >= 0.03
    assert [(row.what, row.requests) for row in got.asked] == [
        ("GET /hub/login", 3),
        ("POST /hub/login", 2),
    ]


def test_nobody_served_is_a_summary_too() -> None:
    """No sample, no crash."""
    assert hub.summary([VisitTimes(None, "no")], 1.0, []).failed == 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has been measured already."""
    monkeypatch.setattr(hub, "temporary_settings", contextlib.nullcontext)
    monkeypatch.setattr(hub, "running_lab", contextlib.nullcontext)
    monkeypatch.setattr(hub, "measure", lambda *_: hub.summary(VISITS, 60.0, [0.01, 0.02]))


def test_json_holds_figures_and_bounds(measured: None) -> None:
    """One object."""
    said = json.loads(CliRunner().invoke(app, ["hub", "--json"]).output)
    assert said["failed"] == 1
    assert said["bounds"] == {"failed": 0, "hub_p95_s": 1.0, "pool_p95_s": 0.05}


def test_people_read_failures_and_their_reasons(measured: None) -> None:
    """A table and sentences."""
    said = CliRunner().invoke(app, ["hub"]).output
    assert "failed spawns: 1 of 3" in said
    assert "no slice today" in said
    assert "GET /hub/login" in said
