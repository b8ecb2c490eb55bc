"""The report of a proof: one JSON file that an operator can send, and the lines for a terminal.

The file names nobody and nothing of the site: GPUs are numbered, and UUIDs, host and user names,
addresses, image and paths that are not the driver's are replaced wherever they occur.
"""

import getpass
import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from miglab_hub import __version__
from miglab_hub.prove.lines import LINES, LineAnswer, LineVerdict

FORMAT = 1
GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MIG_UUID = re.compile(r"MIG-(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/\d+/\d+)?")
OTHERS = (
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "ID"),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.-]+"), "ADDRESS"),
    (re.compile(r"\b[a-z][a-z+]*://\S+"), "URL"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b(?!\.\d)"), "ADDRESS"),
)
PATH = re.compile(r"(?<![\w.])(?:/[\w.@+-]+){2,}/?")
KEPT_PATHS = ("/dev/nvidia", "/proc/driver/nvidia", "/etc/cdi", "/var/run/cdi", "/run/cdi")
SHORTEST_NAME = 3


@dataclass(frozen=True)
class Report:
    """The report of a run.

    Attributes:
        at: when it began, UTC, to the minute.
        took_s: how long it took, seconds.
        is_quick: as asked; ``is_simulated`` and ``is_read_only`` likewise.
        lab: ``up``, ``down``, or ``none`` for a run without one.
        answers: a line each, in order.
        calls: how often each NVML function was called.
    """

    at: str
    took_s: float
    is_quick: bool
    is_simulated: bool
    is_read_only: bool
    lab: str
    answers: Sequence[LineAnswer]
    calls: Counter[str]

    @property
    def holds(self) -> bool:
        """Whether no line failed."""
        return all(answer.verdict is not LineVerdict.NO for answer in self.answers)

    def as_values(self) -> dict[str, Any]:
        """Return the file's content, before redaction."""
        tries = {line.name: line.tries for line in LINES}
        lines = [{**asdict(answer), "tries": tries[answer.line]} for answer in self.answers]
        head = {"format": FORMAT, "kind": "miglab-proof", "miglab": __version__}
        options = {
            key: value for key, value in vars(self).items() if key not in ("answers", "calls")
        }
        return {**head, **options, "lines": lines, "nvml_calls": dict(sorted(self.calls.items()))}


def write_report(report: Report, file: Path, gpus: Sequence[str], names: Iterable[str]) -> None:
    """Write the report's file.

    Args:
        report: of the run.
        file: where to; one that is there is replaced.
        gpus: the GPUs' UUIDs, as they are numbered.
        names: further names of the site.
    """
    redaction = Redaction(gpus, [*names, *names_of_host()])
    values = report.as_values()
    for line in values["lines"]:
        line.update({key: redaction.of(line[key]) for key in ("result", "facts")})
    text = json.dumps(values, indent=1, ensure_ascii=False)
    file.write_text(f"{text}\n", encoding="utf-8")


def names_of_host() -> list[str]:
    """Return the names of this host and of its user, to be redacted."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return [host, host.split(".")[0], *([user] if user != "root" else [])]


class Redaction:
    """Replaces what identifies a site, in texts and in everything that holds texts.

    Args:
        gpus: UUIDs that are replaced by the GPU's number.
        names: further words to be replaced.
    """

    def __init__(self, gpus: Sequence[str], names: Iterable[str]) -> None:
        self._numbers = {uuid: f"GPU {number}" for number, uuid in enumerate(gpus)}
        long_names = sorted({n for n in names if len(n) >= SHORTEST_NAME}, key=len, reverse=True)
        pattern = "|".join(map(re.escape, long_names))
        self._names = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)") if pattern else None

    def of(self, value: Any) -> Any:
        """Return a value with its texts redacted; a mapping's keys too."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self.of(str(key)): self.of(of_key) for key, of_key in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        text = MIG_UUID.sub("MIG-…", text)
        text = GPU_UUID.sub(lambda uuid: self._numbers.get(uuid[0], "GPU-…"), text)
        for pattern, substitute in OTHERS:
            text = pattern.sub(substitute, text)
        if self._names is not None:
            text = self._names.sub("NAME", text)
        return PATH.sub(lambda path: path[0] if path[0].startswith(KEPT_PATHS) else "PATH", text)


def terminal_lines(answers: Iterable[LineAnswer]) -> Iterable[str]:
    """Return an answer's lines for a terminal, with the figures below."""
    for answer in answers:
        yield f"{answer.verdict.value:<18} {answer.line}: {answer.result}"
        for name, quantiles in answer.figures.items():
            yield f"{'':<18}   {name}: {quantiles}"
