"""Where students' code runs: in a process of bubblewrap's, or nowhere.

It has no network, an empty environment, no file of this machine but Python's own, read-only, and a
scratch folder in memory; it sees no other process, and ends with the grader.  Root's grader runs it
as a user without an account: the kernel limits the number of processes for everybody but root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from labkit.errors import LabError
from labkit.run.child import PACKAGE_ROOT

PACKAGES = ("labkit", "labkit_grading")
SCRATCH, SCRATCH_BYTES = "/tmp", 256 << 20  # noqa: S108  in memory, of one process
NO_ACCOUNT = 64987
TRY_S = 20.0
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
ENVIRONMENT = {
    "PATH": "/usr/bin",
    "HOME": SCRATCH,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
ADVICE = (
    "Students' code runs only where bubblewrap isolates it, and here it does not: {why}. "
    "Run `labkit grade --run-code` on a Linux machine that has bubblewrap (`apt install "
    "bubblewrap`) and lets users make user namespaces; where it does not, run it as root (`sudo`). "
    "A container usually can do neither. "
    "Without --run-code everything but the exercises is marked."
)


def command(*arguments: str) -> list[str]:
    """The command line that runs Python with these arguments in the sandbox."""
    python_folders = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    labkit = [str(Path(PACKAGE_ROOT, name)) for name in PACKAGES]
    readable_paths = [*SYSTEM, *dict.fromkeys(python_folders), *labkit]
    binds = [
        part for path in readable_paths for part in (*_parents(path), "--ro-bind-try", path, path)
    ]
    env = {**ENVIRONMENT, "PYTHONPATH": PACKAGE_ROOT}
    variables = [part for name, value in env.items() for part in ("--setenv", name, value)]
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--clearenv", *variables, "--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SCRATCH_BYTES), "--perms", "1777", "--tmpfs", SCRATCH, *binds),
        *("--remount-ro", "/", "--chdir", SCRATCH, *_user(), sys.executable, *arguments),
    ]


def _parents(path: str) -> list[str]:
    """The folders above a path, which bubblewrap would otherwise make for this user alone."""
    above = list(Path(path).parents)[-2::-1]
    return [part for folder in above for part in ("--dir", str(folder))]


def _user() -> list[str]:
    """The last options of bubblewrap, and the prefix of the command, for the user it runs as."""
    if os.geteuid():
        return ["--unshare-user"]
    ids = [f"--reuid={NO_ACCOUNT}", f"--regid={NO_ACCOUNT}", "--clear-groups"]
    return ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "setpriv", *ids]


def start() -> subprocess.Popen[bytes]:
    """Start the process that runs a student's code, with pipes for its channel."""
    return subprocess.Popen(
        command("-m", "labkit_grading.run_checks"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def require() -> None:
    """Refuse where bubblewrap does not work.

    Raises:
        LabError: why, and where to run instead.
    """
    if reason := _reason_unavailable():
        raise LabError(ADVICE.format(why=reason))


def _reason_unavailable() -> str:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    try:
        trial = subprocess.run(
            command("-c", "import labkit_grading.run_checks"),
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
