"""What happened while the student was away, told once when they come back.

The moment at which they last looked is kept in their home, by the pool's clock, so that a server
that was started anew knows it, too.  Decides by what it is given, and touches that file alone.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AWAY_S = 600.0  # without a key or the pointer in any tab
LONG_S = 60.0  # what a kernel ran for so long is worth a line
KEPT_EVERY_S = 60.0
MOST = 50  # of what kernels ran

View = Mapping[str, Any]


@dataclass(frozen=True)
class LongRun:
    """What a kernel ran for long.

    Attributes:
        path: of the notebook; empty if it is not known.
        ended_at: by the pool's clock, seconds since the epoch.
        took_s: how long it ran.
    """

    path: str
    ended_at: float
    took_s: float


class Absence:
    """When the student last looked, and what has ended since.

    Args:
        file: where the moment of the last look is kept.

    Attributes:
        report: what they are told now, as the front end gets it; None for nothing.
    """

    def __init__(self, file: Path) -> None:
        self.report: dict[str, Any] | None = None
        self._file = file
        self._looked_at = self._kept_at = _read_moment(file)
        self._busy_since: dict[str, float] = {}
        self._runs: list[LongRun] = []
        self._began_at: float | None = None  # when this server first heard the pool's clock

    def note_kernels(self, states: Mapping[str, str], paths: Mapping[str, str], now: float) -> None:
        """Take in what each kernel does.

        Args:
            states: kernel id to its state, in Jupyter's words.
            paths: kernel id to the path of its notebook.
            now: the pool's clock.
        """
        self._began_at = now if self._began_at is None else self._began_at
        self._busy_since = {
            kernel: self._busy_since.get(kernel, now)
            for kernel in states
            if states[kernel] == "busy" or kernel in self._busy_since
        }
        for kernel in [kernel for kernel in self._busy_since if states[kernel] != "busy"]:
            took_s = now - self._busy_since.pop(kernel)
            if took_s >= LONG_S:
                self._runs = [*self._runs, LongRun(paths.get(kernel, ""), now, took_s)][-MOST:]

    def since(self, looked_at: float) -> float | None:
        """Return since when the student was away if they have just come back; None otherwise.

        While a report stands, it is made anew, with what has ended since, when they come back.
        """
        if self._looked_at is None or looked_at - self._looked_at < AWAY_S:
            return None
        return self._looked_at if self.report is None else float(self.report["since"])

    def tell(self, since: float, lease_ends: Iterable[View], measured: Iterable[View]) -> None:
        """Report what has ended since then, unless nothing has.

        Args:
            since: when they last looked.
            lease_ends: the `miglab_api.line.LeaseEnd` of each lease that ended.
            measured: the experiments that were measured, each with ``experiment`` and ``at``.
        """
        runs = [run for run in self._runs if run.ended_at > since]
        events = [
            *(
                {"kind": "lease", "at": end["ended_at"], **end}
                for end in lease_ends
                if _is_news(end)
            ),
            *({"kind": "run", "at": run.ended_at, **vars(run)} for run in runs),
            *({"kind": "measured", **experiment} for experiment in measured),
        ]
        if events:
            is_new_server = (self._began_at or 0.0) > since
            in_order = sorted(events, key=lambda event: float(event["at"]))
            self.report = {"since": since, "is_new_server": is_new_server, "events": in_order}

    def looked(self, looked_at: float) -> None:
        """Note that the student looked; kept in the home once they have put the report away."""
        self._looked_at = max(looked_at, self._looked_at or 0.0)
        if self.report is not None:
            return  # what it tells is kept until it is put away
        self._runs = [run for run in self._runs if run.ended_at > self._looked_at]
        if self._looked_at - (self._kept_at or 0.0) >= KEPT_EVERY_S:
            self._keep()

    def put_away(self) -> None:
        """The student has read the report."""
        self.report = None
        self._keep()

    def _keep(self) -> None:
        if self._looked_at is not None and _write_moment(self._file, self._looked_at):
            self._kept_at = self._looked_at


def _is_news(lease_end: View) -> bool:
    """Whether the student does not know it: they did not give the slice back themselves."""
    return not lease_end["is_given_back"]


def _read_moment(file: Path) -> float | None:
    try:
        return float(json.loads(file.read_text(encoding="ascii"))["looked_at"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_moment(file: Path, looked_at: float) -> bool:
    """Return whether it could be written: a home may be full."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps({"looked_at": looked_at}), encoding="ascii")
        unfinished.replace(file)
    except OSError:
        return False
    return True
