"""`miglab doctor`: what is wrong with this lab, and what to do about each finding.

Reads only; with `--egress` it also runs a container for a moment, with `--slurm` short jobs.  Exit
status 0: nothing found; 1: something found; 2: it could not look (no lab.toml).
"""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from miglab_hub.cli.root import Config
from miglab_hub.doctor import examine
from miglab_hub.plugins import plugin
from miglab_hub.settings.lab_toml import SCHEDULER, load
from miglab_hub.sign_in import check_identity
from miglab_pool.worker.health_findings import HealthFinding

FOUND = 1

app = typer.Typer(help="Find problems with the lab.", invoke_without_command=True)


@app.callback()
def doctor(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    egress: Annotated[
        bool,
        typer.Option(
            "--egress", help="Also test, from a container, what students can reach of the host."
        ),
    ] = False,
    slurm: Annotated[
        bool,
        typer.Option(
            "--slurm",
            help="Also submit a job of a minute to each partition, to see what its nodes lack.",
        ),
    ] = False,
) -> None:
    """Check settings, files, disk, driver, MIG mode, toolkit, Docker and the running pool.

    Of a lab on Slurm, check what the lab asks of the site: its daemons' settings, partitions,
    limits, and whether jobs are accepted.

    Exit status 0: no problems; 1: problems were found; 2: the check could not run.
    """
    settings = load(config)
    check_identity(settings)
    findings = examine(settings)
    if settings.is_on_slurm:
        findings += plugin("doctor", SCHEDULER)(settings, has_jobs=slurm)
    if egress:
        from miglab_hub.egress import examine_egress

        findings += examine_egress(settings)
    if as_json:
        ok = not any(finding.is_wrong for finding in findings)
        print(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}))
    else:
        _print(findings)
    if any(finding.is_wrong for finding in findings):
        raise typer.Exit(FOUND)


def _print(findings: list[HealthFinding]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for finding in findings:
        console.print(f"{finding.level.value:<5} {finding.subject}: {finding.found}")
        if finding.do:
            console.print(f"      → {finding.do}")
