"""Requests made up from the APIs' own descriptions get no answer that those do not describe.

Both listeners, over the real pool and simulated GPUs with something of each kind in it.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS, load_all_checks

from .fakes import SECRET
from .full_lab import FullLab, apps

STREAMS = "/(events|live)$"  # without an end
NO_LIMIT = None  # seconds for an answer: the machine may be busy with other tests
IDS = 12  # there are about so many tickets, leases, slices and reservations
LONGEST_WAIT_S = 0.05
load_all_checks()
CHECKED = CHECKS.get_by_names(
    [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "missing_required_header",
        "unsupported_method",
        "allow_header_conformance",
    ]
)
STAFF = (SECRET, "admin-token", SECRET, "instructor-token", "alice-token", "")
SERVERS = ("alice-server", "alice-lab2", "alice-token", "")
EXAMPLES = max(len(STAFF), settings.default.max_examples // 6)  # of each operation
Case = schemathesis.Case
many = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def schema_of(app: FastAPI) -> Any:
    """What an application says of itself; the calls go to the one over the real pool."""
    return schemathesis.openapi.from_dict(app.openapi())


def ids_that_exist(_context: object, values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Most numbers in paths name something."""
    return values and {
        name: value % IDS if isinstance(value, int) and value > IDS else value
        for name, value in values.items()
    }


def short_polls(_context: object, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """A long poll may last 30 s of real time; which ones are made up changes with the code."""
    if query and isinstance(query.get("wait_s"), int | float):
        return {**query, "wait_s": min(query["wait_s"], LONGEST_WAIT_S)}
    return query


NO_POOL = SimpleNamespace(version=0)  # what is described needs none
of_staff, of_students = (schema_of(app) for app in apps(NO_POOL))  # type: ignore[arg-type]
of_staff.hook("map_path_parameters")(ids_that_exist)
of_staff.hook("map_query")(short_polls)


class Askers:
    """Who asks next: for each operation one after the other, beginning with the first."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self._ahead: dict[str, Iterator[str]] = defaultdict(lambda: cycle(tokens))

    def headers(self, case: Case) -> dict[str, str]:
        token = next(self._ahead[case.operation.label])
        return {"Authorization": f"Bearer {token}"} if token else {}


staff, servers = Askers(STAFF), Askers(SERVERS)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullLab]:
    """At its end the pool's invariants still hold."""
    lab = FullLab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@of_staff.exclude(path_regex=STREAMS).parametrize()
@many
def test_the_management_listener_answers_as_described(case: Case, lab: FullLab):
    """No crash, and only the described statuses and bodies, whoever sends whatever."""
    headers = staff.headers(case)
    answer = case.call_and_validate(
        app=lab.management, headers=headers, checks=CHECKED, timeout=NO_LIMIT
    )
    assert answer.status_code < 500


@of_students.parametrize()
@many
def test_the_student_listener_answers_as_described(case: Case, lab: FullLab):
    """The same, from students' servers and from others."""
    headers = servers.headers(case)
    answer = case.call_and_validate(
        app=lab.student, headers=headers, checks=CHECKED, timeout=NO_LIMIT
    )
    assert answer.status_code < 500
