"""Runs a program where a student's notebook runs: in the environment of the student's own server.

As a kernel of it would, without the seconds that a kernel takes.
"""

import json
import subprocess
import sys
from typing import Any

import psutil

import docker
from miglab_bench.harness.student import CheckFailed
from miglab_bench.harness.temporary import TemporaryLab

LIMIT_S = 300.0
# A cell: its functions have a source that labkit can send, and it may await.
CELL = """
import ast, asyncio, linecache, sys
text = sys.argv[1]
linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
made = eval(compile(text, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "cell"})
if made is not None:
    asyncio.run(made)
"""


def run_in_server(lab: TemporaryLab, user: str, text: str) -> Any:
    """Run a cell in a user's server.

    Returns:
        The JSON of the last line that it printed.

    Raises:
        CheckFailed: there is no such server, or the cell failed.
    """
    is_docker = lab.settings.servers.spawner == "docker"
    code, output = (_in_container if is_docker else _in_process)(lab, user, text)
    if code:
        raise CheckFailed(f"{user}'s cell failed: {output.strip()[-400:]}")
    return json.loads(output.strip().splitlines()[-1])


def _in_process(lab: TemporaryLab, user: str, text: str) -> tuple[int, str]:
    env = next(
        (env for env in map(_env, lab.servers()) if env.get("JUPYTERHUB_USER") == user), None
    )
    if env is None:
        raise CheckFailed(f"{user} has no server")
    command = [sys.executable, "-c", CELL, text]
    process = subprocess.run(
        command, env=env, cwd=env["HOME"], capture_output=True, text=True, timeout=LIMIT_S
    )
    return process.returncode, process.stdout if process.returncode == 0 else process.stderr


def _env(pid: int) -> dict[str, str]:
    try:
        return dict(psutil.Process(pid).environ())
    except psutil.Error:
        return {}


def _in_container(lab: TemporaryLab, user: str, text: str) -> tuple[int, str]:
    client = docker.DockerClient(base_url=lab.settings.docker_url)
    try:
        # Runners are among them, which come and go.
        running = client.containers.list(
            filters={"name": f"^/{lab.settings.lab_id}-"}, ignore_removed=True
        )
        user_variable = f"JUPYTERHUB_USER={user}"
        server = next(
            (
                container
                for container in running
                if user_variable in container.attrs["Config"]["Env"]
            ),
            None,
        )
        if server is None:
            raise CheckFailed(f"{user} has no container")
        answer = server.exec_run(["python", "-c", CELL, text], demux=True)
    finally:
        client.close()
    parts: tuple[bytes | None, bytes | None] = answer.output  # type: ignore[assignment]  # demux
    out, errors = ((part or b"").decode(errors="replace") for part in parts)
    code = int(answer.exit_code or 0)
    return code, out if code == 0 else errors
