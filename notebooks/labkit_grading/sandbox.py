"""Where students' code runs: isolated by bubblewrap, in a container, or, if asked for, unprotected.

Isolated, it has no network, an empty environment, and a scratch folder in memory; it sees no other
process, and of this machine's files only Python, its library, torch and the program that answers.
Nothing of the course is there: no check, no solution, no other student's work. Root's judge runs it
as a user without an account: the kernel limits the number of processes for everybody but root.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from labkit.errors import LabError

ANSWERING = Path(__file__).parent / "answering"
PACKAGES = ("torch", "numpy")
SCRATCH, SCRATCH_BYTES = "/tmp", 256 << 20  # noqa: S108  in memory, of one process
MEMORY_BYTES = 6 << 30
PROCESSES = 32  # threads count
NO_ACCOUNT = 64987
TRY_S, END_S = 60.0, 10.0
JUDGE_ROOT = "/judge"
LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache")
SYSTEM = ("/usr/bin", "/bin", *LIBRARIES, "/etc/alternatives")
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "HOME": SCRATCH,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
TRIED_IN_IMAGE = (
    "import importlib.util, sys, torch, answering.serve; "
    "sys.exit('it has labkit, which knows the right answers' if importlib.util.find_spec('labkit') "
    "else None)"
)
PROGRAM = ("-s", "-m", "answering.serve")
ADVICE = (
    "Students' code runs only where something isolates it, and here bubblewrap does not: {why}. "
    "Install bubblewrap (`apt install bubblewrap`) on a Linux machine that lets users make user "
    "namespaces, or run this as root (`sudo`) where it does not; or name a container image that "
    "has torch with --image, where Docker is installed. "
    "--unprotected runs the code with your own rights: it can then read your files and change your "
    "marks. Without --run-code everything but the exercises is marked."
)


class Isolation(Protocol):
    """A way to run the program that answers for a student's code."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, with pipes for its channel and for what it prints."""

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End it with all that it started; nothing happens where it has ended."""

    def require(self) -> None:
        """Refuse, as a LabError, where it does not work."""


@dataclass(frozen=True)
class Bubblewrap:
    """The program in a sandbox of bubblewrap's."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in namespaces of its own."""
        return _start(self.command(*PROGRAM, str(PROCESSES), str(MEMORY_BYTES)), None)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End bubblewrap, and with it everything in its namespaces."""
        _end(process)

    def require(self) -> None:
        """Refuse where bubblewrap does not work.

        Raises:
            LabError: why, and what to do instead.
        """
        if reason := self._reason_unavailable():
            raise LabError(ADVICE.format(why=reason))

    def command(self, *arguments: str) -> list[str]:
        """The command line that runs Python with these arguments in the sandbox."""
        env = {**ENVIRONMENT, "PYTHONPATH": JUDGE_ROOT}
        variables = [part for name, value in env.items() for part in ("--setenv", name, value)]
        return [
            *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
            *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--clearenv", *variables, "--proc", "/proc", "--dev", "/dev"),
            *("--size", str(SCRATCH_BYTES), "--perms", "1777", "--tmpfs", SCRATCH),
            *_mounts(),
            *("--remount-ro", "/", "--chdir", SCRATCH, *_user(), sys.executable, *arguments),
        ]

    def _reason_unavailable(self) -> str:
        if shutil.which("bwrap") is None:
            return "bubblewrap is not installed"
        return _first_failure(self.command("-s", "-c", "import answering.serve"))


@dataclass(frozen=True)
class Container:
    """The program in a container of Docker's, made from an image that has Python and torch.

    Attributes:
        image: its name. It must not have labkit, which knows the right answers.
    """

    image: str
    _names: dict[int, str] = field(default_factory=dict)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a container of its own for it."""
        name = f"miglab-judge-{uuid.uuid4().hex}"
        process = _start(self.command(name, *PROGRAM, "0", str(MEMORY_BYTES)), None)
        self._names[process.pid] = name
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Remove the container."""
        if name := self._names.pop(process.pid, None):
            with contextlib.suppress(subprocess.TimeoutExpired):
                remove = ["docker", "rm", "--force", name]
                subprocess.run(remove, capture_output=True, timeout=END_S, check=False)
        _end(process)

    def require(self) -> None:
        """Refuse where no container of the image answers.

        Raises:
            LabError: what Docker said.
        """
        if shutil.which("docker") is None:
            raise LabError("--image runs students' code in containers, and there is no `docker`.")
        name = f"miglab-judge-{uuid.uuid4().hex}"
        reason = _first_failure(self.command(name, "-s", "-c", TRIED_IN_IMAGE))
        if reason:
            raise LabError(f"Students' code cannot run in containers of {self.image}: {reason}")

    def command(self, name: str, *arguments: str) -> list[str]:
        """The command line that runs Python with these arguments in a container of this name."""
        env = {**ENVIRONMENT, "PYTHONPATH": JUDGE_ROOT}
        del env["PATH"]  # the image knows where its Python is
        variables = [part for item in env.items() for part in ("--env", "=".join(item))]
        limits = ("--memory", str(MEMORY_BYTES), "--pids-limit", str(2 * PROCESSES))
        scratch = f"{SCRATCH}:size={SCRATCH_BYTES},mode=1777"
        return [
            *("docker", "run", "--rm", "--interactive", "--name", name, "--network", "none"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", f"{NO_ACCOUNT}:{NO_ACCOUNT}", *limits, "--tmpfs", scratch),
            *("--volume", f"{ANSWERING}:{JUDGE_ROOT}/answering:ro", *variables),
            *("--workdir", SCRATCH, "--entrypoint", "python3", self.image, *arguments),
        ]


@dataclass(frozen=True)
class Unprotected:
    """The program as a process like any other, with this user's rights and limits of its own."""

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in a session of its own."""
        command = [sys.executable, *PROGRAM, "0", str(MEMORY_BYTES)]
        return _start(command, {**ENVIRONMENT, "PYTHONPATH": str(ANSWERING.parent)})

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End its session."""
        if process.returncode is None:  # not waited for yet, so that the number is still its own
            with contextlib.suppress(ProcessLookupError):  # all of it has ended by itself
                os.killpg(process.pid, signal.SIGKILL)
        _end(process)

    def require(self) -> None:
        """Works everywhere."""


