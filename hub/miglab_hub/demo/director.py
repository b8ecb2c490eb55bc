"""Lets the simulated class happen: starts and stops servers, reserves, partitions, hands in.

All through the lab's own APIs, as a person or a browser would.  What is there already from a run
before is left as it is.  Students hand in their notebooks, with the exercises solved or not; they
measured nothing, so there is no evidence in the zips: figures are never made up.
"""

import asyncio
import datetime as dt
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import httpx
import psutil

from miglab_api.reservations import WEEKDAYS
from miglab_hub import lab_secrets, pool_api
from miglab_hub.checkout import MAKER, checkout, make_notebooks
from miglab_hub.demo.simulated_class import SimulatedStudent, plan_class, token_file
from miglab_hub.errors import RefusedError, SilentError
from miglab_hub.settings.lab_toml import Settings, load
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_spawner.local import folder_name

LOOK_S = 3.0
PARTITION_AFTER_S = 90.0
CLASS = dt.timedelta(hours=1)
LAYOUT = """\
version: v1
mig-configs:
  mixed-sizes:
    - devices: [1]
      mig-enabled: true
      mig-devices: {3g.20gb: 1, 2g.10gb: 1, 1g.5gb: 2}
"""
HAND_IN = "import labkit; labkit.hand_in()"
HOW_MANY = 6  # hand in

log = logging.getLogger("miglab.demo")


async def direct(settings: Settings) -> None:
    """Run the class until the lab ends."""
    forget_dead_processes(settings)
    headers = {"Authorization": f"Bearer {lab_secrets.read(token_file(settings))}"}
    url, limits = settings.hub_api_url, httpx.Timeout(60, pool=None)
    hub = httpx.AsyncClient(base_url=url, headers=headers, timeout=limits, trust_env=False)
    students = plan_class(settings.courses)
    with pool_api.connect(settings.file) as pool:
        await asyncio.to_thread(_wait_for_pool, pool)
        async with hub:
            await asyncio.gather(
                *(simulate_student(hub, student) for student in students),
                asyncio.to_thread(reserve, settings, pool),
                asyncio.to_thread(hand_in, settings, students),
                partition(pool),
            )


def _wait_for_pool(pool: pool_api.PoolApi) -> None:
    while True:
        try:
            pool.call("GET", "/health")
            return
        except SilentError:
            time.sleep(LOOK_S)


def forget_dead_processes(settings: Settings) -> None:
    """Remove processes that a killed run has left on the simulated GPUs."""
    assert settings.simulated_state is not None
    machine = SimulatedMachine(settings.simulated_state)
    for process in [process for gpu in machine.state().gpus for process in gpu.processes]:
        if not psutil.pid_exists(process.pid):
            machine.remove_process(process.pid)


async def simulate_student(hub: httpx.AsyncClient, student: SimulatedStudent) -> None:
    """Simulate one student, who arrives, waits, stays, leaves, and comes back."""
    await asyncio.sleep(student.arrives_s)
    while True:
        try:
            await _visit(hub, student)
            await asyncio.sleep(student.habit.away_s)
        except httpx.HTTPError as error:  # a hub that is (re)starting
            log.info("%s: %s", student.name, error)
            await asyncio.sleep(LOOK_S)


async def _visit(hub: httpx.AsyncClient, student: SimulatedStudent) -> None:
    """Start a server, and delete it after the student's stay, if it still runs."""
    path = f"users/{quote(student.name, safe='')}"
    choice = {"shape": student.shape, "course": student.course}
    answer = await hub.post(f"{path}/server", json=choice)
    if answer.is_error:
        log.info("%s got HTTP %s: %s", student.name, answer.status_code, answer.text[:200])
    ready_at = None
    while server := await _server(hub, path):
        now = asyncio.get_running_loop().time()
        ready_at = now if ready_at is None and server["ready"] else ready_at
        if ready_at is not None and now > ready_at + student.stays_s and not server["pending"]:
            await hub.delete(f"{path}/server")
        await asyncio.sleep(LOOK_S)


async def _server(hub: httpx.AsyncClient, path: str) -> dict[str, Any]:
    answer = await hub.get(path)
    server: dict[str, Any] = answer.raise_for_status().json()["servers"].get("", {})
    return server


def reserve(settings: Settings, pool: pool_api.PoolApi) -> None:
    """Reserve slices for a class that begins soon, and tell the course so."""
    course, about = next(iter(settings.courses.items()))
    zone = settings.lab.timezone
    starts = next_class(dt.datetime.now(ZoneInfo(zone)))
    body = {
        "course": course, "shape": about.default, "count": 4,
        "weekdays": [WEEKDAYS[starts.weekday()]], "from_time": f"{starts:%H:%M}",
        "to_time": f"{class_ends(starts):%H:%M}", "tz": zone, "reason": "the weekly practical",
    }  # fmt: skip
    if not pool.call("GET", "/reservations"):
        _try_call(pool, "POST", "/reservations", body)
        text = f"The practical begins at {starts:%H:%M %Z}. Hand in by the end of the week."
        _try_call(pool, "POST", "/messages", {"to_course": course, "text": text})


def next_class(now: dt.datetime) -> dt.datetime:
    """Return the next full quarter of an hour but one."""
    quarter = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
    return quarter + dt.timedelta(minutes=30)


def class_ends(starts: dt.datetime) -> dt.datetime:
    """Return the end of the class, at most the last minute of its day."""
    return min(starts + CLASS, starts.replace(hour=23, minute=59))


async def partition(pool: pool_api.PoolApi) -> None:
    """Repartition a GPU while the class is at work."""
    await asyncio.sleep(PARTITION_AFTER_S)
    body = {"text": LAYOUT, "file": "demo.yaml", "reason": "bigger slices for the afternoon"}
    layout = await asyncio.to_thread(pool.call, "GET", "/layout")
    if not any(gpu["layout"] for gpu in layout["gpus"]):
        await asyncio.to_thread(_try_call, pool, "PUT", "/layout", body)


def _try_call(pool: pool_api.PoolApi, method: str, path: str, body: Mapping[str, object]) -> None:
    """Call the pool, and only log a refusal, since lab.toml may have been edited."""
    try:
        pool.call(method, path, body)
    except (RefusedError, SilentError) as error:
        log.warning("%s %s: %s", method, path, error)


def hand_in(settings: Settings, students: Iterable[SimulatedStudent]) -> None:
    """Hand in for the first students, in their homes and by labkit, as they would; and collect.

    Every second of them solved the exercises.
    """
    handed_in = settings.folder / "hand-ins"  # for `labkit grade`
    if handed_in.exists() or not (checkout() / MAKER).exists():
        return
    solved = settings.state / "solved-notebooks"
    make_notebooks(solved, "--solutions")
    collected = settings.state / "hand-ins.unfinished"
    collected.mkdir(exist_ok=True)
    for number, student in enumerate(list(students)[:HOW_MANY]):
        notebooks = settings.homes / folder_name(student.name) / "notebooks"
        notebooks.mkdir(parents=True, exist_ok=True)
        for notebook in (settings.notebooks if number % 2 else solved).glob("*.ipynb"):
            shutil.copyfile(notebook, notebooks / notebook.name)
        environ = {**os.environ, "JUPYTERHUB_USER": student.name}
        hands_in = ["nice", sys.executable, "-c", HAND_IN]  # behind everything else that runs
        subprocess.run(hands_in, cwd=notebooks, env=environ, check=True)
        shutil.copyfile(notebooks / "hand-in.zip", collected / f"{student.name}.zip")
    collected.rename(handed_in)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(direct(load(Path(sys.argv[1]))))
