"""Simulated GPUs with pynvml's functions, over a state that processes share.

pynvml is a thin layer over a C library: it loads ``libnvidia-ml.so.1`` into a module variable and
calls its functions by name.  Here that library is replaced and nothing else, so that types,
constants, exceptions, version fall-backs and two-call protocols are pynvml's own.

    SimulatedNvml(folder)   an object used like the module pynvml, beside a real pynvml
    replace_library(folder) puts it under the module pynvml itself, for programs that import it

Runs a Python program written against pynvml over simulated GPUs, unchanged.
"""

import runpy
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import pynvml

from miglab_pool.gpu.simulated.library import Library
from miglab_pool.gpu.simulated.nvml_gpus import EventFunctions, GpuFunctions, error_string
from miglab_pool.gpu.simulated.nvml_mig import MigFunctions


class SimulatedLibrary(GpuFunctions, MigFunctions, EventFunctions, Library):
    """Every simulated NVML function, by its C name."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As ``Library``."""
        super().__init__(*arguments, **options)
        self._functions["nvmlErrorString"] = error_string  # type: ignore[assignment]


class SimulatedNvml:
    """Used like the module ``pynvml``; every function, type and constant of it is there.

    Attributes:
        simulated: True; the module pynvml has no such attribute.
    """

    simulated = True

    def __init__(
        self,
        folder: Path,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the machine in a folder; as with the real one, ``nvmlInit`` comes first."""
        self.library = SimulatedLibrary(Path(folder), sleep, now)
        self._names = _bind(self.library)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_names"][name]
        except KeyError:
            raise AttributeError(f"pynvml has no {name}") from None


def replace_library(folder: Path) -> None:
    """Put the simulated GPUs under the module pynvml of this process."""
    pynvml.nvmlLib = SimulatedLibrary(Path(folder))
    pynvml._nvmlGetFunctionPointer_cache.clear()


def _bind(library: Library) -> dict[str, Any]:
    """All names of pynvml, its functions bound to another library.

    Each function is the same code with other globals; the wrappers that convert text hold the
    function they wrap in a closure, which is bound likewise.
    """
    names: dict[str, Any] = dict(vars(pynvml))
    made: dict[FunctionType, FunctionType] = {}

    def bound(value: Any) -> Any:
        if not isinstance(value, FunctionType) or value.__globals__ is not vars(pynvml):
            return value
        if value not in made:
            cells = tuple(CellType(bound(cell.cell_contents)) for cell in value.__closure__ or ())
            made[value] = FunctionType(
                value.__code__, names, value.__name__, value.__defaults__, cells or None
            )
            made[value].__doc__ = value.__doc__
            made[value].__kwdefaults__ = value.__kwdefaults__
        return made[value]

    names.update({name: bound(value) for name, value in vars(pynvml).items()})
    names.update(
        nvmlLib=library,
        _nvmlLib_refcount=0,
        _nvmlGetFunctionPointer_cache={},
        libLoadLock=threading.Lock(),
    )
    return names


def run_program(program: Sequence[str], folder: Path) -> None:
    """Run a program in this process, with the simulated library under its pynvml.

    Programs that it starts in turn see the real library.

    Args:
        program: ``-m MODULE``, a Python file, or a command installed beside this interpreter or
            on the path; then its arguments.
        folder: the simulated machine.

    Raises:
        LookupError: there is no such program, or it is not Python.
    """
    name, *arguments = program
    if name == "-m":
        if not arguments:
            raise LookupError("-m needs the name of a module.")
        replace_library(folder)
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    path = _find(name)
    replace_library(folder)
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


def _find(name: str) -> Path:
    beside = Path(sys.executable).parent / name
    found = next((p for p in (Path(name), beside) if p.is_file()), None)
    on_path = shutil.which(name)
    path = found or (Path(on_path) if on_path else None)
    if path is None:
        raise LookupError(
            f"There is no program {name}; give -m MODULE, a Python file or a command."
        )
    first = path.read_bytes()[:200].split(b"\n")[0]
    if path.suffix != ".py" and b"python" not in first:
        raise LookupError(f"{path} is not a Python program.")
    return path