def _first_failure(command: Sequence[str]) -> str:
    """Run a command once; return the last line of its complaint, or nothing where it has none."""
    try:
        trial = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TRY_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last = (trial.stderr.strip() or f"exit status {trial.returncode}").splitlines()[-1]
    return last if trial.returncode else ""


def _start(command: Sequence[str], environment: dict[str, str] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _mounts() -> list[str]:
    """Bubblewrap's options for what can be seen, all of it read-only."""
    base, environment = Path(sys.base_prefix), Path(sys.prefix)
    python = [base / "bin", base / "lib", Path(sysconfig.get_path("stdlib"))]
    python += [Path(sys.executable), environment / "pyvenv.cfg"]
    hidden = [path for root in (base / "lib", Path("/usr/lib")) for path in _package_folders(root)]
    return [
        *_bound(dict.fromkeys([*map(Path, SYSTEM), *python])),
        *(part for path in hidden for part in ("--tmpfs", str(path))),
        *_bound(package_paths()),
        *(part for path in hidden for part in ("--remount-ro", str(path))),
        *("--dir", JUDGE_ROOT, "--ro-bind", str(ANSWERING), f"{JUDGE_ROOT}/answering"),
    ]


def _bound(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        for folder in list(path.parents)[-2::-1]:  # bubblewrap would make them for this user alone
            yield from ("--dir", str(folder))
        yield from ("--ro-bind-try", str(path), str(path))


def _package_folders(root: Path) -> list[Path]:
    """The folders of packages that somebody installed: the course may be among them."""
    kinds = ("python3*/site-packages", "python3*/dist-packages")
    return sorted(path for kind in kinds for path in root.glob(kind) if path.is_dir())


def package_paths() -> list[Path]:
    """Files and folders of the packages that exercises may use, and of what these need."""
    needed, waiting = set[str](), list(PACKAGES)
    paths: dict[Path, None] = {}
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if name not in needed:
                needed.add(name)
                distribution = importlib.metadata.distribution(name)
                waiting += _required_names(distribution)
                paths |= dict.fromkeys(_top_level(distribution))
    return list(paths)


def _required_names(distribution: importlib.metadata.Distribution) -> list[str]:
    lines = (line for line in distribution.requires or () if "extra" not in line)
    return [name[0] for name in (re.match(r"[\w.-]+", line) for line in lines) if name]


def _top_level(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    for file in distribution.files or ():
        if file.parts[0] not in ("..", "__pycache__") and file.suffix != ".pth":
            yield Path(str(distribution.locate_file(file.parts[0])))


def _user() -> list[str]:
    """The last options of bubblewrap, and the prefix of the command, for the user it runs as."""
    if os.geteuid():
        return ["--unshare-user"]
    ids = [f"--reuid={NO_ACCOUNT}", f"--regid={NO_ACCOUNT}", "--clear-groups"]
    return ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "setpriv", *ids]
