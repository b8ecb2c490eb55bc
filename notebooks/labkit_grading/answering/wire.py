"""Values and calls between two processes, in JSON: what is read here runs nothing.

A frame is its length in 4 bytes and a JSON object. Numbers, texts, lists, tuples, dictionaries and
tensors travel as values. Any other object stays where it is: the other side gets its number, and
may ask for a call or for an attribute.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import queue
import struct
import sys
import threading
from collections.abc import (
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from typing import IO, Any

FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool")
LENGTH = struct.Struct(">I")
CLOSED = {"kind": "ProcessEnded", "message": "the process ended before it answered"}
Data = dict[str, Any]


class WireError(Exception):
    """A frame or a value that is none; the message says why."""


def read_frame(stream: IO[bytes], limit_bytes: int) -> bytes | None:
    """The JSON text of the next frame; None where the stream has ended.

    Raises:
        WireError: it is longer than the limit; nothing of it was read.
    """
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    if length > limit_bytes:
        raise WireError(f"it sent {length / 2**20:.0f} MiB, more than may be sent")
    text = stream.read(length)
    return text if len(text) == length else None


def tensor_to_data(tensor: Any) -> Data:
    """A tensor as its format, its shape and its bytes."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise WireError(f"a tensor of {dtype} is no value that can be sent")
    import torch

    plain = tensor.detach().to("cpu", copy=True).contiguous().reshape(-1)
    raw = bytes(plain.view(torch.uint8).untyped_storage()) if plain.numel() else b""
    return {
        "tensor": dtype,
        "shape": list(tensor.shape),
        "bytes": base64.b64encode(raw).decode("ascii"),
    }


def tensor_from_data(data: Data) -> Any:
    """The tensor of `tensor_to_data`.

    Raises:
        WireError: there is no such format, or its bytes do not fill its shape.
    """
    import torch

    dtype, shape = data["tensor"], data["shape"]
    if dtype not in DTYPES or not all(type(size) is int and size >= 0 for size in shape):
        raise WireError("it sent a tensor of no known format")
    raw, kind = bytearray(base64.b64decode(data["bytes"])), getattr(torch, dtype)
    if len(raw) != math.prod(shape) * kind.itemsize:
        raise WireError("it sent a tensor whose bytes do not fill its shape")
    flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
    return flat.reshape(shape)


