"""A lab, and a pool service that answers from memory to its commands."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.pool.http.fakes import (
    gpu_view,
    lease_view,
    reservation_view,
    slice_view,
    snapshot,
    ticket_view,
)
from typer.testing import CliRunner, Result

from miglab_api.gpus import PoolSnapshot
from miglab_hub import doctor as diagnosis
from miglab_hub import pool_api
from miglab_hub.cli.pool import commands
from miglab_hub.lab_secrets import make_all
from miglab_hub.service.gpus import make_simulated
from miglab_hub.settings.lab_toml import Settings, load

LAB = 'lab.port = 9000\ngpus.simulate = ["A100-40GB"]\ncourses.everyone.shapes = ["1g.5gb"]\n'


class Service:
    """A pool service that answers from memory; keeps what it was asked.

    ``answers`` go before all else: of a path, with or without its query, a whole response, JSON, or
    one after the other.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.slices = [slice_view(1, 0, "alice"), slice_view(2, 4)]
        self.gpu_state = "ok"
        self.ticket = ticket_view(1, "alice")
        self.contradictions: list[str] = []
        self.reserved = [reservation_view(1, drawn=3)]
        self.told: dict[str, Any] = {
            "lease": 1, "user": "alice", "server": "", "course": "ml", "shape": "1g.5gb",
            "state": "running", "decision": "keep", "is_acted_on": True, "activity": "unknown",
            "kind": None, "reason": "Unknown is never idle.", "figures": {"busy": None, "n": 3},
            "keepalives": 0, "warning": None,
        }  # fmt: skip
        self.refuses = False
        self.answers: dict[str, Any] = {}
        self.health: dict[str, Any] = {
            "ok": True, "gpus": 1, "gpus_troubled": 0, "is_stuck": False,
            "is_reconciled": True, "failing": [],
        }  # fmt: skip
        self.clients: list[httpx.Client] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().removeprefix("/services/pool/api")
        self.asked.append((request.method, path, json.loads(request.content or "null")))
        self.token = request.headers["authorization"]
        if self.refuses:
            return httpx.Response(403, json={"reason": "forbidden", "message": "Not yours."})
        for known in (path, path.partition("?")[0]):
            if known in self.answers:
                answer = self.answers[known]
                answer = next(answer) if isinstance(answer, Iterator) else answer
                is_whole = isinstance(answer, httpx.Response)
                return answer if is_whole else httpx.Response(200, json=answer)
        return self._answer(request.method, path)

    def _snapshot(self) -> PoolSnapshot:
        return snapshot(gpu_view(*self.slices, state=self.gpu_state), waiting=(self.ticket,))

    def _answer(self, method: str, path: str) -> httpx.Response:
        if path == "/health":
            return httpx.Response(200, json=self.health)
        if path == "/invariants":
            return httpx.Response(200, json=self.contradictions)
        if path.startswith("/leases?") or path == "/leases":
            return httpx.Response(200, json=[lease_view(1, "alice").model_dump(mode="json")])
        if path == "/reservations" and method == "GET":
            return httpx.Response(200, json=[one.model_dump(mode="json") for one in self.reserved])
        if path.startswith("/reservations"):
            return httpx.Response(200, text=reservation_view(1).model_dump_json())
        if path.startswith("/reclaim"):
            return httpx.Response(200, json=[self.told])
        if path == "/pool" or "/pool/" in path or "/slices/" in path:
            return httpx.Response(200, text=self._snapshot().model_dump_json())
        if path.startswith("/tickets"):
            return httpx.Response(200, text=self.ticket.model_dump_json())
        return httpx.Response(200, text=lease_view(1, "alice").model_dump_json())


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """Every PoolApi talks to it."""
    service = Service()

    class Connected(pool_api.PoolApi):
        def __init__(self, url: str, token: str) -> None:
            super().__init__(url, token, httpx.MockTransport(service))
            service.clients.append(self._client)

    monkeypatch.setattr(pool_api, "PoolApi", Connected)
    monkeypatch.setattr(diagnosis, "PoolApi", Connected)
    monkeypatch.delenv(pool_api.TOKEN_VARIABLE, raising=False)
    return service


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A lab that was started once."""
    file = tmp_path / "lab.toml"
    file.write_text(LAB)
    make_all(load(file, {}))
    make_simulated(load(file, {}))
    return file


@pytest.fixture
def settings(lab: Path) -> Settings:
    return load(lab, {})


def lab_with(folder: Path, text: str) -> Settings:
    """A lab whose lab.toml says this."""
    file = folder / "lab.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, {})


def invoked(lab: Path, *words: str, stdin: str = "") -> Result:
    """How a command of `miglab pool` ended."""
    return CliRunner().invoke(commands.app, ["--config", str(lab), *words], input=stdin)


def run(lab: Path, *words: str) -> str:
    """What a command that succeeds prints."""
    result = invoked(lab, *words)
    assert result.exit_code == 0, result.output
    return result.stdout
