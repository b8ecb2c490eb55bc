"""A student's exercises as the grader holds them: each call is a question to the student's process.

What comes back is a plain value, a tensor, or a `RemoteObject`; never code. The check itself runs
here, where the student's code cannot reach it.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.errors import ChildKilled, ChildTimeout, StudentError
from labkit_grading import sandbox
from labkit_grading.sandbox import Start
from labkit_grading.values import Kept, decode, encode

LINE_LIMIT = 16 << 20
TOTAL_LIMIT = 256 << 20


class RemoteObject:
    """An object that stays in the student's process: its public attributes, and calls of it."""

    def __init__(self, code: RemoteCode, number: int) -> None:
        self._code, self._number = code, number

    def __call__(self, *given: Any) -> Any:
        return self._code.call(self._number, given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._code.get(self._number, name)


class RemoteCode:
    """A student's process and the conversations with it, from several threads if need be.

    Args:
        ends: when it is ended, on the monotonic clock.
        start: starts it.
    """

    def __init__(self, ends: float, start: Start = sandbox.start) -> None:
        left_s = max(0.0, ends - time.monotonic())
        self._process = start(left_s)
        self._ends = ends
        self._watchdog = threading.Timer(left_s, self._process.kill)
        self._watchdog.daemon = True
        self._lock = threading.Lock()
        self._functions = Kept("function")  # a student's object may call them in a later call
        self._numbers = itertools.count()
        self._conversations: dict[int, queue.Queue[dict[str, Any] | None]] = {}
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> RemoteCode:
        self._watchdog.start()
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close(pipe)

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() >= self._ends

    def define(self, text: str, names: list[str]) -> dict[str, Any]:
        """Run the student's statements; what these names are then, where they are anything."""
        found = self._converse({"do": "define", "text": text, "names": names})
        if not isinstance(found, dict):
            raise StudentError("the exercise's process gave no answer that can be read")
        return {name: found[name] for name in names if name in found}

    def call(self, number: int, given: tuple[Any, ...]) -> Any:
        """Call an object of the student's process."""
        said = [encode(part, self._named) for part in given]
        return self._converse({"do": "call", "object": number, "given": said})

    def get(self, number: int, name: str) -> Any:
        """An attribute of an object of the student's process."""
        return self._converse({"do": "get", "object": number, "name": name})

    def _converse(self, request: dict[str, Any]) -> Any:
        number, answers = next(self._numbers), queue.Queue[dict[str, Any] | None]()
        with self._lock:
            if self._is_over:
                raise self._gone()
            self._conversations[number] = answers
        try:
            self._send({"id": number, **request})
            while "call" in (answer := answers.get() or {"gone": True}):
                self._send({"id": number, **self._called(answer)})
        finally:
            with self._lock:
                del self._conversations[number]
        return self._outcome(answer)

    def _outcome(self, answer: dict[str, Any]) -> Any:
        if "raised" in answer:
            raise StudentError(str(answer["raised"]))
        if "returned" not in answer:
            raise self._gone()
        try:
            return decode(answer["returned"], self._find)
        except Exception as error:  # outermost frame around what a stranger's process wrote
            raise StudentError(f"it returned what cannot be read ({error})") from error

    def _called(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Call a function that was handed out."""
        try:
            given = [decode(part, self._find) for part in answer["given"]]
            returned = self._functions[answer["call"]](*given)
            return {"returned": encode(returned, self._named)}
        except Exception as error:  # outermost frame: the student's code may call it in any way
            return {"raised": f"{type(error).__name__}: {error}"}

    def _named(self, thing: Any) -> dict[str, int]:
        if isinstance(thing, RemoteObject):
            return {"object": thing._number}
        if callable(thing):
            return self._functions.keep(thing)
        if hasattr(thing, "graders_multiply"):
            return self._functions.keep(_multiplier(thing))
        if names := getattr(type(thing), "STUDENTS_MAY_READ", ()):
            return {"attributes": self._functions.keep(_reader(thing, names))["function"]}
        raise TypeError(f"{type(thing).__name__} cannot be handed to a student's code")

    def _find(self, kind: str, number: int) -> RemoteObject:
        if kind != "object":
            raise ValueError("this is no object of the student's")
        return RemoteObject(self, number)

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                if self._process.stdin is not None:
                    self._process.stdin.write(line)
                    self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> ChildKilled | ChildTimeout:
        if self.is_late:
            return ChildTimeout("its time is over")
        return ChildKilled("the exercise ended its own process before it answered")

    def _read(self) -> None:
        """Hand out what the process says, until it ends or says too much or nonsense."""
        left = TOTAL_LIMIT
        stdout = self._process.stdout
        while stdout is not None and left > 0 and (line := stdout.readline(LINE_LIMIT)):
            left -= len(line)
            if not self._hand_out(line):
                break
        self._process.kill()
        with self._lock:
            self._is_over = True
            for answers in self._conversations.values():
                answers.put(None)

    def _hand_out(self, line: bytes) -> bool:
        try:
            message = json.loads(line)
            number = message["id"]
            with self._lock:
                if number in self._conversations:
                    self._conversations[number].put(message)
        except Exception:  # outermost frame around what a stranger's process wrote
            return False
        return True


def _reader(thing: Any, names: tuple[str, ...]) -> Callable[[str], Any]:
    """What reads these attributes of an object of the grader's, and no others."""

    def read(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{type(thing).__name__} has {', '.join(names)}; no {name}")
        return getattr(thing, name)

    return read


def _multiplier(matrix: Any) -> Callable[[Any, Any], Any]:
    """What multiplies by the entries at these places of a matrix that stays here."""
    entries = matrix.plain().reshape(-1)

    def multiply(left: Any, places: Any) -> Any:
        return matrix.graders_multiply(left, entries[places.long()])

    return multiply


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except OSError:  # what was not flushed went to a process that is gone
        return
