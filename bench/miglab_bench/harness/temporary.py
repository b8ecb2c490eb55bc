"""A lab for the time of a check: its own folder, its own ports, one simulated A100-40GB."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import psutil
from pydantic import TypeAdapter
from pydantic_core import to_json

from miglab_api.gpus import PoolSnapshot
from miglab_api.leases import LeaseView
from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_api.staff import ReclaimRequest
from miglab_api.tickets import TicketView
from miglab_bench.harness.containers import prepare_engine, remove_all
from miglab_bench.harness.logs import logs_below
from miglab_bench.harness.ports import free_ports
from miglab_bench.harness.student import CheckFailed, wait_for
from miglab_hub import lab_secrets
from miglab_hub.checkout import checkout
from miglab_hub.settings.lab_toml import Settings, load
from miglab_hub.settings.tables import ServerSettings

START_S = 300.0
END_S = 120.0
ONE_ORIGIN = "students_can_act_as_staff = true"
SHAPES = ("1g.5gb", "2x1g.5gb", "3g.20gb", "cpu")  # the first is the default
TOML = """
[lab]
name = "{name}"
port = {port}
{lab}

[gpus]
simulate = {gpus}

[servers]
spawner = "{spawner}"
image = "{image}"
{servers}

[pool]
{pool}

[testing]
pool.reconcile_s = 2
pool.attend_grace_s = 300
{testing}

[courses.everyone]
title = "Open lab"
shapes = {shapes}
default = "{default}"
lends = {lent}

[accept_risk]
{accept}

