"""The program of the process in which a student's code runs: it answers with values until its end.

Its standard input and what was its standard output are the channel; what the code prints goes to
standard error. The arguments are the most processes (0: as many as may be) and the most bytes of
memory.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import linecache
import os
import resource
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from . import wire

FILE = "<exercise>"
MOST_TEXT = 2000


class StudentPeer(wire.Peer):
    """The student's side. Its first two objects: one that defines the code, one that looks up."""

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        super().__init__(incoming, outgoing)
        module = sys.modules["exercise"] = types.ModuleType("exercise")  # dataclasses look there
        self._names = vars(module)
        self._offered |= {-1: self.define, -2: self.look_up}

    def define(self, text: str, values: dict[str, Any]) -> None:
        """Run the statements that define an exercise, after these values have their names."""
        linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
        self._names.update(values)
        exec(compile(text, FILE, "exec"), self._names)  # noqa: S102  that is what it is for

    def look_up(self, name: str) -> Any:
        """What has this name; None where nothing has."""
        return self._names.get(name)

    def describe(self, error: BaseException) -> wire.Data:
        """An error, with the line of the student's that was running."""
        data: wire.Data = {"kind": type(error).__name__, "message": "", "function": "", "text": ""}
        with contextlib.suppress(BaseException):  # the text of an error may raise another
            data["message"] = str(error)[:MOST_TEXT]
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE
        ]
        if frames:
            data |= {"function": frames[-1].name, "line": frames[-1].lineno or 0}
            data["text"] = (frames[-1].line or "")[:MOST_TEXT]
        return data

    def error_of(self, data: wire.Data) -> Exception:
        """An error of what the judge gave the code, by its own name where Python has one."""
        kind = getattr(builtins, str(data["kind"]), RuntimeError)
        is_error = isinstance(kind, type) and issubclass(kind, Exception)
        return kind(data["message"]) if is_error else RuntimeError(data["message"])

    def _decode_tagged(self, data: wire.Data) -> Any:
        if "record" not in data:
            return super()._decode_tagged(data)
        names = list(data["fields"])
        record: Any = collections.namedtuple(data["record"], names)  # type: ignore[misc]
        return record(*(self.decode(data["fields"][name]) for name in names))


def limit(processes: int, memory_bytes: int) -> None:
    """Limit this process's resources; where memory is short, the kernel ends it first."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Answer on the channel until the judge closes it."""
    limit(*map(int, sys.argv[1:3]))
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    StudentPeer(incoming, outgoing).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
