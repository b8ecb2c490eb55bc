"""The GPUs that lab.toml names, opened or simulated."""

import logging
from collections.abc import Callable

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.gpu.geometry import Geometry
from miglab_pool.gpu.readings import GpuError
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.simulated.rules import model_named
from miglab_pool.gpu.watched import open_watched
from miglab_pool.worker.worker import boot_id_or_unknown

log = logging.getLogger(__name__)


def geometries(settings: Settings) -> list[Geometry] | None:
    """Return the geometries of the lab's GPUs; create simulated ones if missing.

    Returns:
        None if not every GPU answers in time: then nobody knows.

    Raises:
        StartError: there is no driver.
    """
    try:
        make_simulated(settings)
        driver = open_watched(
            simulated_state=settings.simulated_state,
            gpu_uuids=settings.gpus.uuids or None,
            limit_s=settings.gpus.answer_s,
        )
        try:
            gpus = driver.gpus()
        finally:
            driver.close()
    except GpuError as error:
        raise StartError(f"{settings.file}: gpus: {error}") from error
    if silent := set(driver.uuids) - {gpu.uuid for gpu in gpus}:
        log.warning(
            "The lab starts without these GPUs, which do not answer: %s. The Health page and "
            "`miglab doctor` say why. Whether every shape of lab.toml fits is not known.",
            ", ".join(sorted(silent)),
        )
        return None
    return [gpu.geometry for gpu in gpus]


def read_boot_id(settings: Settings) -> Callable[[], str]:
    """Return the boot id of the machine with the GPUs: this host, or the simulated one."""
    folder = settings.simulated_state
    if folder is None:
        return boot_id_or_unknown
    machine = SimulatedMachine(folder)
    return lambda: str(machine.boots)


def make_simulated(settings: Settings) -> None:
    """Make the simulated machine, unless it is there.

    Raises:
        StartError: there is no such model, or the machine there is another.
    """
    folder = settings.simulated_state
    if folder is None:
        return
    try:
        models = [model_named(name).key for name in settings.gpus.simulate]
    except ValueError as error:
        raise StartError(f"{settings.file}: gpus.simulate: {error}") from error
    if not (folder / "state.json").exists():
        machine = SimulatedMachine.create(folder, models=models)
        for index in settings.gpus.whole:
            machine.set_mig(False, machine.state().gpus[int(index)].uuid)
        return
    present = [gpu.model for gpu in SimulatedMachine(folder).state().gpus]
    if present != models:
        raise StartError(
            f"{settings.file}: gpus: asks for {', '.join(models)}, but the machine in "
            f"{folder} has {', '.join(present)}: "
            f"set it back, or delete {settings.state} to begin anew"
        )
