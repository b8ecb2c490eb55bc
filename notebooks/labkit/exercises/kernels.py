"""What notebook 3b needs to look at kernels: a compiler, memory held, Triton's way to a kernel.

All of it runs in the child, and wakes torch there; `has_compiler` alone only looks around.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.arguments import public
from labkit.errors import NotMeasured
from labkit.exercises.sharding import peak_mib
from labkit.machine.profiling import MIB

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"


@public
def has_compiler(on_gpu: bool) -> bool:
    """Whether `torch.compile` and Triton find a compiler here.

    Args:
        on_gpu: on a GPU Triton compiles a small launcher for its kernels, by `CC`, gcc or clang;
            on a CPU torch compiles C++ that it writes, by `CXX` or g++.
    """
    if on_gpu:
        return any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang"))))
    return shutil.which(os.environ.get("CXX", "g++")) is not None


@public
def held_mib(work: Callable[[], Any]) -> float:
    """Run something, and return the most MiB of tensors that it held beside what was there before.

    On a GPU the caching allocator counts, on a CPU PyTorch's profiler sees every allocation.
    """
    import torch

    if not torch.cuda.is_available():
        return peak_mib(work)
    work()  # libraries take their workspaces at the first call
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / MIB


@public
def compile_anew(function: Callable[..., Any], *inputs: Any) -> tuple[Callable[..., Any], float]:
    """Compile a function with an empty cache; return it, and the seconds until its first result.

    Raises:
        NotMeasured: there is no compiler here.
    """
    import torch
    from torch._inductor.utils import fresh_inductor_cache

    if not has_compiler(torch.cuda.is_available()):
        raise NotMeasured(
            "torch.compile needs a compiler, and there is none here: g++ on a CPU, gcc or clang on "
            "a GPU."
        )
    compiled = torch.compile(function, dynamic=False)
    with fresh_inductor_cache():
        started_s = time.perf_counter()
        compiled(*inputs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return compiled, time.perf_counter() - started_s


@public
def triton_softmax(source: str, name: str = "softmax_kernel") -> Callable[[Any, int], Any]:
    """Make a softmax over rows from the source of a Triton kernel; on a GPU only.

    Args:
        source: a function (x, y, columns, BLOCK) of which a program computes one row.
        name: the function's.

    Returns:
        A function of a matrix and a block's width, a power of two.
    """
    folder = Path(tempfile.mkdtemp(prefix="labkit-triton-"))  # Triton reads its kernels' files
    file = folder / "own_kernel.py"
    # a notebook has no `tl`, so that the mark stands there as a text
    text = textwrap.dedent(source).replace('"tl.constexpr"', "tl.constexpr")
    file.write_text(HEAD + text, encoding="utf-8")
    specification = importlib.util.spec_from_file_location("own_kernel", file)
    if specification is None or specification.loader is None:
        raise NotMeasured(f"Python cannot import {file}.")
    module = importlib.util.module_from_spec(specification)
    sys.modules["own_kernel"] = module
    specification.loader.exec_module(module)
    kernel = getattr(module, name)

    def softmax(x: Any, block: int) -> Any:
        y = x.new_full(x.shape, float("nan"))
        kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block)
        return y

    return softmax
