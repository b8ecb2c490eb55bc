"""A run on a lab, on a simulated one, or on a machine without any."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from miglab_hub.prove.lines import LineAnswer
from miglab_hub.prove.pace import choose_pace
from miglab_hub.prove.report import Report
from miglab_hub.prove.run import RunClock, Show, check_restored, make_report, prove
from miglab_hub.prove.trial import ContainerSettings, Journal, Trial, existing_slices, read_gpus
from miglab_pool.gpu.proof_driver import WatchedProofDriver, open_for_proof
from miglab_pool.state.proof_record import ProofRecord

if TYPE_CHECKING:
    from miglab_hub.settings.lab_toml import Settings

LIMIT_S = 60.0  # of a driver call, at least
PATIENCE = 2  # times as long as the pool waits, so that a call that is slow is measured
READ_ONLY = "this run reads only"
NO_LAB = "none"
OUR_NAMES = {"miglab", "miglab-student", "everyone"}  # the defaults of lab.toml say nothing
SIMULATED = """\
[gpus]
simulate = ["A100-40GB", "A100-40GB"]

[lab]
subdomain_host = "http://lab.localhost:8000"

[courses.everyone]
shapes = ["1g.5gb"]
"""


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        is_quick: three minutes in place of ten.
        is_read_only: change nothing.
        runs_programs: run a CUDA program of this host on an idle GPU.
    """

    is_quick: bool = False
    is_read_only: bool = False
    runs_programs: bool = False


@dataclass(frozen=True)
class Proof:
    """The results of a run, and the names that its file must not contain.

    Attributes:
        report: of the run.
        gpus: the UUIDs, as the report numbers them.
        names: names of the site.
    """

    report: Report
    gpus: Sequence[str]
    names: Sequence[str] = ()


def prove_lab(settings: "Settings", options: Options, show: Show) -> Proof:
    """Try every line on the GPUs of a lab that nobody holds.

    Args:
        settings: the lab's.
        options: of the command line.
        show: told each answer as soon as it is there.

    Raises:
        StartError: another run is at work, or left something that cannot be undone; or it is a lab
            on Slurm.
        AlreadyRunning: another lab has one of the GPUs.
        GpuError: there is no driver.
    """
    from miglab_hub.errors import StartError
    from miglab_hub.service.gpus import make_simulated

    if settings.is_on_slurm:
        raise StartError("the GPUs of a lab on Slurm are Slurm's: miglab prove is for the pool's")
    make_simulated(settings)
    with _open_driver(
        settings.simulated_state, settings.gpus.uuids or None, call_limit_s(settings)
    ) as driver:
        if options.is_read_only:
            proof = _prove_read_only(driver, options, show, settings.simulated_state)
        else:
            proof = _prove_on_loan(settings, driver, options, show)
    return Proof(proof.report, proof.gpus, site_names(settings))


def prove_simulated(options: Options, show: Show) -> Proof:
    """Try every line on a simulated lab that is made for it, and removed afterwards."""
    from miglab_hub.settings.lab_toml import load

    with tempfile.TemporaryDirectory(prefix="miglab-prove-") as folder:
        file = Path(folder) / "lab.toml"
        file.write_text(SIMULATED)
        settings = load(file)
        servers = settings.servers.model_copy(update={"spawner": "docker"})
        return prove_lab(settings.model_copy(update={"servers": servers}), options, show)


def prove_host(options: Options, show: Show) -> Proof:
    """Try on this host, without a lab, what changes nothing.

    Raises:
        GpuError: there is no driver.
    """
    with _open_driver(None, None) as driver:
        return _prove_read_only(driver, options, show, None, has_lab=False)


def call_limit_s(settings: "Settings") -> float:
    """Return the limit of a driver call, seconds: longer than the pool's own."""
    return max(LIMIT_S, PATIENCE * settings.gpus.change_s)


def site_names(settings: "Settings") -> list[str]:
    """Return names that identify the site, to be redacted."""
    lab, servers = settings.lab, settings.servers
    of_site = {lab.name, lab.title, lab.subdomain_host, servers.image, *settings.courses}
    return sorted(of_site - OUR_NAMES)


def _prove_on_loan(
    settings: "Settings", driver: WatchedProofDriver, options: Options, show: Show
) -> Proof:
    from miglab_hub.prove.loan import gpus_on_loan

    watch = RunClock()
    with gpus_on_loan(settings, driver) as loan:
        trial = _trial(driver, loan.barred, loan.journal, options, settings.simulated_state)
        trial.servers, trial.no_servers = _servers(settings)
        answers = prove(trial, show)
        last = check_restored(trial, loan.undo(driver))
        show(last)
        return _proof(trial, [*answers, last], watch, options, loan.lab)


def _prove_read_only(
    driver: WatchedProofDriver,
    options: Options,
    show: Show,
    simulated_state: Path | None,
    *,
    has_lab: bool = True,
) -> Proof:
    watch = RunClock()
    barred = dict.fromkeys(driver.uuids, READ_ONLY)
    for uuid, info in read_gpus(driver)[0].items():
        if info.mig is not True:
            barred[uuid] = f"its MIG mode is {'off' if info.mig is False else 'unknown'}"
    journal = Journal(None, ProofRecord(""))
    trial = _trial(driver, barred, journal, options, simulated_state)
    trial.has_lab = has_lab
    answers = prove(trial, show)
    last = check_restored(trial, [])
    show(last)
    return _proof(trial, [*answers, last], watch, options, NO_LAB)


def _trial(
    driver: WatchedProofDriver,
    barred: Mapping[str, str],
    journal: Journal,
    options: Options,
    simulated_state: Path | None,
) -> Trial:
    infos, unread = read_gpus(driver)
    pace = choose_pace(is_quick=options.is_quick, is_simulated=simulated_state is not None)
    return Trial(
        driver,
        infos,
        unread,
        barred,
        journal,
        pace,
        runs_programs=options.runs_programs,
        simulated_state=simulated_state,
        before=existing_slices(infos, driver.slices),
    )


def _servers(settings: "Settings") -> tuple[ContainerSettings | None, str]:
    servers = settings.servers
    if servers.spawner != "docker":
        return None, "students' servers are no containers in this lab"
    return ContainerSettings(
        settings.docker_url, servers.image, settings.shape_limits, servers.disk_gib
    ), ""


def _proof(
    trial: Trial, answers: Sequence[LineAnswer], watch: RunClock, options: Options, lab: str
) -> Proof:
    report = make_report(
        trial,
        answers,
        watch,
        is_quick=options.is_quick,
        is_read_only=options.is_read_only or lab == NO_LAB,
        lab=lab,
    )
    return Proof(report, trial.driver.uuids)


@contextmanager
def _open_driver(
    simulated_state: Path | None, gpu_uuids: Sequence[str] | None, limit_s: float = LIMIT_S
) -> Iterator[WatchedProofDriver]:
    driver = open_for_proof(simulated_state=simulated_state, gpu_uuids=gpu_uuids, limit_s=limit_s)
    try:
        yield driver
    finally:
        driver.close()