{more}
"""
PARTS = {
    "hub": ["jupyterhub", "-f"],
    "pool": ["miglab_hub.service", "--config"],
    "reclaimer": ["miglab_slurm.service", "--config"],
}


_LEASES = TypeAdapter(list[LeaseView])
_TEXTS = TypeAdapter(list[str])
_RESERVATIONS = TypeAdapter(list[ReservationView])


class TemporaryLab:
    """A running lab, and how to look into it and to hurt it."""

    def __init__(self, settings: Settings, process: "subprocess.Popen[bytes]") -> None:
        self.settings = settings
        self.process = process
        self._pool = httpx.Client(timeout=20, trust_env=False)

    @property
    def password(self) -> str:
        """The students' password."""
        return lab_secrets.read_passwords(self.settings).student

    def snapshot(self) -> PoolSnapshot:
        """The pool, as `miglab pool status` sees it."""
        return PoolSnapshot.model_validate_json(self.ask("/api/pool"))

    def leases(self) -> dict[str, LeaseView]:
        """The live leases, by user."""
        found = _LEASES.validate_json(self.ask("/api/leases"))
        return {lease.user: lease for lease in found}

    def tickets(self) -> dict[str, TicketView]:
        """The tickets in the queue, by user."""
        return {ticket.user or "": ticket for ticket in self.snapshot().waiting}

    def reserve(self, request: ReservationRequest) -> ReservationView:
        """Reserve, as the operator."""
        return ReservationView.model_validate_json(self.ask("/api/reservations", request))

    def reserve_otherwise(self, number: int, request: ReservationRequest) -> ReservationView:
        """Change a reservation, as the operator."""
        answer = self.ask(f"/api/reservations/{number}", request, "PUT")
        return ReservationView.model_validate_json(answer)

    def reservations(self) -> list[ReservationView]:
        """What is reserved."""
        return _RESERVATIONS.validate_json(self.ask("/api/reservations"))

    def reclaim(self, user: str, reason: str, warning_s: float) -> None:
        """Take the user's lease back after so long a warning, as the operator."""
        request = ReclaimRequest(reason=reason, warning_s=warning_s)
        self.ask(f"/api/leases/{self.leases()[user].id}/reclaim", request)

    def broken_invariants(self) -> list[str]:
        """What contradicts the pool's invariants, in words."""
        return _TEXTS.validate_json(self.ask("/api/invariants"))

    def positions(self) -> dict[str, int | None]:
        """Who waits, and where in the queue."""
        return {t.user or "": t.position for t in self.snapshot().waiting if t.position}

    def kill(self, *parts: str) -> None:
        """SIGKILL to the hub or the pool, and wait until another process has its place."""
        before = {part: self._part(part) for part in parts}
        for process in before.values():
            process.kill()
        for part, process in before.items():
            wait_for(partial(self._is_new, part, process.pid), f"a new {part}")
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Wait until hub and pool answer through the proxy."""
        for path in ("hub/health", "services/pool/api/health"):
            url = f"{self.settings.public_url}{path}"
            wait_for(partial(self._answers, url), f"an answer from {url}", START_S)

    def servers(self) -> list[int]:
        """The students' servers among the lab's own processes."""
        return [p.pid for p in self._processes() if "jupyterhub.singleuser" in _command(p)]

    def ask(self, path: str, body: object = None, method: str = "POST") -> bytes:
        """What the pool's management listener answers the operator; without a body: to a GET.

        Raises:
            CheckFailed: it refuses.
        """
        secret = lab_secrets.read(self.settings.pool_secret)
        headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        said = None if body is None else to_json(body)
        method, url = "GET" if body is None else method, self.settings.pool_url + path
        answer = self._pool.request(method, url, headers=headers, content=said)
        if answer.is_error:
            raise CheckFailed(f"{method} {path} gave HTTP {answer.status_code}: {answer.text}")
        return answer.content

    def close(self) -> None:
        """End the lab.

        Raises:
            CheckFailed: a process is left over.
        """
        self._pool.close()
        family = self._processes() if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise CheckFailed(f"the lab did not end in {END_S:g} s") from None
        _, left = psutil.wait_procs(family, timeout=1)
        if left:
            raise CheckFailed(f"still there after the lab's end: {[_command(p) for p in left]}")

    def _answers(self, url: str) -> bool:
        return self._pool.get(url).is_success

    def _is_new(self, part: str, old: int) -> bool:
        return any(p.pid != old for p in self._all_of(part))

    def _part(self, part: str) -> psutil.Process:
        return next(iter(self._all_of(part)))

    def _all_of(self, part: str) -> list[psutil.Process]:
        words = PARTS[part]
        return [p for p in self._processes() if all(word in _command(p) for word in words)]

    def _processes(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found


def simulated(gpus: int) -> str:
    """What [gpus] says of so many A100s, as TOML."""
    return json.dumps(["A100-40GB"] * gpus)


@contextmanager
def temporary_lab(
    *,
    docker: bool,
    slurm: Mapping[str, str] | None = None,
    shapes: Sequence[str] = SHAPES,
    lab: str = "",
    servers: str = "",
    accept: str = "",
    testing: str = "",
    pool: str = "",
    more: str = "",
    image: str = ServerSettings().image,
    lent: Sequence[str] = (),
    gpus: int = 1,
    files: Mapping[str, str] | None = None,
) -> Iterator[TemporaryLab]:
    """A lab that runs until the block ends; its folder is kept when the block fails.

    Args:
        docker: students in containers, else in local processes.
        slurm: students in jobs; the environment in which Slurm's commands find the cluster that
            ``more`` describes.
        shapes: what the course offers; the first is preselected.
        lab: more lines of [lab]; ``{port}`` is the lab's.
        servers: more lines of [servers].
        accept: lines of [accept_risk], if not those that the spawner needs.
        testing: constants that are others here, such as ``reclaim.report_s = 2``.
        pool: more lines of [pool], such as shorter times.
        more: more tables of lab.toml.
        image: of the containers.
        lent: what the course lends; the first is the usual shape.
        gpus: how many A100s are simulated.
        files: what lies beside lab.toml, such as a roster.
    """
    folder = Path(tempfile.mkdtemp(prefix="miglab-check-"))
    name = folder.name.lower().replace("_", "-")
    file = folder / "lab.toml"
    port = free_ports()
    spawner = "docker" if docker else "local" if slurm is None else "slurm"
    given = {"shapes": json.dumps(shapes), "default": shapes[0], "pool": pool, "more": more}
    given |= {"lent": json.dumps(lent), "gpus": simulated(gpus), "testing": testing}
    given |= {"spawner": spawner, "image": image, "servers": servers, "lab": lab.format(port=port)}
    given["accept"] = accept or ("" if lab or spawner == "local" else ONE_ORIGIN)
    file.write_text(TOML.format(name=name, port=port, **given))
    for given_name, text in (files or {}).items():
        (folder / given_name).write_text(text)
    with logs_below(folder), _running(folder, load(file, {}), slurm or {}) as running:
        yield running
    shutil.rmtree(folder)


@contextmanager
def _running(
    folder: Path, settings: Settings, environment: Mapping[str, str]
) -> Iterator[TemporaryLab]:
    """The lab of these settings, from ready to its end."""
    with ExitStack() as stack:
        if settings.servers.spawner == "docker":
            prepare_engine(settings)
            stack.callback(remove_all, settings)
        running = _start(settings, {**os.environ, **environment})
        stack.callback(running.close)
        wait_for(lambda: _is_ready(running, folder), "the line that says ready", START_S)
        yield running


def _start(settings: Settings, environment: Mapping[str, str]) -> TemporaryLab:
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(settings.file)]
    with (settings.folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=checkout(),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    return TemporaryLab(settings, process)


def _is_ready(lab: TemporaryLab, folder: Path) -> bool:
    said = (folder / "up.log").read_text(encoding="utf-8")
    if lab.process.poll() is not None:
        raise CheckFailed(f"the lab did not start: {said.strip()}")
    return "ready: " in said


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
