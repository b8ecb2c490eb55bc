"""Runs a Python program written against pynvml over simulated GPUs, unchanged."""

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from miglab_pool.gpu.simulated.nvml import replace_library


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
