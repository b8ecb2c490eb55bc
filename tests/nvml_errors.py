"""NVML's functions that the product calls, its error codes, and a library that answers these.

The functions are found in the source, so one that is called from tomorrow on is in every table.
"""

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from miglab_pool.gpu.simulated.library import _gpu_index
from miglab_pool.gpu.simulated.nvml import SimulatedNvml

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "hub", "notebooks/labkit", "pool", "slurm", "spawner")
FUTURE = 12345  # of a driver that is not out yet
CODES = {
    **{
        name.removeprefix("NVML_ERROR_"): int(code)
        for name, code in vars(pynvml).items()
        if name.startswith("NVML_ERROR_")
    },
    "FUTURE": FUTURE,
}
SOME = ("GPU_IS_LOST", "INVALID_ARGUMENT", "FUNCTION_NOT_FOUND", "UNKNOWN", "FUTURE")
TABLES = [
    pytest.param({name: CODES[name] for name in SOME}, id="some"),
    pytest.param(CODES, id="all", marks=pytest.mark.long),
]
"""The codes by name: those that the code tells apart on the way, and all."""


def _is_function(name: str) -> bool:
    return name.startswith("nvml") and inspect.isfunction(getattr(pynvml, name, None))


def _names(source: str) -> Iterator[str]:
    """Every name that is read from a module or an object, or imported."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def called_functions() -> list[str]:
    """NVML's functions that the product calls, the simulation apart."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    sources = [file.read_text() for file in files if "simulated" not in file.parts]
    return sorted({name for source in sources for name in _names(source) if _is_function(name)})


FUNCTIONS = called_functions()


def hide_profile(monkeypatch: pytest.MonkeyPatch, enum: int) -> None:
    """From now on NVML lists no GPU-instance profile of this number, on any simulated GPU."""

    def answer(nvml: SimulatedNvml, gpu: Any, number: int, version: int) -> Any:
        if number == enum:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return nvml.__dict__["_names"]["nvmlDeviceGetGpuInstanceProfileInfo"](gpu, number, version)

    function = "nvmlDeviceGetGpuInstanceProfileInfo"
    monkeypatch.setattr(SimulatedNvml, function, answer, raising=False)


class FailingLibrary:
    """Under one pynvml: the calls of one function answer a code, all others go on as they are.

    Attributes:
        calls: how often each function was called, by its name in C.
        failures: how many calls have failed since it was told to.
        is_asked_of_none: whether one of them names no GPU, so that any may be concerned.
    """

    def __init__(self, nvml: SimulatedNvml) -> None:
        self.calls_of = Counter[str]()
        self.fail("")
        functions = nvml.library._functions
        functions.update({name: self._as_told(name, call) for name, call in functions.items()})

    def fail(self, function: str, code: int = 0, but: Collection[int] = ()) -> None:
        """From now on; no function: none fails any more.

        Args:
            function: how its name begins.
            code: what it answers.
            but: the indices of the GPUs about which it goes on as it is.
        """
        self._function, self._code, self._but = function, code, but
        self.failures, self.is_asked_of_none = 0, False

    def _as_told(self, name: str, call: Callable[..., int]) -> Callable[..., int]:
        def answer(*arguments: Any) -> int:
            self.calls_of[name] += 1
            fails = self._function and name.startswith(self._function)
            if not fails or _gpu_index(arguments) in self._but:
                return call(*arguments)
            self.failures += 1
            self.is_asked_of_none |= _gpu_index(arguments) is None
            return self._code

        return answer
