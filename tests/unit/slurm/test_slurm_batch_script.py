"""The script of a job, as a real shell runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from miglab_slurm import node_probe
from miglab_slurm.batch_script import probe_script, server_script
from miglab_slurm.commands import FOR_READING
from miglab_slurm.lab import SlurmSite

TICKET = {"url": "http://hub", "report": {"tag": {"user": "o'hara $(id)"}}}
TELLS = """#!/bin/sh
printf '%s\\n' "$PPID" "$MIGLAB_TICKET" "$PATH" "${LC_ALL-none} ${SLURM_TIME_FORMAT-none}"
echo "$#"
"""


def site_of(folder: Path, **keys: object) -> SlurmSite:
    """A site whose Python only tells what it was given."""
    python = folder / "python"
    python.write_text(TELLS)
    python.chmod(0o755)
    table = {"partition": "lab", "python": str(python), "shapes": {"cpu": {}}, **keys}
    return SlurmSite.model_validate(table)


def run(script: str) -> list[str]:
    """What a script prints, whose shell gets what the lab's commands get."""
    environment = {"PATH": f"/opt/slurm/bin:{os.environ['PATH']}", **FOR_READING}
    ended = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


@pytest.mark.parametrize("prologue", ["", "export PATH=/apps/jupyter:$PATH"])
def test_the_server_takes_the_place_of_the_script(tmp_path: Path, prologue: str) -> None:
    """It is the shell's own process, knows its ticket, and gets nothing of the lab's readings."""
    site = site_of(tmp_path, prologue=prologue)
    parent, ticket, path, readings, arguments = run(server_script(site, site.shapes["cpu"], TICKET))
    assert (parent, arguments) == (str(os.getpid()), "2")
    assert json.loads(ticket) == TICKET
    assert readings == "none none"
    assert path.startswith("/apps/jupyter:") is bool(prologue)
    assert "/opt/slurm/bin" in path.split(":")


def test_the_prologue_runs_after_the_sites_profile(tmp_path: Path) -> None:
    """As in a login shell, which a batch script is not; without a prologue no profile is read."""
    shape = (site := site_of(tmp_path, prologue="module load jupyter")).shapes["cpu"]
    lines = server_script(site, shape, TICKET).splitlines()
    assert lines.index(". /etc/profile") < lines.index("module load jupyter")
    assert "/etc/profile" not in server_script(site_of(tmp_path), shape, TICKET)


def test_new_notebooks_are_copied_before_the_server_runs(tmp_path: Path) -> None:
    """By the same Python, below the same launcher."""
    site = site_of(tmp_path, notebooks="/apps/my notebooks", launch="env")
    copied = run(server_script(site, site.shapes["cpu"], TICKET))
    assert [copied[4], copied[9]] == ["4", "2"]


def test_a_probe_runs_where_a_server_would(tmp_path: Path) -> None:
    """Its exit status is the job's."""
    site = site_of(tmp_path).model_copy(update={"python": sys.executable})
    present, absent = (tmp_path / "python").as_uri(), (tmp_path / "absent").as_uri()
    script = probe_script(site, site.shapes["cpu"], node_probe, "0.0", present, absent)
    ended = subprocess.run(["bash", "-c", script])
    assert ended.returncode == node_probe.HUB + node_probe.NO_LISTENER
