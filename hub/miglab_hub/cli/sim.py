"""`miglab sim`: makes simulated GPUs, loads them and breaks them, by hand and from scripts."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from miglab_pool.gpu.simulated.machine import Break, SimulatedMachine, error_code
from miglab_pool.gpu.simulated.nvml import run_program  # noqa: TID251 -- as a program sees it
from miglab_pool.gpu.simulated.rules import models
from miglab_pool.gpu.simulated.state import Delays, StateError

BAD_INPUT = 2
DEFAULT_STATE = Path(".lab/gpus")


class SimCommands(TyperGroup):
    """Commands whose errors become one message and exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):  # which are errors at run time, and click's own
            raise
        except (StateError, LookupError, ValueError, RuntimeError, OSError) as error:
            print(f"miglab sim: {error.args[-1] if error.args else error}", file=sys.stderr)
            raise typer.Exit(BAD_INPUT) from None


app = typer.Typer(
    help="Create, show, load and break simulated GPUs.", no_args_is_help=True, cls=SimCommands
)
State = Annotated[
    Path,
    typer.Option("--state", help="The folder of the simulated machine.", envvar="MIGLAB_SIM_STATE"),
]
OnGpu = Annotated[str | None, typer.Option("--gpu", help="Index or UUID of the GPU; by default 0.")]


@app.command()
def create(
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 1,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(models())}.")] = "A100-40GB",
    state: State = DEFAULT_STATE,
    mig: Annotated[bool, typer.Option("--mig/--no-mig", help="Whether MIG is on.")] = True,
    create_s: Annotated[float, typer.Option(min=0, help="Seconds to create a slice.")] = 0.0,
    destroy_s: Annotated[float, typer.Option(min=0, help="Seconds to destroy a slice.")] = 0.0,
) -> None:
    """Create a simulated machine and print its GPUs' UUIDs."""
    delays = Delays(create_gpu_instance_s=create_s, destroy_gpu_instance_s=destroy_s)
    machine = SimulatedMachine.create(state, gpus, model, mig=mig, delays=delays)
    for gpu in machine.state().gpus:
        print(gpu.uuid)


