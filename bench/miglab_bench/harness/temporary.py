"""A lab for the time of a check: its own folder, its own ports, one simulated A100-40GB.

What a check with containers needs of the engine is prepared, and removed with the lab.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from docker.errors import DockerException  # noqa: TID251 -- as below

import docker  # noqa: TID251 -- removes what a check has made
from miglab_bench.harness import student_server
from miglab_bench.harness.pool_operator import SHAPE, PoolOperator
from miglab_bench.harness.processes import free_ports, logs_below, start
from miglab_bench.harness.student import CheckFailed, Student, wait_for
from miglab_hub import lab_secrets
from miglab_hub.checkout import ENV_CHECKOUT, checkout
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import prepare, students_bridge
from miglab_hub.settings.lab_toml import ENV_BRIDGE, Settings, load
from miglab_hub.settings.tables import ServerSettings

SMALLEST_SERVER = [sys.executable, "-I", "-S", student_server.__file__]
ENGINE_SCRIPT = "tests/docker/engine"
START_S = 300.0
END_S = 120.0
ONE_ORIGIN = "students_can_act_as_staff = true"
PATIENT = "pool.reconcile_s = 2\npool.attend_grace_s = 300"
SHAPES = (SHAPE, "2x1g.5gb", "3g.20gb", "cpu")
TOML = """
[lab]
name = "{name}"
port = {{port}}
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
{testing}

[courses.everyone]
title = "Open lab"
shapes = {shapes}
default = "{default}"
{course}

[accept_risk]
{accept}

{more}
"""
LINES = {"lab", "servers", "pool", "testing", "course", "accept", "more"}
PARTS = {
    "proxy": ["configurable-http-proxy", "--api-port"],
    "hub": ["jupyterhub", "-f"],
    "pool": ["miglab_hub.service", "--config"],
    "reclaimer": ["miglab_slurm.service", "--config"],
}


class TemporaryLab(PoolOperator):
    """A running lab, and how to look into it and to hurt it.

    Args:
        settings: whose lab is started.
        environment: added to this process's.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._log = settings.folder / "up.log"
        command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(settings.file)]
        self.process = start(self._log, command, environment, cwd=checkout())

    def is_ready(self) -> bool:
        """Return whether the lab has printed that it is ready.

        Raises:
            CheckFailed: it did not start.
        """
        log_text = self._log.read_text(encoding="utf-8")
        if self.process.poll() is not None:
            raise CheckFailed(f"the lab did not start: {log_text.strip()}")
        return "ready: " in log_text

    @property
    def password(self) -> str:
        """The students' password."""
        return lab_secrets.read_passwords(self.settings).student

    def signed_in(self, name: str) -> Student:
        """Return a signed-in student, instructor or admin; the caller closes it."""
        password = getattr(lab_secrets.read_passwords(self.settings), name, self.password)
        person = Student(self.settings.public_url, name, password)
        person.sign_in()
        return person

    def kill(self, *parts: str) -> None:
        """Kill these parts (hub, pool) with SIGKILL, and wait until they are replaced."""
        self.wait_until_replaced(self.strike(*parts))

    def strike(self, *parts: str) -> dict[str, psutil.Process]:
        """Kill these parts with SIGKILL; return the processes that were killed."""
        victims = {part: wait_for(partial(self._any_of, part), f"a {part}") for part in parts}
        for process in victims.values():
            process.kill()
        return victims

    def wait_until_replaced(self, victims: Mapping[str, psutil.Process]) -> None:
        """Wait until the launcher has replaced what `strike` killed, and the lab answers."""
        for part, process in victims.items():
            wait_for(partial(self._is_new, part, process), f"a new {part}")
        self.wait_until_up()

    def processor_times(self) -> dict[str, float]:
        """Return the processor seconds of hub, pool and proxy so far, without their children."""
        times = {part: self._all_of(part)[0].cpu_times() for part in ("hub", "pool", "proxy")}
        return {part: spent.user + spent.system for part, spent in times.items()}

    def pid_of(self, part: str) -> int:
        """Return the process id of a part (hub, pool, proxy)."""
        pid: int = self._all_of(part)[0].pid
        return pid

    def wait_until_up(self) -> None:
        """Wait until hub and pool answer through the proxy."""
        for path in ("hub/health", "services/pool/api/health"):
            url = f"{self.settings.public_url}{path}"
            wait_for(partial(self._answers, url), f"an answer from {url}", START_S)

    def servers(self) -> list[int]:
        """Return the students' servers among the lab's own processes."""
        return [p.pid for p in self._processes() if "jupyterhub.singleuser" in _command(p)]

    def close(self) -> None:
        """End the lab.

        Raises:
            CheckFailed: a process is left over.
        """
        super().close()
        family = self._processes() if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise CheckFailed(f"the lab did not end in {END_S:g} s") from None
        _, survivors = psutil.wait_procs(family, timeout=1)
        if survivors:
            raise CheckFailed(
                f"still there after the lab's end: {[_command(p) for p in survivors]}"
            )

    def _answers(self, url: str) -> bool:
        return self.http.get(url).is_success

    def _is_new(self, part: str, old: psutil.Process) -> bool:
        return any(process != old for process in self._all_of(part))

    def _any_of(self, part: str) -> psutil.Process | None:
        return next(iter(self._all_of(part)), None)

    def _all_of(self, part: str) -> list[psutil.Process]:
        part_words = PARTS[part]
        return [p for p in self._processes() if all(w in _command(p) for w in part_words)]

    def _processes(self) -> list[psutil.Process]:
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children


