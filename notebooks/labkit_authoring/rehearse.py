"""Rehearse notebooks on this slice: how long each section takes, and what it leaves behind.

Each notebook runs in a process of its own, in a folder of its own, marked headless.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from labkit.errors import LabError
from labkit.machine.emulate import VARIABLE
from labkit.run.child import child_env

SLICE = "sms=16,memory_mib=4352"  # what a 1g.5gb leaves a process, with an SM count Hopper can give
CANCEL_S, END_S = 3.0, 15.0  # after the first and the second interrupt


@dataclass(frozen=True)
class Rehearsal:
    """How one notebook went.

    Attributes:
        seconds: per section, in order.
        failed: what stopped it, or None.
        unfinished: experiments that ended early, with the reason.
        folder: where its `evidence` and `figures` lie.
    """

    notebook: str
    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str | None = None
    unfinished: dict[str, str] = field(default_factory=dict)
    total_s: float = 0.0

    def __str__(self) -> str:
        rows = [f"{took / 60:6.1f} min  {name}" for name, took in self.seconds.items()]
        rows += [f"unfinished: {key}: {why}" for key, why in self.unfinished.items()]
        rows += [f"failed: {self.failed}"] if self.failed else []
        head = f"{self.notebook}: {self.total_s / 60:.1f} min of machine time"
        return "\n".join([head, *(f"  {row}" for row in rows)])


def rehearse(notebook: Path, folder: Path, *, emulate: bool = False, limit_s: float) -> Rehearsal:
    """Run one notebook, solutions kept, in `folder`.

    Args:
        notebook: a py:percent source or an .ipynb.
        folder: made if needed; what the notebook writes lies there afterwards.
        emulate: confine it to a make-believe slice; every record then says so.
        limit_s: after this it is ended, and what it measured until then stays in the folder.
    """
    if not notebook.is_file():
        raise LabError(f"There is no notebook {notebook}")
    folder.mkdir(parents=True, exist_ok=True)
    report, begun = folder.resolve() / "report.json", time.monotonic()
    report.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "labkit_authoring.plain_run",
        str(notebook.resolve()),
        str(report),
    ]
    failed = _run(command, folder, _added(emulate), limit_s)
    took = time.monotonic() - begun
    if not report.is_file():
        return Rehearsal(
            notebook.name, folder, failed=failed or "it ended without a report", total_s=took
        )
    return Rehearsal(notebook.name, folder, **json.loads(report.read_text()), total_s=took)


def _added(emulate: bool) -> dict[str, str]:
    return {"LAB_HEADLESS": "1", **({VARIABLE: SLICE} if emulate else {})}


def _run(command: list[str], folder: Path, added: dict[str, str], limit_s: float) -> str | None:
    """Run to the end or to the limit; its words go to `output.txt`."""
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=child_env(os.environ, added),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"ended after {limit_s:g} s, its limit"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt, so that it ends its own children; kill it if it does not listen.

    The first interrupt cancels what the event loop awaits, the second a cell that never awaits.
    """
    for patience_s in (CANCEL_S, END_S):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        return
    process.kill()
    process.wait()
