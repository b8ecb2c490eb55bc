"""The `miglab` command, which `./lab` runs too.  Bad input gets one message and exit status 2.

The commands for the lab as a whole are here, and import what they need when they run.  Of the other
tools the one that was asked for is loaded, and no other.  What a checkout adds (`bench`, `check`,
`test`) comes by the entry points `miglab.commands`.
"""

import json
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from miglab_api.plain_text import one_line
from miglab_hub import __version__
from miglab_hub.errors import StartError
from miglab_hub.plugins import plugin
from miglab_hub.settings.lab_toml import ENV_CONFIG, SCHEDULER, Settings, load
from miglab_pool.gpu.readings import GpuError
from miglab_pool.state.lock import AlreadyRunning

if TYPE_CHECKING:
    from miglab_pool.worker.health_findings import HealthFinding

PROBLEMS_FOUND = 1
BAD_INPUT = 2
INTERRUPTED = 130
COMMANDS_GROUP = "miglab.commands"
OWN_APP = ""
COMMANDS = {
    "up": OWN_APP,
    "pool": "miglab_hub.cli.pool",
    "production": "miglab_hub.cli.production",
    "sim": "miglab_hub.cli.sim",
    "doctor": OWN_APP,
    "prove": OWN_APP,
    "roster": "miglab_hub.cli.roster",
    "backup": OWN_APP,
    "restore": OWN_APP,
    "ledger": "miglab_hub.cli.ledger",
    "forget": OWN_APP,
}
"""Each command, and the module whose ``app`` it is."""

Config = Annotated[Path | None, typer.Option(help="The settings file.", envvar=ENV_CONFIG)]


class Commands(TyperGroup):
    """The commands by name; a command's module is imported when it runs or shows its help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the lab's own commands, then of added ones."""
        return list(_modules())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of that name; None if there is none."""
        module = _modules().get(cmd_name, OWN_APP)
        if module == OWN_APP:
            return super().get_command(ctx, cmd_name)
        command: Any = typer.main.get_command(import_module(module).app)
        command.name = cmd_name
        return command


def _modules() -> dict[str, str]:
    added = sorted((point.name, point.module) for point in entry_points(group=COMMANDS_GROUP))
    return COMMANDS | dict(added)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def miglab(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which miglab this is."
        ),
    ] = False,
) -> None:
    """A JupyterHub teaching lab on shared GPUs, in which each student gets a MIG slice."""


@app.command()
def up(
    config: Annotated[Path, typer.Option(help="The settings file.", envvar=ENV_CONFIG)] = Path(
        "lab.toml"
    ),
    port: Annotated[int | None, typer.Option(help="Overrides lab.port.", min=1, max=65531)] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Run a trial lab with a class of simulated students instead, in the folder "
            ".lab-demo beside the settings file.",
        ),
    ] = False,
) -> None:
    """Run the lab in the foreground until Ctrl-C."""
    from miglab_hub.launch.up import up

    raise typer.Exit(up(config, port, demo=demo))


@app.command()
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
    """Find problems with the lab.

    Check settings, files, disk, driver, MIG mode, toolkit, Docker and the running pool.

    Of a lab on Slurm, check its daemons' settings, partitions and limits, and that it takes jobs.

    Exit status 0: no problems; 1: problems were found; 2: the check could not run.
    """
    settings = load(config)
    findings = _doctor_findings(settings, egress=egress, slurm=slurm)
    is_wrong = any(finding.is_wrong for finding in findings)
    if as_json:
        rows = [
            {"subject": f.subject, "level": f.level, "found": f.observation, "do": f.remedy}
            for f in findings
        ]
        print(json.dumps({"ok": not is_wrong, "findings": rows}))
    else:
        _print_findings(findings)
        if not (settings.gpus.simulated or settings.is_on_slurm):
            print("To try what the lab assumes of this host: miglab prove")
    if is_wrong:
        raise typer.Exit(PROBLEMS_FOUND)


def _doctor_findings(settings: Settings, *, egress: bool, slurm: bool) -> "list[HealthFinding]":
    from miglab_hub.doctor import examine
    from miglab_hub.sign_in import check_identity

    check_identity(settings)
    findings = examine(settings)
    if settings.is_on_slurm:
        findings += plugin("doctor", SCHEDULER)(settings, has_jobs=slurm)
    if egress:
        from miglab_hub.egress import examine_egress

        findings += examine_egress(settings)
    return findings


def _print_findings(findings: "Iterable[HealthFinding]") -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for finding in findings:
        line = f"{finding.level.value:<5} {finding.subject}: {finding.observation}"
        console.print(one_line(line))
        if finding.remedy:
            console.print(f"      → {finding.remedy}")


@app.command()
def prove(
    config: Config = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take at most three minutes in place of ten.")
    ] = False,
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="Use two simulated GPUs, made for this run, in place of the lab's."
        ),
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Change nothing: make no slice and no container.")
    ] = False,
    program: Annotated[
        bool,
        typer.Option(
            "--program", help="Also run a PyTorch program of this host on an idle GPU without MIG."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; by default miglab-proof-TIME.json in this folder."),
    ] = None,
) -> None:
    """Try on this host what the lab assumes of GPUs, driver, engine and toolkit.

    It makes and destroys slices and starts students' containers, only on GPUs that nobody holds;
    the lab may be running. Everything is as before when it ends.

    Exit status 0: no line failed; 1: a line failed; 2: the proof could not run.
    """
    from miglab_hub.prove.command import (
        print_line_answer,
        print_summary,
        proof_file,
        undo_on_sigterm,
    )
    from miglab_hub.prove.report import write_report
    from miglab_hub.prove.session import Options, prove_lab, prove_simulated

    options = Options(is_quick=quick, is_read_only=read_only, runs_programs=program)
    undo_on_sigterm()
    if simulated:
        proof = prove_simulated(options, print_line_answer)
    else:
        proof = prove_lab(load(config), options, print_line_answer)
    file = proof_file(out)
    write_report(proof.report, file, proof.gpus, proof.names)
    if status := print_summary(proof.report, file):
        raise typer.Exit(status)


@app.command()
def backup(
    target: Annotated[
        Path | None,
        typer.Argument(help="The file to write; by default LAB-TIME.tar in this folder."),
    ] = None,
    config: Config = None,
) -> None:
    """Copy the ledger, the hub's database and the secrets into one file; the lab may keep running.

    Homes and lab.toml are not part of it.  Keep the file as secret as the state folder.
    """
    from miglab_hub.backup import backup_name, make_backup

    settings = load(config)
    file = (target or Path(backup_name(settings))).absolute()
    manifest = make_backup(settings, file)
    print(f"{file}: {', '.join(manifest.files)}, as of {manifest.made_at}")


@app.command()
def restore(
    archive: Annotated[Path, typer.Argument(help="A file that `miglab backup` wrote.")],
    new_host: Annotated[
        bool,
        typer.Option(
            "--new-host",
            help="The backup's containers are gone for good, because this is another host or "
            "engine; free their slices.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Restore a backup; existing files are moved aside.  Refused while hub or pool run."""
    from miglab_hub.backup import restore_backup

    settings = load(config, running=False)
    result = restore_backup(settings, archive, new_host=new_host)
    print(f"restored as of {result.manifest.made_at}: {', '.join(result.manifest.files)}")
    print(
        f"live leases: {result.leases}; the slices of servers that have ended since will be freed"
    )
    print(f"the previous files are in {result.aside}; delete them when all is well")
    print("servers started since are left alone: run `miglab doctor` once the lab is running")


