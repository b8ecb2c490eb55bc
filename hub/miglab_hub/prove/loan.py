"""GPUs that nobody holds, for the time of a run: of the running pool, or under its lock.

While the lab is up the pool says which GPUs these are, and keeps leases and its own calls off them
for as long as this process holds the proof's lock.  While the lab is down this process holds the
pool's lock, and a GPU is free if nothing at all lies on it: who holds a slice only the pool knows.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi
from miglab_hub.prove.pace import wait_until
from miglab_hub.prove.trial import Journal, existing_slices, read_gpus
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.gpu.proof_driver import WatchedProofDriver
from miglab_pool.state.lock import GPU_LOCKS, AlreadyRunning, PoolLock, lock_gpus
from miglab_pool.state.proof_record import (
    ProofFolder,
    ProofLock,
    ProofRecord,
    ProofRecordError,
    new_record,
    undo_slices,
)
from miglab_pool.worker.holders import HostHolders

LOCK_S = 2.0  # the pool takes the lock for an instant to see whether anybody holds it
MIG_OFF = "its MIG mode is off"
UP, DOWN = "up", "down"


@dataclass(frozen=True)
class FreeGpus:
    """GPUs on loan.

    Attributes:
        journal: of the run.
        barred: why a GPU is not among them, by UUID.
        lab: whether the lab is `UP` or `DOWN`.
        holders: the engine, for the run's containers.
    """

    journal: Journal
    barred: Mapping[str, str]
    lab: str
    holders: HostHolders

    def undo(self, driver: WatchedProofDriver) -> list[str]:
        """Remove and destroy what the run has announced and not undone; what stays, in words."""
        return undo(driver, self.holders, self.journal.record)


def undo(driver: WatchedProofDriver, holders: HostHolders, record: ProofRecord) -> list[str]:
    """Remove a run's containers and destroy its slices; what could not be undone, in words."""
    if record.has_containers and not holders.end_proof(record.run):
        return ["containers that the engine does not say are gone"]
    problems = undo_slices(driver, record)
    return [str(error) for errors in problems.values() for error in errors]


@contextmanager
def gpus_on_loan(settings: Settings, driver: WatchedProofDriver) -> Iterator[FreeGpus]:
    """Keep leases off the GPUs that nobody holds, until the block ends or this process dies.

    Raises:
        StartError: another proof runs, or one before it cannot be undone.
        AlreadyRunning: another lab has one of the GPUs.
    """
    folder, holders = ProofFolder(settings.state), _holders(settings)
    with ExitStack() as borrowing:
        lock = borrowing.enter_context(_take_lock(folder, settings))
        try:
            borrowing.enter_context(PoolLock(settings.pool_lock))
        except AlreadyRunning:
            pool = borrowing.enter_context(_pool(settings))
            borrowing.callback(_give_back, pool, lock)
            _undo_earlier(folder, driver, holders)
            barred, lab = _borrow_from_pool(pool), UP
        else:
            borrowing.enter_context(lock_gpus(settings.simulated_state or GPU_LOCKS, driver.uuids))
            _undo_earlier(folder, driver, holders)
            barred, lab = _borrow_by_lock(driver, folder), DOWN
        free_gpus = FreeGpus(Journal(folder, _record(folder)), barred, lab, holders)
        try:
            yield free_gpus
        finally:
            if not free_gpus.undo(driver):
                folder.delete()


def _borrow_from_pool(pool: PoolApi) -> dict[str, str]:
    """Borrow GPUs from the pool, which writes the record; return why it keeps the others."""
    barred: dict[str, str] = pool.call("POST", "/proof")["barred"]
    return barred


def _borrow_by_lock(driver: WatchedProofDriver, folder: ProofFolder) -> dict[str, str]:
    """Write empty GPUs into the record; return why the others may not be used."""
    barred = occupied_gpus(driver)
    folder.write(new_record(uuid for uuid in driver.uuids if uuid not in barred))
    return barred


def occupied_gpus(driver: WatchedProofDriver) -> dict[str, str]:
    """Return why GPUs may not be partitioned, by what NVML shows alone."""
    infos, unread = read_gpus(driver)
    slices_by_gpu = existing_slices(infos, driver.slices)
    barred = dict(unread)
    for uuid, info in infos.items():
        if info.mig is not True:
            barred[uuid] = MIG_OFF
        elif uuid not in slices_by_gpu:
            barred[uuid] = "its slices cannot be read"
        elif slices_by_gpu[uuid]:
            barred[uuid] = (
                f"{len(slices_by_gpu[uuid])} slices lie on it, and only the running pool knows "
                "whether anybody holds them: start the lab and try again"
            )
    return barred


def _take_lock(folder: ProofFolder, settings: Settings) -> ProofLock:
    """Take the proof's lock, which the pool may hold for an instant.

    Raises:
        StartError: the state folder cannot be written.
        AlreadyRunning: another proof runs.
    """
    locks: list[ProofLock] = []

    def take() -> bool:
        with suppress(AlreadyRunning):
            locks.append(folder.lock())
        return bool(locks)

    try:
        return locks[0] if wait_until(take, LOCK_S) else folder.lock()
    except OSError as error:
        advice = "run this as the user of the pool service"
        raise StartError(
            f"{settings.state} cannot be written ({error.strerror}): {advice}"
        ) from error


def _undo_earlier(folder: ProofFolder, driver: WatchedProofDriver, holders: HostHolders) -> None:
    """Undo what an earlier run left when it died."""
    try:
        record = folder.read()
    except ProofRecordError as error:
        raise StartError(str(error)) from error
    if record is None:
        return
    if problems := undo(driver, holders, record):
        reasons = "; ".join(problems)
        raise StartError(f"an earlier miglab prove left things that cannot be undone: {reasons}")
    folder.delete()


def _record(folder: ProofFolder) -> ProofRecord:
    record = folder.read()
    if record is None:
        raise StartError("the pool did not write down which GPUs it lends: see its log")
    return record


def _pool(settings: Settings) -> PoolApi:
    try:
        return PoolApi(settings.pool_url, lab_secrets.read(settings.pool_secret))
    except OSError as error:
        raise StartError(f"{settings.pool_secret} cannot be read: {error.strerror}") from error


def _give_back(pool: PoolApi, lock: ProofLock) -> None:
    """Return the GPUs to the pool at once, rather than at its next reconcile."""
    lock.release()
    with suppress(StartError):
        pool.call("DELETE", "/proof")


def _holders(settings: Settings) -> HostHolders:
    is_docker = settings.servers.spawner == "docker"
    return HostHolders(settings.docker_url if is_docker else "", settings.lab_id)