class RemoteObject:
    """An object of the other process: it can be called and asked for attributes, nothing else."""

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer, self._number = peer, number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._peer.ask("call", self, arguments=list(arguments), keywords=keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._peer.ask("get", self, name=name)

    def __repr__(self) -> str:
        return "an object"


class Peer:
    """One side of a pair of streams: asks the other side, and answers what it asks.

    Each question is answered in a thread of its own, so that answers may wait for one another.

    Args:
        incoming: the stream from the other side.
        outgoing: the stream to it.
    """

    limit_bytes = 2**32
    most_at_once = 2**16
    """How many questions may wait for their answers at a time."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._offered: dict[int, Any] = {}
        self._replies: dict[int, queue.SimpleQueue[Data]] = {}
        self._numbers, self._writing = itertools.count(1), threading.Lock()
        self._at_work = threading.Semaphore(self.most_at_once)
        self._is_closed = False

    # what the two sides do differently

    def offer(self, value: Any) -> Data:
        """Tell the other side of an object that is no value."""
        number = next(self._numbers)
        self._offered[number] = value
        return {"object": number}

    def attribute(self, owner: Any, name: str) -> Any:
        """The attribute of an offered object that the other side asks for."""
        return getattr(owner, name)

    def describe(self, error: BaseException) -> Data:
        """An error of this side for the other one."""
        return {"kind": type(error).__name__, "message": str(error)}

    def error_of(self, data: Data) -> Exception:
        """The error to raise here for one of the other side's."""
        raise NotImplementedError

    # asking

    def ask(self, verb: str, owner: RemoteObject, **details: Any) -> Any:
        """Ask the other side to call an object or for an attribute of it, and wait."""
        number = next(self._numbers)
        replies = self._replies[number] = queue.SimpleQueue()
        question = {"ask": number, "verb": verb, "of": owner._number, "with": self.encode(details)}
        if self._is_closed or not self._write(question):
            raise self.error_of(CLOSED)
        reply = self.wait_for(replies)
        if "error" in reply:
            raise self.error_of(reply["error"])
        return self.decode(reply["value"])

    def wait_for(self, replies: queue.SimpleQueue[Data]) -> Data:
        """Wait for the reply to a question."""
        return replies.get()

    # answering

    def serve(self) -> None:
        """Read frames until the stream ends; what still waits then is told so.

        Raises:
            WireError: a frame is none.
        """
        try:
            while (text := read_frame(self._incoming, self.limit_bytes)) is not None:
                self.limit_bytes -= len(text)
                self._take(text)
        finally:
            self._is_closed = True
            for replies in list(self._replies.values()):
                replies.put({"error": CLOSED})

    def _take(self, text: bytes) -> None:
        try:
            frame = json.loads(text)
            if "ask" in frame:
                question = int(frame["ask"]), str(frame["verb"]), int(frame["of"]), frame["with"]
                if not self._at_work.acquire(blocking=False):
                    raise WireError("it asked more at once than may be asked")
                threading.Thread(target=self._answer, args=question, daemon=True).start()
            else:
                self._replies.pop(frame["reply"]).put(frame)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WireError("it sent what is no frame") from error

    def _answer(self, number: int, verb: str, of: int, details: Any) -> None:
        try:
            reply = {"reply": number, "value": self.encode(self._result(verb, of, details))}
        except BaseException as error:  # outermost frame of the thread: it is the other side's
            reply = {"reply": number, "error": self.describe(error)}
        self._at_work.release()
        self._write(reply)

    def _result(self, verb: str, of: int, details: Any) -> Any:
        owner, parts = self._offered[of], self.decode(details)
        if verb == "call":
            return owner(*parts["arguments"], **parts["keywords"])
        return self.attribute(owner, parts["name"])

    def _write(self, frame: Data) -> bool:
        """Send a frame; False where the other side is gone."""
        text = json.dumps(frame).encode("ascii")
        try:
            with self._writing:
                self._outgoing.write(LENGTH.pack(len(text)) + text)
                self._outgoing.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed here
            return False
        return True

    # values

    def encode(self, value: Any) -> Any:
        """A value as JSON data; an object that is none is offered."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple):
            return {"tuple": [self.encode(part) for part in value]}
        if isinstance(value, Mapping):
            pairs = value.items()
            return {"dict": [[self.encode(key), self.encode(part)] for key, part in pairs]}
        if _is_listed(value):
            return [self.encode(part) for part in value]
        return self._encode_object(value)

    def _encode_object(self, value: Any) -> Any:
        if isinstance(value, RemoteObject) and value._peer is self:
            return {"yours": value._number}
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            return tensor_to_data(value)
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            return self.encode(value.item())
        return self.offer(value)

    def decode(self, data: Any) -> Any:
        """The value of JSON data.

        Raises:
            WireError: it is none.
        """
        if isinstance(data, list):
            return [self.decode(part) for part in data]
        if not isinstance(data, dict):
            return data
        try:
            return self._decode_tagged(data)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError("it sent what is no value") from error

    def _decode_tagged(self, data: Data) -> Any:
        if "dict" in data:
            return {self.decode(key): self.decode(part) for key, part in data["dict"]}
        if "tuple" in data:
            return tuple(self.decode(part) for part in data["tuple"])
        if "tensor" in data:
            return tensor_from_data(data)
        if "yours" in data:
            return self._offered[data["yours"]]
        return RemoteObject(self, int(data["object"]))


def _is_listed(value: Any) -> bool:
    """Whether an object is sent as the list of what it holds or yields."""
    if isinstance(value, KeysView | ValuesView | ItemsView):
        return True
    return isinstance(value, Sequence | set | frozenset | Iterator)


def shortened(text: str, limit: int) -> str:
    """A text that somebody else wrote, in one line without control characters, and not too long."""
    escaped = "".join(map(_visible, text[: limit + 1]))
    return escaped if len(escaped) <= limit else f"{escaped[: limit - 1]}…"


def _visible(character: str) -> str:
    is_plain = character.isprintable() and character != "\\"
    return character if is_plain else character.encode("unicode_escape").decode("ascii")


def first_bytes(stream: IO[bytes], limit: int) -> Iterable[bytes]:
    """Read a stream to its end, and keep its first bytes only."""
    room = limit
    while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]  # a BufferedReader
        if room > 0:
            yield chunk[:room]
            room -= len(chunk)