@app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The person's user name at the hub.")],
    export: Annotated[
        Path, typer.Option(help="The file to write with everything that is kept (JSON).")
    ],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="Delete it afterwards; without this, only the export is made."
        ),
    ] = False,
    keep_home: Annotated[
        bool, typer.Option("--keep-home", help="Keep the person's files.")
    ] = False,
    config: Config = None,
) -> None:
    """Export what is kept of a person; with --erase, delete account and home, use a pseudonym.

    Refused while hub or pool run, and while the person holds a server, a lease or a ticket.
    """
    from miglab_hub import forget as forgetting
    from miglab_hub.backup import lab_at_rest

    settings = load(config, running=False)
    with lab_at_rest(settings):
        records = forgetting.collect_records(settings, user)
        forgetting.write_export(records, export)
        print(f"everything that is kept of {user} has been written to {export}")
        if not forgetting.has_records(records):
            print(
                f"the lab has no account, lease or ticket of {user}: is that the name at the hub?"
            )
            if erase:
                raise StartError(f"nothing was erased, because nothing is kept of {user}")
        if not erase:
            print("nothing was changed; use --erase to delete it")
            return
        result = forgetting.forget(settings, user, keep_home=keep_home)
    changed = ", ".join(f"{table}: {count}" for table, count in result.changed.items())
    print(f"{user} is now called {result.pseudonym}; rows changed: {changed or 'none'}")
    print(f"home deleted: {result.home}" if result.home else "no home was deleted")
    for mention in result.mentions:
        print(f"{mention} still has the name: remove it there")
    print(
        "backups, what a restore moved aside, and old logs still have the name: delete those that "
        "you do not need"
    )


def main() -> None:
    """Run the command line; known errors are one message and an exit status (docs/reference)."""
    try:
        app()
    except (StartError, AlreadyRunning, GpuError) as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_status", BAD_INPUT)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