def write_lab(
    folder: Path,
    *,
    spawner: str = "local",
    shapes: Sequence[str] = (SHAPE,),
    image: str = ServerSettings().image,
    gpus: int = 1,
    **lines: str,
) -> Path:
    """Write a lab.toml with free ports into this folder, and return its path.

    Args:
        folder: the lab is named after it.
        spawner: what starts students' servers.
        shapes: what the course offers; the first is preselected.
        image: of the containers.
        gpus: how many A100s are simulated.
        lines: by the table that they are in, one of `LINES`: ``{port}`` in those of the lab is the
            lab's; ``accept`` are other risks than the spawner needs, ``more`` more tables.
    """
    assert lines.keys() <= LINES, f"{lines.keys() - LINES}"
    port, file = free_ports(), folder / "lab.toml"
    has_one_origin = spawner != "local" and not lines.get("lab")
    text = TOML.format(
        **{**dict.fromkeys(LINES, ""), "accept": ONE_ORIGIN if has_one_origin else "", **lines},
        name=re.sub("[^a-z0-9]", "-", folder.name.lower()),
        gpus=json.dumps(["A100-40GB"] * gpus),
        spawner=spawner,
        image=image,
        shapes=json.dumps(shapes),
        default=shapes[0],
    )
    file.write_text(text.replace("{port}", str(port)))
    return file


