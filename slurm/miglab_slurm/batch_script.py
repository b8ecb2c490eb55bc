"""The script of a job: what the node's shell does, from the first line to the server.  Pure.

The server takes the place of the script and so runs in the job's own allocation.  In a step of
`srun` it would hold all that the job has: `srun` in a notebook's terminal would wait for ever, and
would read ``SLURM_CPU_BIND``, ``SLURM_STEP_ID`` and their like as its own orders.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from miglab_slurm import node_server
from miglab_slurm.commands import FOR_READING
from miglab_slurm.lab import SlurmShape, SlurmTables
from miglab_spawner import notebooks_copy

_LOGIN = """path=$PATH
. /etc/profile
PATH=$PATH:$path"""
"""What a login shell reads of the site's, where `module` is defined; of the student's, nothing.

A profile may set PATH anew, and Slurm's own commands need not be in that.
"""


def beginning(site: SlurmTables) -> str:
    """The lines before the server: they undo what only the lab's own commands need, and prepare.

    A batch script is no login shell, and the hub passes nothing of its own shell on: without the
    site's profile, `module` would be an unknown command in the prologue.
    """
    prologue = f"{_LOGIN}\n{site.prologue}\n" if site.prologue else ""
    return f"#!/bin/bash\nunset {' '.join(FOR_READING)}\n{prologue}"


def probe_script(site: SlurmTables, shape: SlurmShape, program: ModuleType, *arguments: str) -> str:
    """A job that runs a program of the standard library alone, where a server would run."""
    return f"{beginning(site)}exec {_python(site, shape, program)} {shlex.join(arguments)}\n"


def server_script(site: SlurmTables, shape: SlurmShape, ticket: Mapping[str, object]) -> str:
    """A server's job.  All that is a student's in it is names, and these are quoted.

    Args:
        site: the site's table.
        shape: the shape of the server.
        ticket: what `node_server` reads: where to ask, and as whom.
    """
    lines = [f"export MIGLAB_TICKET={shlex.quote(json.dumps(ticket))}"]
    if site.notebooks:
        copy = _python(site, shape, notebooks_copy)
        lines.insert(0, f"{copy} {shlex.quote(site.notebooks)} notebooks")
    lines.append(f"exec {_python(site, shape, node_server)}")
    return beginning(site) + "\n".join(lines) + "\n"


def _python(site: SlurmTables, shape: SlurmShape, program: ModuleType) -> str:
    """The command that runs a program of ours on the node, or in the container there."""
    assert program.__file__ is not None
    text = shlex.quote(Path(program.__file__).read_text(encoding="utf-8"))
    return f"{shape.launch or site.launch} {site.python} -c {text}".lstrip()
