"""A lab, and a pool service that answers from memory to its commands."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyterhub import orm
from pydantic_core import to_json
from sqlalchemy import text
from tests.empty import empty_hub
from tests.unit.pool.applications.fakes import (
    gpu_view,
    lease_view,
    reservation_view,
    slice_view,
    snapshot,
    ticket_view,
)
from typer.testing import CliRunner, Result

from miglab_api.gpus import PoolSnapshot, SliceView
from miglab_hub import cli, pool_api
from miglab_hub import doctor as diagnosis
from miglab_hub.cli import pool
from miglab_hub.lab_secrets import make_all
from miglab_hub.service.gpus import make_simulated
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.rows import MessageRow, TicketRow

LAB = 'lab.port = 9000\ngpus.simulate = ["A100-40GB"]\ncourses.everyone.shapes = ["1g.5gb"]\n'


USED = """
[lab]
port = 21990
[courses.everyone]
shapes = ["1g.5gb"]
members = ["ada", "bob"]
"""
TICKET = TicketRow(
    id=1, user="ada", server="", course="everyone", shape="1g.5gb", asked="1g.5gb",
    state="cancelled", created_at=1.0, attended_at=1.0, message="ada gave it up",
)  # fmt: skip
MESSAGE = MessageRow(
    id=1, at=1.0, by="person:instructor", to_user="ada", to_server=None, to_course=None,
    text="See me, ada", until=9e9, state="open",
)  # fmt: skip
REASONED = {
    "lease": 1, "user": "alice", "server": "", "course": "ml", "shape": "1g.5gb",
    "state": "running", "decision": "keep", "is_acted_on": True, "activity": "unknown",
    "kind": None, "reason": "Unknown is never idle.", "figures": {"busy": None, "n": 3},
    "keepalives": 0, "warning": None,
}  # fmt: skip
HEALTHY = {
    "ok": True, "gpus": 1, "gpus_troubled": 0, "is_stuck": False, "is_reconciled": True,
    "failing": [],
}  # fmt: skip


class Service:
    """A pool service that answers from memory; keeps what it was asked.

    ``answers`` are of a path, with or without its query or its method, or of all below a folder:
    a whole response, something for JSON, or one after the other.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.refuses = False
        self.clients: list[httpx.Client] = []
        pool = pool_of(slice_view(1, 0, "alice"), slice_view(2, 4))
        self.answers: dict[str, Any] = {
            "/health": HEALTHY, "/invariants": [], "/reclaim": [REASONED],
            "/pool": pool, "/pool/": pool, "/gpus/": pool, "/slices/": pool,
            "/leases": [lease_view(1, "alice")], "/leases/": lease_view(1, "alice"),
            "/tickets/": ticket_view(1, "alice"),
            "/reservations": [reservation_view(1)], "POST /reservations": reservation_view(1),
            "/reservations/": reservation_view(1),
        }  # fmt: skip

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().removeprefix("/services/pool/api")
        self.requests.append((request.method, path, json.loads(request.content or "null")))
        self.token = request.headers["authorization"]
        if self.refuses:
            return httpx.Response(403, json={"reason": "forbidden", "message": "Not yours."})
        plain = path.partition("?")[0]
        patterns = (f"{request.method} {plain}", path, plain, f"/{plain.split('/')[1]}/")
        answer = next(self.answers[pattern] for pattern in patterns if pattern in self.answers)
        answer = next(answer) if isinstance(answer, Iterator) else answer
        if not isinstance(answer, httpx.Response):
            answer = httpx.Response(200, content=to_json(answer))
        self.last_answer = answer.content
        return answer


def pool_of(*slices: SliceView, **gpu: Any) -> PoolSnapshot:
    """A pool of one GPU with these slices, for which alice waits."""
    return snapshot(gpu_view(*slices, **gpu), waiting=(ticket_view(1, "alice"),))


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


@pytest.fixture(scope="package")
def started_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab that was started once, to be copied."""
    folder = tmp_path_factory.mktemp("started")
    settings = lab_with(folder, LAB)
    make_all(settings)
    make_simulated(settings)
    return folder


@pytest.fixture
def lab(started_once: Path, tmp_path: Path) -> Path:
    """Its lab.toml."""
    return Path(shutil.copytree(started_once, tmp_path, dirs_exist_ok=True)) / "lab.toml"


@pytest.fixture
def settings(lab: Path) -> Settings:
    return load(lab, {})


@pytest.fixture
def used(used_once: Path, tmp_path: Path) -> Settings:
    """A lab in which ada and bob have been: secrets, homes, a hub database, a ledger."""
    return load(Path(shutil.copytree(used_once, tmp_path / "lab")) / "lab.toml", {})


@pytest.fixture(scope="package")
def used_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Such a lab, to be copied: its databases take longer to make than each test."""
    folder = tmp_path_factory.mktemp("lab")
    settings = lab_with(folder, USED)
    make_all(settings)
    settings.cookie_secret.write_text("0123")
    for name in ("ada", "bob"):
        (settings.homes / name).mkdir(parents=True)
        (settings.homes / name / "work.txt").write_text("mine")
    settings.hub_database.write_bytes(empty_hub())
    with closing(orm.new_session_factory(f"sqlite:///{settings.hub_database}")()) as hub:
        hub.execute(text("PRAGMA journal_mode=WAL"))
        hub.add_all([orm.User(name="ada"), orm.User(name="bob")])
        hub.add(orm.OAuthClient(identifier="jupyterhub"))
        hub.commit()
        orm.User.find(hub, "ada").new_api_token(note="for my script")
        hub.get_bind().dispose()
    with closing(Ledger(settings.ledger)) as ledger, ledger.write(1.0, durable=True) as tx:
        tx.put(replace(TICKET, state="waiting"), cause="spawner")
        tx.put(TICKET, cause="server:ada/", reason="ada: enough")
        tx.put(
            replace(TICKET, id=2, user="bob", message="ada is his name as well"), cause="spawner"
        )
        tx.put(MESSAGE, cause="person:instructor")
        tx.record(replace(TICKET, id=2, user="bob"), "person:ada", "moved by person:ada", "next")
        tx.record(replace(TICKET, id=2, user="bob"), "person:adaline", "no ada here", "next")
    return folder


def lab_with(folder: Path, toml: str) -> Settings:
    """A lab whose lab.toml says this."""
    file = folder / "lab.toml"
    file.write_text(toml, encoding="utf-8")
    return load(file, {})


def invoke(lab: Path, *arguments: str, stdin: str = "") -> Result:
    """How a command of `miglab pool` ended."""
    return CliRunner().invoke(pool.app, ["--config", str(lab), *arguments], input=stdin)


def run(lab: Path, *arguments: str) -> str:
    """What a command that succeeds prints."""
    result = invoke(lab, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def exit_status(*arguments: str) -> object:
    """The exit status of `miglab`, which prints as in a shell."""
    with pytest.MonkeyPatch.context() as shell, pytest.raises(SystemExit) as end:
        shell.setattr(sys, "argv", ["miglab", *arguments])
        cli.main()
    return end.value.code