@contextmanager
def prepared_lab(**options: Any) -> Iterator[Settings]:
    """A lab in a folder of its own, checked and not started; what it leaves is removed.

    Args:
        options: of `write_lab`.

    Raises:
        StartError: it cannot start here; the message says what to do.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="miglab-bench-"))
        settings = prepare(write_lab(Path(folder), **options))
        if settings.servers.spawner == "docker":
            stack.callback(remove_all, settings)
            prepare_engine(settings)
        yield settings


@contextmanager
def temporary_lab(
    *,
    docker: bool,
    slurm: Mapping[str, str] | None = None,
    shapes: Sequence[str] = SHAPES,
    lent: Sequence[str] = (),
    testing: str = "",
    patience: str = PATIENT,
    files: Mapping[str, str] | None = None,
    hub_config: str = "",
    **options: Any,
) -> Iterator[TemporaryLab]:
    """A lab that runs until the block ends; its folder is kept when the block fails.

    Args:
        docker: students in containers, else in local processes.
        slurm: students in jobs; the environment in which Slurm's commands find the cluster that
            ``more`` describes.
        shapes: what the course offers.
        lent: what it lends.
        testing: as in `write_lab`.
        patience: more of it: reconciles often, and is patient with who does not attend.
        files: what lies beside lab.toml, such as a roster.
        hub_config: the hub's configuration, as JupyterHub reads it; empty for the checkout's.
        options: of `write_lab`.
    """
    folder = Path(tempfile.mkdtemp(prefix="miglab-check-"))
    file = write_lab(
        folder,
        spawner="docker" if docker else "local" if slurm is None else "slurm",
        shapes=shapes,
        testing=f"{patience}\n{testing}",
        course=f"lends = {json.dumps(lent)}",
        **options,
    )
    # The checkout has JupyterHub's configuration: with one of its own, this folder passes for it.
    own_hub = {"jupyterhub_config.py": hub_config} if hub_config else {}
    for name, text in {**(files or {}), **own_hub}.items():
        (folder / name).write_text(text)
    environment = {**(slurm or {}), **({ENV_CHECKOUT: str(folder)} if own_hub else {})}
    settings = load(file, {})
    with logs_below(folder), ExitStack() as stack:
        if docker:
            prepare_engine(settings)
            stack.callback(remove_all, settings)
        lab = TemporaryLab(settings, environment)
        stack.callback(lab.close)
        wait_for(lab.is_ready, "the line that says ready", START_S)
        yield lab
    shutil.rmtree(folder)


@contextmanager
def running_pool(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the pool service of these settings; yields its process.

    Raises:
        StartError: it did not start; the message is what it said.
    """
    log_file = settings.folder / "log"
    command = [sys.executable, "-m", "miglab_hub.service", "--config", str(settings.file)]
    with start(log_file, command, {ENV_BRIDGE: settings.bridge}) as service:
        try:
            wait_until_ready(settings, service, log_file)
            yield service
        finally:
            service.terminate()


def wait_until_ready(settings: Settings, service: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it answers.

    Raises:
        StartError: it does not.
    """

    def answers() -> bool:
        if service.poll() is not None:
            raise StartError(f"the pool service did not start:\n{log.read_text()}")
        return httpx.get(f"{settings.pool_url}/api/health", trust_env=False).is_success

    wait_for(answers, "the pool service", START_S, 0.05)


def prepare_engine(settings: Settings) -> None:
    """Check engine and image; let the stand-in for NVIDIA's hook know the lab's simulated GPUs.

    Raises:
        StartError: the engine cannot carry the check.
    """
    students_bridge(settings)
    if (checkout() / ENGINE_SCRIPT).exists():
        engine_script("simulate", str(settings.simulated_state))


def engine_script(*arguments: str) -> None:
    """Run the script that starts, stops and equips engines.

    Raises:
        CheckFailed: it fails.
    """
    command = [sys.executable, str(checkout() / ENGINE_SCRIPT), *arguments]
    env = {**os.environ, "MIGLAB_PYTHON": sys.executable}
    completed = subprocess.run(command, env=env, capture_output=True, text=True)
    if completed.returncode:
        raise CheckFailed(f"{ENGINE_SCRIPT} {' '.join(arguments)}: {completed.stderr}")


def remove_all(settings: Settings) -> None:
    """Remove the containers, volumes and the network of this lab, and of no other."""
    name = settings.lab_id
    try:
        client = docker.DockerClient(base_url=settings.docker_url)
        # By name: a server without a GPU has no label of the pool's.
        for container in client.containers.list(all=True, filters={"name": f"^/{name}-"}):
            container.remove(force=True, v=True)
        for volume in client.volumes.list(filters={"name": f"{name}-home-"}):
            volume.remove(force=True)
        for network in client.networks.list(names=[settings.network]):
            network.remove()
        client.close()
    except DockerException as error:
        raise CheckFailed(f"removing what the check made: {error}") from error


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
