"""`lab bench storm`: what is timed, how it is summed up, what is printed."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.harness import student_server
from miglab_bench.measures import both_spawners, storm
from miglab_bench.measures.storm import Visitor, VisitTimes, kind_of, median_of, row_of
from miglab_hub.errors import StartError
from miglab_spawner.local import MIGLocalSpawner

VISITS = [
    VisitTimes(1.0, 0.2, "", [("GET /hub/login", 0.01), ("POST /hub/login", 0.03)]),
    VisitTimes(3.0, 0.4, "", [("GET /hub/login", 0.02), ("POST /hub/login", 0.05)]),
    VisitTimes(None, None, "no slice today", [("GET /hub/login", 0.01)]),
]
CPU_S = {"hub": 3.004, "pool": 1.0, "proxy": 0.5}
ROW = row_of("miglab", VISITS, [0.01] * 30, CPU_S)
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
        ("DELETE", "/hub/api/users/ada/server", ""),
    ],
)
def test_what_waits_by_design_is_not_timed(method: str, path: str, kind: str) -> None:
    """Pages are, without names; the spawn form, the progress and servers are not."""
    assert kind_of(method, path) == kind


def test_the_stopwatch_times_the_hub_alone() -> None:
    """Each request to the hub once; one to a server not at all."""
    way = httpx.MockTransport(lambda _: httpx.Response(200))
    student = Visitor(URL, "ada", "secret", way)
    student.page("/hub/login")
    student.page("/user/ada/")
    ((request, seconds),) = student.times.requests
    assert request == "GET /hub/login"
    assert seconds >= 0


def hub_that_says(*events: dict[str, object], server: int = 200) -> httpx.MockTransport:
    """A hub that lets everybody in, whose progress says these things, and that ends servers."""
    progress_stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/progress"):
            return httpx.Response(200, text=progress_stream)
        if path.startswith("/hub/api/users"):
            return httpx.Response(200, json={"servers": {}})
        if path == "/user/ada/":
            return httpx.Response(server)
        if path == "/hub/login" and request.method == "POST":
            return httpx.Response(302, headers={"Location": "/hub/spawn"})
        return httpx.Response(200, text=FORM)

    return httpx.MockTransport(answer)


def visitor_who_came(way: httpx.MockTransport) -> Visitor:
    """A student who has come."""
    student = Visitor(URL, "ada", "secret", way)
    student.come("1g.5gb")
    return student


def test_a_visit_is_timed_from_an_open_server_until_the_hub_has_none() -> None:
    """Signed in, asked, listened, opened: a time, and no complaint. Who got a server ends it."""
    student = visitor_who_came(hub_that_says({"progress": 0, "message": "asked"}, {"ready": True}))
    assert student.times.failure == ""
    assert student.times.start_s is not None
    assert [request for request, _ in student.times.requests] == [
        "GET /hub/login",
        "POST /hub/login",
        "GET /hub/spawn",
        "GET /hub/spawn",
    ]
    student.go()
    assert student.times.stop_s is not None


@pytest.mark.parametrize(
    ("way", "cause"),
    [
        (hub_that_says({"failed": True, "message": "no room"}), "no room"),
        (hub_that_says({"progress": 50}), "ended without a server"),
        (hub_that_says({"ready": True}, server=503), "HTTP 503"),
        (httpx.MockTransport(lambda _: httpx.Response(500)), "could not sign in"),
    ],
)
def test_a_failed_spawn_says_why(way: httpx.MockTransport, cause: str) -> None:
    """A refusal, a silent end, a server that does not answer, a hub that errs: no success."""
    student = visitor_who_came(way)
    student.go()  # there is nothing to end
    assert (student.times.start_s, student.times.stop_s) == (None, None)
    assert cause in student.times.failure


def test_a_row_counts_failures_and_takes_percentiles() -> None:
    """Over all requests to the hub; no sample, no crash; no failure is lost in several rounds."""
    assert (ROW.students, ROW.spawner, ROW.failed) == (3, "miglab", 1)
    assert (ROW.start_p50_s, ROW.pool_p95_s, ROW.hub_cpu_ms) == (2.0, 0.01, 1001.3)
    assert ROW.hub_p95_s >= 0.03
    nobody = row_of("plain", [VisitTimes(None, None, "no")], [], CPU_S)
    assert (nobody.failed, nobody.start_p95_s, nobody.stop_s) == (1, 0.0, 0.0)
    fast = row_of("miglab", VISITS[:1], [0.01], CPU_S)
    three = median_of([fast, ROW, fast])
    assert (three.students, three.spawner, three.failed, three.start_p50_s) == (1, "miglab", 1, 1.0)


def test_names_decide_the_spawner() -> None:
    """On one hub: JupyterHub's own for the plain class, ours for everybody else."""
    assert both_spawners.class_for(f"{storm.PLAIN}-0-1") is both_spawners.PlainSpawner
    assert both_spawners.class_for(f"{storm.OURS}-0-1") is MIGLocalSpawner


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        ("GET /user/ada/ HTTP/1.1\r\nHost: x\r\n\r\n", "200", ""),
        ("GET /user/ada/environment HTTP/1.1\r\n\r\n", "200", "JUPYTERHUB_SERVICE_PREFIX"),
        ("GET /user/bo/ HTTP/1.1\r\n\r\n", "404", ""),
        ("POST /user/ada/n HTTP/1.1\r\nContent-Length: 3\r\n\r\none", "200", ""),
        ("POST /user/bo/n HTTP/1.1\r\nContent-Length: 3\r\n\r\ntwo", "404", ""),
        ("GET /user/ada/ HTTP/1.1\r\n", "", ""),
    ],
)
def test_the_smallest_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request_: str, status: str, body: str
) -> None:
    """It answers what is meant for it, with the hub's version, and keeps only that."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    monkeypatch.setenv("MIGLAB_HUB_VERSION", "6.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    client, connection = socket.socketpair()
    with client:
        client.sendall(request_.encode())
        client.shutdown(socket.SHUT_WR)
        student_server.answer_connection(connection)
        response = client.recv(100_000).decode()
    assert response.partition(" ")[2].startswith(status) and body in response
    assert not status or "X-JupyterHub-Version: 6.1\r\n" in response
    notes = [file.read_text() for file in tmp_path.iterdir()]
    assert notes == (["one\n"] if request_.endswith("one") else [])


def test_json_for_machines_and_a_table_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each class: the three of the design, or the one that was asked for; and reasons."""
    sizes: list[int] = []

    def measure(students: int, *arguments: Any) -> tuple[storm.StormRow, storm.StormRow]:
        sizes.append(students)
        arguments[2].add("no slice today")
        return ROW, replace(ROW, spawner="plain")

    monkeypatch.setattr(storm, "measure", measure)
    report = json.loads(CliRunner().invoke(app, ["storm", "--json"]).output)
    assert len(report["rows"]) == 6
    assert [comparison["is_within_bounds"] for comparison in report["processor"]] == [False] * 3
    assert report["rows"][0]["start_p50_s"] == 2.0
    assert report["reasons"] == ["no slice today"]
    table = CliRunner().invoke(app, ["storm", "--students", "7"]).output
    assert sizes == [50, 200, 440, 7]
    assert "no slice today" in table
    assert "miglab" in table
    assert "333 ms a student (at most 45): MISSED" in table


def test_a_profile_without_its_sampler_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It says how to get it, before a lab is started."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(storm, "temporary_lab", NotImplemented)
    with pytest.raises(StartError, match="pipx install py-spy"):
        storm.measure(7, 1.0, 1, set(), tmp_path)


@pytest.mark.parametrize(
    ("pool_ms", "hub_ms", "held"), [(15.0, 90.0, True), (46.0, 60.0, False), (40.0, 90.0, False)]
)
def test_processor_time_is_held_by_both_bounds(pool_ms: float, hub_ms: float, held: bool) -> None:
    """The whole lab's beside plain's hub and proxy, and the pool's own."""
    ours = replace(ROW, hub_cpu_ms=hub_ms, pool_cpu_ms=pool_ms, proxy_cpu_ms=12.0)
    plain = replace(ROW, hub_cpu_ms=88.0, pool_cpu_ms=30.0, proxy_cpu_ms=12.0)
    comparison = storm.compare_processor_time(ours, plain)
    assert comparison.is_within_bounds is held
    assert comparison.times_plain == pytest.approx((hub_ms + pool_ms + 12) / 100)
    assert comparison.pool_ms_anyway == 30.0
