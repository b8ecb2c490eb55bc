"""NVIDIA's MPS daemon, for copies that share a GPU at the same time rather than in turns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from labkit import errors

START_S = 20.0


@contextlib.asynccontextmanager
async def daemon() -> AsyncIterator[Mapping[str, str]]:
    """Run NVIDIA's MPS control daemon in a private folder, for as long as the block lasts.

    Raises:
        LabError: the daemon is not installed or does not start.
    """
    if shutil.which("nvidia-cuda-mps-control") is None:
        raise errors.LabError("MPS is not installed here (no nvidia-cuda-mps-control).")
    folder = Path(tempfile.mkdtemp(prefix="labkit-mps-"))
    added = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        status, said = await _control(["-d"], "", added)
        if status != 0:
            raise errors.LabError(f"MPS does not start here: {said.strip()[:200]}")
        try:
            yield added | _renumbered(os.environ)
        finally:
            await _control([], "quit -t 5\n", added)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _renumbered(environ: Mapping[str, str]) -> dict[str, str]:
    """How a copy names the first GPU: the daemon counts those it was given from 0, but keeps UUIDs.

    Source: NVIDIA, Multi-Process Service, "CUDA_VISIBLE_DEVICES", https://docs.nvidia.com/deploy/mps/
    """
    first = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return {"CUDA_VISIBLE_DEVICES": "0"} if first.isdecimal() else {}


async def _control(options: Sequence[str], text: str, added: Mapping[str, str]) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "nvidia-cuda-mps-control",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **added},
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(text.encode()), START_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"no answer within {START_S:g} s"
    return process.returncode or 0, said.decode(errors="replace")