@app.command()
def show(
    state: State = DEFAULT_STATE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the machine: GPUs, slices, processes, and what is broken."""
    machine = SimulatedMachine(state)
    if as_json:
        print(json.dumps(machine.view(), indent=1))
    else:
        _print(machine.view())


@app.command()
def process(
    pid: Annotated[int, typer.Argument(help="The process id.", min=1)],
    on: Annotated[
        str | None, typer.Option(help="UUID of the slice or GPU on which it runs.")
    ] = None,
    memory_mib: Annotated[
        int | None, typer.Option(help="GPU memory in MiB; without it, NVML reports none.", min=0)
    ] = None,
    activity_pct: Annotated[
        float, typer.Option(min=0, max=100, help="GPU activity in percent.")
    ] = 0.0,
    end: Annotated[bool, typer.Option("--end", help="End the process.")] = False,
    state: State = DEFAULT_STATE,
) -> None:
    """Run a process on a slice or GPU, change it, or end it."""
    machine = SimulatedMachine(state)
    if end:
        machine.remove_process(pid)
    elif on is None:
        raise LookupError("Give --on UUID to say where the process runs, or --end to end it.")
    else:
        machine.add_process(on, pid, memory_mib, activity_pct)


@app.command(name="break")
def break_(
    fault: Annotated[
        Break, typer.Argument(metavar="HOW", help="What to break; 'ok' repairs everything.")
    ],
    gpu: OnGpu = None,
    xid: Annotated[int, typer.Option(help="For 'xid': its number.", min=1)] = 79,
    function: Annotated[
        str | None,
        typer.Option(
            help="For 'fail' and 'hang': the NVML function, or the beginning of its name."
        ),
    ] = None,
    error: Annotated[
        str,
        typer.Option(
            help="For 'fail': the NVML error; SUCCESS: the call does nothing, and says it did."
        ),
    ] = "UNKNOWN",
    times: Annotated[int, typer.Option(help="For 'fail': how many calls fail.", min=1)] = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Break the machine or one of its GPUs, or repair it."""
    machine = SimulatedMachine(state)
    uuid = _gpu_uuid(machine, gpu)
    only = None if gpu is None else uuid
    if fault is Break.HANG:
        machine.hang(function or "", only)
    elif fault is not Break.FAIL:
        machine.break_gpu(fault, uuid, xid)
    elif function is None:
        raise LookupError("Give --function nvml… to say which function fails.")
    else:
        machine.fail_next(function, error_code(error), times, only)


@app.command()
def reboot(state: State = DEFAULT_STATE) -> None:
    """Reboot the machine: slices and processes are gone, and from Hopper on the MIG mode."""
    SimulatedMachine(state).reboot()


@app.command()
def mig(
    mode: Annotated[str, typer.Argument(help="on or off")],
    gpu: Annotated[
        str | None, typer.Option(help="Index or UUID of the GPU; by default all.")
    ] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Turn MIG on or off, with the necessary reset; refused while the GPU is in use."""
    if mode not in ("on", "off"):
        raise ValueError(f"The MIG mode is 'on' or 'off', not {mode!r}.")
    machine = SimulatedMachine(state)
    machine.set_mig(mode == "on", None if gpu is None else _gpu_uuid(machine, gpu))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    program: Annotated[list[str], typer.Argument(help="A Python program and its arguments.")],
    state: State = DEFAULT_STATE,
) -> None:
    """Run an unmodified Python program that uses pynvml (nvitop, gpustat) on the machine."""
    SimulatedMachine(state).state()
    run_program(program, state)


def _gpu_uuid(machine: SimulatedMachine, gpu: str | None) -> str:
    gpus = machine.state().gpus
    if gpu is None or gpu.isdecimal():
        index = int(gpu or 0)
        if index >= len(gpus):
            raise LookupError(f"There is no GPU {index}; there are {len(gpus)}.")
        return gpus[index].uuid
    return gpu


def _print(view: dict[str, Any]) -> None:
    out = Console()
    for gpu in view["gpus"]:
        out.print(_title(gpu), soft_wrap=True)
        table = Table(box=None)
        for column in ("uuid", "start:size", "profile", "state", "gi/ci", "processes"):
            table.add_column(column, no_wrap=column == "uuid")
        for part in gpu["slices"]:
            table.add_row(*_row(part, gpu["processes"]))
        if gpu["slices"]:
            out.print(table)
    for trouble in _problems(view):
        out.print(trouble)


def _title(gpu: dict[str, Any]) -> str:
    texts = [
        f"GPU {gpu['index']}",
        gpu["model"],
        gpu["uuid"],
        "MIG on" if gpu["mig"] else "MIG off",
    ]
    texts += [flag.upper() for flag in ("lost", "missing", "stuck") if gpu[flag]]
    if gpu["mig_pending"] != gpu["mig"]:
        texts.append(f"MIG {'on' if gpu['mig_pending'] else 'off'} pending")
    if gpu["ecc_errors"]:
        texts.append(f"{gpu['ecc_errors']} memory errors")
    if gpu["recovery_action"]:
        texts.append(f"recovery action {gpu['recovery_action']}")
    return "  ".join(texts)


def _row(part: dict[str, Any], processes: list[dict[str, Any]]) -> list[str]:
    ids = (part["gi_id"], part["ci_id"])
    pids = [str(p["pid"]) for p in processes if (p["gi_id"], p["ci_id"]) == ids]
    leaked = f" +{part['leaked_handles']} leaked handles" if part["leaked_handles"] else ""
    return [
        part["uuid"] or "-",
        f"{part['start']}:{part['size']}",
        part["profile"],
        part["state"],
        f"{ids[0]}/{'-' if ids[1] is None else ids[1]}",
        (", ".join(pids) or "-") + leaked,
    ]


def _problems(view: dict[str, Any]) -> list[str]:
    troubles = [f"requested failure: {fault}" for fault in view["faults"]]
    troubles += [f"hanging calls: {hang}" for hang in view["hangs"]]
    if not view["driver_loaded"]:
        troubles.append("the driver is not loaded")
    if not view["may_configure"]:
        troubles.append("creating and destroying slices is not permitted")
    return troubles
