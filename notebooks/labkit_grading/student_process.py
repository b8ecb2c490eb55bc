"""The process in the sandbox: it defines a student's exercises and does what the grader asks of it.

One JSON line a message, on stdin and on what stdout was at the start. A request
`{"id", "do": "define" | "call" | "get", …}` gets a thread of its own, which ends with
`{"id", "returned"}` or `{"id", "raised"}`; on the way it may call the grader's functions with
`{"id", "call", "given"}`, also those that an earlier request handed out. Nothing here judges, and
nothing is here that says what is right: code that writes to the channel can only give answers, as
it could by returning them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import queue
import resource
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit_grading.values import Kept, decode, encode

FILE = "<exercise>"
MEMORY_BYTES = 6 << 30
PROCESSES = 32  # threads count
MODULE = "student"


class GradersObject:
    """An object that stays with the grader: each attribute is read there, when it is asked for."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._read(name)


class StudentProcess:
    """The exercises' names, and the conversations that are under way."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
        os.dup2(2, 1)  # what the student prints
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.Queue[Any]] = {}
        self._objects = Kept("object")
        self._here = threading.local()
        module = sys.modules[MODULE] = types.ModuleType(MODULE)
        self._space = vars(module)

    def serve(self) -> None:
        """Answer until the grader closes the channel."""
        for line in sys.stdin:
            message = json.loads(line)
            if "do" in message:
                self._waiting[message["id"]] = queue.Queue()
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
            elif message["id"] in self._waiting:
                self._waiting[message["id"]].put(message)

    def _answer(self, message: dict[str, Any]) -> None:
        number = self._here.conversation = message["id"]
        try:
            returned = encode(self._do(message), self._objects.keep)
        except BaseException as error:  # outermost frame: the student's code may raise anything
            self._say({"id": number, "raised": f"{type(error).__name__}: {error}"})
        else:
            self._say({"id": number, "returned": returned})
        del self._waiting[number]

    def _do(self, message: dict[str, Any]) -> Any:
        if message["do"] == "define":
            return self._define(message["text"], message["names"])
        thing = self._objects[message["object"]]
        if message["do"] == "get":
            return getattr(thing, message["name"])
        given = (decode(part, self._find(message["id"])) for part in message["given"])
        return thing(*given)

    def _define(self, text: str, names: list[str]) -> dict[str, Any]:
        linecache.cache[FILE] = (len(text), None, text.splitlines(keepends=True), FILE)
        exec(compile(text, FILE, "exec"), self._space)  # noqa: S102  in a sandbox, for this alone
        return {name: self._space[name] for name in names if name in self._space}

    def _find(self, conversation: int) -> Any:
        def find(kind: str, number: int) -> Any:
            if kind == "object":
                return self._objects[number]

            def ask(*given: Any) -> Any:
                # An object may keep a function for a later request: this thread answers that one.
                current = getattr(self._here, "conversation", conversation)
                return self._ask(current, number, given)

            return GradersObject(ask) if kind == "attributes" else ask

        return find

    def _ask(self, conversation: int, function: int, given: tuple[Any, ...]) -> Any:
        """Call one of the grader's functions in a conversation that waits for an answer."""
        said = [encode(part, self._objects.keep) for part in given]
        self._say({"id": conversation, "call": function, "given": said})
        answer = self._waiting[conversation].get()
        if "raised" in answer:
            raise RuntimeError(answer["raised"])
        return decode(answer["returned"], self._find(conversation))

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            print(json.dumps(message), file=self._answers, flush=True)


def limit() -> None:
    """Bound what this process may take of the machine; where memory is short it is ended first."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def load_torch() -> None:
    """Now, as no call should wait for it: a rank that is seconds late counts as one that hangs."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")


if __name__ == "__main__":
    limit()
    load_torch()
    StudentProcess().serve()
