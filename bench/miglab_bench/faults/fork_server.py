"""Imports what hub and pool need once, and forks proxy, hub or pool on request.

A hub or a pool that is killed is then there again in a fraction of a second: importing them takes
most of the 3 s of CPU that a start costs, and the harness starts them a thousand times.  Run as
``python -m miglab_bench.faults.fork_server``; a request is a line of JSON, the answer a process id.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import psutil

from miglab_bench.faults import service
from miglab_hub.launch.process_group import PR_SET_PDEATHSIG, adopt_orphans, libc


class LabForkServer:
    """The harness's side.

    Args:
        env: what every process is to have in its environment.
    """

    def __init__(self, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fork(self, log: Path, env: dict[str, str], **what: list[str]) -> psutil.Process:
        """Start one: ``hub`` or ``pool`` with its arguments, or a whole ``command``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"log": str(log), "env": env, **what}) + "\n")
        self._process.stdin.flush()
        return psutil.Process(int(self._process.stdout.readline()))

    def close(self) -> None:
        """End it, and with it everything it forked."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    """Fork on request until nobody asks any more."""
    from jupyterhub.app import JupyterHub

    from miglab_spawner import docker  # noqa: F401 -- imported for the forks

    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what has ended
    # Python's own asks for an absolute time of the monotonic clock, at which libfaketime 0.9.10
    # without a fake monotonic clock answers EINVAL.
    time.sleep = _sleep
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(asked, JupyterHub)
        print(pid, flush=True)


def _sleep(seconds: SupportsFloat | SupportsIndex, /) -> None:
    select.select((), (), (), float(seconds))


def _become(asked: dict[str, Any], hub: Any) -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(asked["env"])
    _write_to(asked["log"])
    status = 1
    try:
        status = _run(asked, hub)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(status)


def _write_to(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    end = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    for source, target in ((nothing, 0), (end, 1), (end, 2)):
        os.dup2(source, target)


def _run(asked: dict[str, Any], hub: Any) -> int:
    if "pool" in asked:
        return service.main(asked["pool"])
    if "hub" in asked:
        hub.launch_instance(asked["hub"])
        return 0
    os.environ.pop("LD_PRELOAD", None)
    os.execvp(asked["command"][0], asked["command"])  # noqa: S606 -- its own words


if __name__ == "__main__":
    main()
