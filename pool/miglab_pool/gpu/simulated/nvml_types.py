"""Reads and writes the C arguments that pynvml passes to its library."""

import ctypes
from typing import Any

_POINTER_SIZE = ctypes.sizeof(ctypes.c_void_p)


def number(argument: Any) -> int:
    """An integer argument, given as such or as a ctypes integer."""
    return int(getattr(argument, "value", argument))


def target(reference: Any) -> Any:
    """What ``byref(x)``, a pointer or an array argument refers to; None for a null pointer."""
    if reference is None:
        return None
    if hasattr(reference, "_obj"):  # byref()
        return reference._obj
    return getattr(reference, "contents", reference)


def put(reference: Any, value: float) -> None:
    """Write a number through a reference."""
    target(reference).value = value


def put_text(buffer: Any, text: str) -> bool:
    """Write a string into a character buffer; False if it is too small."""
    data = text.encode()
    if len(data) + 1 > len(buffer):
        return False
    buffer.value = data
    return True


def put_handle(reference: Any, handle: int, index: int = 0) -> None:
    """Write an opaque handle through a reference, or into an array of handles."""
    address = ctypes.addressof(target(reference)) + index * _POINTER_SIZE
    ctypes.c_void_p.from_address(address).value = handle


def handle_number(handle: Any) -> int:
    """The number behind an opaque handle; 0 for a null one."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
