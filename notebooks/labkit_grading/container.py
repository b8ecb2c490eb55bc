"""Students' code in a container of the student image, for machines where bubblewrap cannot run.

It has no network, no environment of the grader's, a read-only file system of which labkit's own
files are the grader's, and a scratch folder in memory.  It ends with the grader, or with its time.
"""

from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.run.child import PACKAGE_ROOT

IMAGE = "miglab-student"
LABEL = "miglab.grading"
NO_ACCOUNT = "64987:64987"  # the kernel limits processes by user, whatever container they are in
AT = "/grader"
PACKAGES = ("labkit", "labkit_grading")
MEMORY = "6g"
TRY_S = 60.0
SPARE_S = 10.0  # a container whose grader was killed ends so much later than its time
ENVIRONMENT = {
    "HOME": "/tmp",  # noqa: S108  in memory, of one container
    "PYTHONPATH": AT,
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NVIDIA_VISIBLE_DEVICES": "void",
}
STUDENT = ("python3", "-m", "labkit_grading.run_checks")


class ContainerProcess(subprocess.Popen[bytes]):
    """The program that talks to a container; with it the container ends.

    Args:
        name: of the container.
        command: starts it.
    """

    def __init__(self, name: str, command: list[str], **pipes: Any) -> None:
        self._name = name
        super().__init__(command, **pipes)

    def kill(self) -> None:
        """Remove the container, and end the program."""
        if self.poll() is None:
            _docker("rm", "--force", self._name)
        super().kill()


@dataclass(frozen=True)
class ContainerSandbox:
    """Starts students' processes in containers of an image.

    Attributes:
        image: has Python and whatever the exercises import.
    """

    image: str = IMAGE

    def start(self, limit_s: float) -> ContainerProcess:
        """A student's process, with pipes for its channel."""
        name = f"miglab-grading-{uuid.uuid4().hex[:12]}"
        return ContainerProcess(
            name,
            self.command(name, limit_s, *STUDENT),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def command(self, name: str, limit_s: float, *words: str) -> list[str]:
        """What runs these words in a container that is ended after so many seconds."""
        variables = [part for pair in ENVIRONMENT.items() for part in ("--env", "=".join(pair))]
        mounts = [
            part
            for name in PACKAGES
            for source in [Path(PACKAGE_ROOT, name).resolve()]
            for part in ("--mount", f"type=bind,source={source},target={AT}/{name},readonly")
        ]
        return [
            *("docker", "run", "--rm", "--interactive", "--pull", "never", "--name", name),
            *("--label", LABEL, "--network", "none", "--read-only", "--log-driver", "none"),
            *("--tmpfs", "/tmp:size=256m,mode=1777", "--workdir", "/tmp"),  # noqa: S108
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", NO_ACCOUNT),
            *("--memory", MEMORY, "--memory-swap", MEMORY, "--pids-limit", "64"),
            *("--ulimit", "core=0", "--no-healthcheck", *variables),
            *mounts,
            *("--entrypoint", "timeout", self.image, "--signal", "KILL", f"{limit_s + SPARE_S:g}"),
            *words,
        ]

    def why_not(self) -> str:
        """Why no code can run there; empty if it can."""
        _docker(
            "container", "prune", "--force", "--filter", f"label={LABEL}", "--filter", "until=1h"
        )
        name = f"miglab-grading-{uuid.uuid4().hex[:12]}"
        tried = self.command(name, TRY_S, "python3", "-c", f"import {STUDENT[-1]}")
        done = _docker(*tried[1:])
        if isinstance(done, str):
            return done
        lines = [line for line in done.stderr.splitlines() if line and "--help" not in line]
        return (lines or [f"exit status {done.returncode}"])[-1] if done.returncode else ""


def _docker(*words: str) -> subprocess.CompletedProcess[str] | str:
    """What Docker's command line did; a sentence where there is none, or it hangs."""
    try:
        return subprocess.run(
            ["docker", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRY_S,
        )
    except FileNotFoundError:
        return "Docker is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
