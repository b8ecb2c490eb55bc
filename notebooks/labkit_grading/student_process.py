"""The judge's side of a student's code: a process that is asked for values, exercise by exercise.

The process holds the student's statements and nothing else. The judge draws the inputs, sends them,
carries every message between ranks, and compares what comes back with what is right, which never
leaves this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

from labkit.exercises.code_checks import NoValue
from labkit.run.source import error_sentence
from labkit_grading.answering import wire
from labkit_grading.sandbox import END_S, Isolation

MOST_BYTES = 16 << 20
"""That a process may send while one exercise is judged, messages and answers together."""
MOST_AT_ONCE = 16
CALL_S, START_S, EXERCISE_S = 10.0, 120.0, 180.0
MOST_SHOWN = 300  # characters of what it printed


class Judge(wire.Peer):
    """The judge's end of the channel: it waits for so long and no longer, and offers little."""

    limit_bytes = MOST_BYTES
    most_at_once = MOST_AT_ONCE

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        super().__init__(incoming, outgoing)
        self.fault = ""
        self.call_s = START_S

    def wait_for(self, replies: queue.SimpleQueue[wire.Data]) -> wire.Data:
        """Wait for a reply.

        Raises:
            NoValue: it does not come in time.
        """
        try:
            return replies.get(timeout=self.call_s)
        except queue.Empty:
            self.give_up(f"no answer within {self.call_s:g} s: is there an endless loop?")

    def give_up(self, fault: str) -> NoReturn:
        """Remember why nothing more is expected of this process; the first reason stands."""
        self.fault = self.fault or fault
        raise NoValue(self.fault)

    def offer(self, value: Any) -> wire.Data:
        """Offer a function to be called, or the attributes that an object names in `offered`."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
            fields = {name: self.encode(part) for name, part in parts.items()}
            return {"record": type(value).__name__, "fields": fields}
        if callable(value) or hasattr(value, "offered"):
            return super().offer(value)
        raise TypeError(f"{type(value).__name__} is not for students' code")

    def attribute(self, owner: Any, name: str) -> Any:
        """An attribute that the object offers."""
        if name not in getattr(owner, "offered", ()):
            raise AttributeError(f"there is no `{name}`")
        return getattr(owner, name)

    def error_of(self, data: wire.Data) -> Exception:
        """What the student's code raised, as a sentence."""
        kind, message = (str(data.get(part, "")) for part in ("kind", "message"))
        if kind == "AttributeError" and "line" not in data:
            return AttributeError(message)
        place = {name: data[name] for name in ("function", "line", "text") if "line" in data}
        described = {"kind": kind, "message": message, **place}
        return NoValue(error_sentence(described, "in your code"), kind)


class StudentProcess:
    """A fresh process for one exercise, as a context; it is ended with everything it started."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation

    def __enter__(self) -> StudentProcess:
        self._process = self._isolation.start()
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._judge = Judge(self._process.stdout, self._process.stdin)
        self._printed = b""
        self._timer = threading.Timer(EXERCISE_S, self._end_late)
        self._timer.daemon = True
        threads = [threading.Thread(target=work, daemon=True) for work in (self._serve, self._read)]
        self._threads = threads
        for thread in (*threads, self._timer):
            thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._timer.cancel()
        self._isolation.end(self._process)
        for thread in self._threads:
            thread.join(END_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):  # what was not read any more
                stream.close()  # type: ignore[union-attr]  # _start makes all three

    @property
    def fault(self) -> str:
        """Why the process answers no more; empty while it does."""
        return self._judge.fault

    @property
    def printed(self) -> str:
        """The beginning of what the code printed, which is the student's word and nobody else's."""
        return wire.shortened(self._printed.decode("utf-8", "replace").strip(), MOST_SHOWN)

    def define(self, text: str, values: Mapping[str, Any]) -> None:
        """Run the statements of an exercise, and what it needs.

        Args:
            text: the statements.
            values: what the course gives it, by name.

        Raises:
            NoValue: it raised an error, or took too long.
        """
        wire.RemoteObject(self._judge, -1)(text, dict(values))
        self._judge.call_s = CALL_S

    def look_up(self, name: str) -> Any:
        """What the code defined under a name: a function or a class to be called, or a value.

        Raises:
            NoValue: it defined nothing of this name.
        """
        value = wire.RemoteObject(self._judge, -2)(name)
        if value is None:
            raise NoValue(f"the notebook has no `{name}`")
        return value

    def _serve(self) -> None:
        try:
            self._judge.serve()
        except wire.WireError as error:
            self._judge.fault = self._judge.fault or str(error)
            self._isolation.end(self._process)

    def _read(self) -> None:
        assert self._process.stderr
        for part in wire.first_bytes(self._process.stderr, 8 * MOST_SHOWN):
            self._printed += part

    def _end_late(self) -> None:
        self._judge.fault = self._judge.fault or f"it took more than {EXERCISE_S:g} s in all"
        self._isolation.end(self._process)
