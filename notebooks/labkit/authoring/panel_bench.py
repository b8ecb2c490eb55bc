"""Does a live panel disturb what it shows? Rounds with redraws against rounds without, in turns.

One child times blocks of work and waits for a line before each; in every other round this process,
which is the notebook's kernel, redraws a panel's widgets while the child measures. `in_a_kernel`
runs it through a real kernel (nbclient and ipykernel); `python -m labkit.authoring.panel_bench`
prints the ratio on over off with its interval as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from labkit import stats
from labkit.errors import ChildKilled, LabError
from labkit.evidence.evidence import Point
from labkit.panel.experiment import Experiment
from labkit.panel.panel import REDRAW_S, Panel
from labkit.records import Measurement, Tier
from labkit.run.child import child_env

ROUNDS = 200
BLOCK_S = 0.1  # of work per round: about what passes between two redraws
SIZES = {"cuda": 4096, "cpu": 512}
CELL = """import json
from labkit.authoring.panel_bench import measure
print(json.dumps(await measure({rounds})))"""


async def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """Alternate rounds with and without redraws; call it where the panel's kernel runs.

    Args:
        rounds: of each kind; at least 20.

    Returns:
        The ratio on over off, its interval, rounds and device.
    """
    panel, live = _panel()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "labkit.authoring.panel_bench",
        "--child",
        env=child_env(os.environ, {}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        device = (await _line(process)).strip()
        found: dict[bool, list[float]] = {True: [], False: []}
        for number in range(rounds):
            for is_on in (number % 2 == 0, number % 2 == 1):
                found[is_on].append(await _round(process, panel, live, is_on=is_on))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    low, high = stats.interval(found[True], found[False])
    ratio = float(stats.ratio(found[True], found[False]))
    ends = {"low": round(float(low), 4), "high": round(float(high), 4)}
    return {"ratio": round(ratio, 4), **ends, "rounds": rounds, "device": device}


async def _line(process: asyncio.subprocess.Process) -> str:
    said = await process.stdout.readline() if process.stdout else b""
    if not said:
        raise ChildKilled("The child that measures beside the panel ended without a word.")
    return said.decode()


async def _round(
    process: asyncio.subprocess.Process, panel: Panel, live: list[float], *, is_on: bool
) -> float:
    """One block in the child; with the panel on, redraws at its own pace until it is done."""
    if process.stdin is None:
        raise ChildKilled("The child that measures beside the panel has no stdin.")
    process.stdin.write(b"go\n")
    answer = asyncio.ensure_future(_line(process))
    while is_on and not answer.done():
        panel.show_live(_point(live))
        await asyncio.wait({answer}, timeout=REDRAW_S)
    live.append(float(await answer))
    return live[-1]


def _panel() -> tuple[Panel, list[float]]:
    experiment = Experiment("PANEL", "A panel on and off", "Does it disturb?", (), "x", "ms", "ms")
    panel = Panel(experiment, Path(tempfile.gettempdir()) / "labkit-no-evidence")
    panel._repr_mimebundle_()
    return panel, [1e-3]


def _point(live: list[float]) -> Point:
    record = Measurement("work", tuple(live[-80:]), Tier.CPU, (), "host", False)
    return Point(1.0, "work", live[-1] * 1e3, (record,))


def child() -> None:
    """Answer each line with the seconds per call of one block."""
    import torch

    from labkit.timing import make_clock, timing_loop

    place = "cuda" if torch.cuda.is_available() else "cpu"
    size = SIZES[place]
    a, b = (torch.randn(size, size, device=place) for _ in range(2))
    if place == "cuda":
        a, b = a.bfloat16(), b.bfloat16()
    clock = make_clock(torch, l2_bytes=0, cold=False)

    def block(inner: int) -> float:
        turns = timing_loop({"work": lambda: a @ b}, range(1), clock, inner, 1)
        return next(turn.seconds for found in turns for turn in found)

    block(20)
    inner = max(1, int(BLOCK_S / block(20)))
    print(torch.cuda.get_device_name() if place == "cuda" else "CPU", flush=True)
    for _ in sys.stdin:
        print(block(inner), flush=True)


def in_a_kernel(rounds: int = ROUNDS) -> dict[str, Any]:
    """Run `measure` as a notebook's cell, through a real kernel.

    Raises:
        LabError: nbclient or ipykernel is not installed.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as error:
        raise LabError(f"{error.name} is missing: a kernel needs nbclient, ipykernel.") from error
    make: Any = nbformat.v4
    notebook = make.new_notebook(cells=[make.new_code_cell(CELL.format(rounds=rounds))])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    said = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the ratio, or be the child."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args(arguments)
    if asked.child:
        child()
    else:
        print(json.dumps(in_a_kernel(asked.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
