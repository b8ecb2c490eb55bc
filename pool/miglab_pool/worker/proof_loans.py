"""GPUs under proof: lent to `miglab prove`, another process, for as long as it holds a lock.

Such a GPU takes no lease, and this process does not call NVML about it.  Which these are follows
from the lock and the record in the state folder, so that it ends by itself when that process dies,
and holds when this one is started anew.  What a dead run left is undone before its GPUs are open
again.
"""

from collections.abc import Iterator

from miglab_api.gpus import ProofLoan, SliceState
from miglab_pool.gpu.readings import GpuError, GpuLost, SliceStillListed
from miglab_pool.ledger.rows import GPU_OK, GpuRow
from miglab_pool.refused import Refused
from miglab_pool.reservations import feasible
from miglab_pool.state.lock import AlreadyRunning
from miglab_pool.state.proof_record import (
    UNDER_PROOF,
    ProofRecord,
    ProofRecordError,
    ProofSlice,
    new_record,
    restricted_to_gpus,
    undo_slices,
)
from miglab_pool.state.view import GpuSnapshot, PoolView
from miglab_pool.worker.inspect_gpu import Finding
from miglab_pool.worker.worker import Worker

LEFT_OVER, TRIED_AGAIN = "left over from a miglab prove", "is tried again"
LONGEST_S = 900.0  # a run takes ten minutes: only what is reserved until then is in its way


def lend_gpus(worker: Worker, cause: str) -> ProofLoan:
    """Lend every GPU without a lease to a proof: it takes no lease, and NVML is not called for it.

    Args:
        worker: the pool's.
        cause: who runs the proof, as the ledger names them.

    Raises:
        Refused: ``no-proof``: nobody holds the lock by which this would end; ``already-done``: GPUs
            are under proof already.
    """
    with worker.proof_turn, worker.store.lock:
        _check_proof_runs(worker)
        if worker.proof_folder.read() is not None:
            raise Refused("already-done", "GPUs are under proof already. Nothing was done.")
        _set_under_proof(worker, frozenset())  # of a run before this one, which undid it
        barred = {row.uuid: _bar_reason(worker, row) for row in worker.store.view().gpu_rows}
        gpus = _without_broken_reservations(worker, barred)
        worker.proof_folder.write(new_record(gpus))
        _set_under_proof(worker, frozenset(gpus))
        with worker.store.write() as tx:
            for uuid in gpus:
                tx.record(worker.store.state.gpus[uuid], cause, UNDER_PROOF, "prove")
    return ProofLoan(gpus=gpus, barred={uuid: reason for uuid, reason in barred.items() if reason})


def _check_proof_runs(worker: Worker) -> None:
    try:
        is_running = worker.proof_folder.is_running
    except OSError as error:
        raise Refused("no-proof", _unusable_message(error)) from error
    if not is_running:
        raise Refused("no-proof", "No `miglab prove` runs here: that asks for this by itself.")


def take_back_if_over(worker: Worker) -> list[Finding]:
    """Take back the GPUs of a proof that is over; called at start and on a timer.

    Returns:
        What stands in the way; a GPU that is tried again stays under proof until it is gone.
    """
    if not worker.proof_folder.is_used:
        return []
    with worker.proof_turn:
        try:
            record = worker.proof_folder.read()
            with worker.proof_folder.lock():
                return _take_back(worker, worker.proof_folder.read())
        except AlreadyRunning:
            _set_under_proof(worker, frozenset(record.gpus if record else ()))
            return []
        except ProofRecordError as error:
            problem = str(error)
        except OSError as error:
            problem = _unusable_message(error)
    return [Finding("gpu", worker.store.ledger.path.parent.name, problem)]


def _unusable_message(error: OSError) -> str:
    return (
        f"{error.filename} cannot be used ({error.strerror}); if another user ran miglab prove, "
        "give the file to the user of the pool service (chown), or delete it while no miglab prove "
        "runs"
    )


def _take_back(worker: Worker, record: ProofRecord | None) -> list[Finding]:
    """Undo what the run left, if anything; the caller holds its lock.

    A GPU is open again as soon as it is clear.  So is one that is lost, or that goes on listing
    what it says is destroyed: no further try mends these, and `inspect` knows what to do with them.
    """
    if record is None:
        _set_under_proof(worker, frozenset())
        return []
    _set_under_proof(worker, frozenset(record.gpus))
    if record.has_containers and not worker.holders.end_proof(record.run):
        remnant = f"{LEFT_OVER}: containers that the engine does not say are gone"
        return [Finding("gpu", ", ".join(record.gpus), remnant, TRIED_AGAIN)]
    problems = undo_slices(worker.driver, record, _ledger_slices(worker))
    still_lent = {gpu for gpu, errors in problems.items() if not all(map(_is_for_inspect, errors))}
    if still_lent:
        worker.proof_folder.write(restricted_to_gpus(record, still_lent))
    else:
        worker.proof_folder.delete()
    _set_under_proof(worker, frozenset(still_lent))
    return [
        Finding(
            "gpu",
            gpu,
            f"{LEFT_OVER}: {'; '.join(map(str, errors))}",
            TRIED_AGAIN if gpu in still_lent else "",
        )
        for gpu, errors in problems.items()
    ]


def _is_for_inspect(error: GpuError) -> bool:
    return isinstance(error, GpuLost | SliceStillListed)


def _ledger_slices(worker: Worker) -> set[ProofSlice]:
    with worker.store.lock:
        rows = worker.store.state.slices.values()
        return {ProofSlice(row.gpu, row.profile, row.start, row.size) for row in rows}


def _set_under_proof(worker: Worker, gpus: frozenset[str]) -> None:
    store = worker.store
    with store.lock:
        before = store.under_proof
        if before == gpus:
            return
        worker.acting = (worker.acting - before) | gpus
        store.under_proof = gpus
        store.publish_change((before | gpus) & store.state.gpus.keys())


def _bar_reason(worker: Worker, row: GpuRow) -> str:
    """Why a GPU is not lent; empty if nobody holds anything on it."""
    return next(_reasons_not_to_lend(worker, row), "")


def _reasons_not_to_lend(worker: Worker, row: GpuRow) -> Iterator[str]:
    """Yield the reasons not to lend a GPU, the most important first."""
    slices = worker.store.state.on_gpu[row.uuid].values()
    if row.state != GPU_OK or row.uuid not in worker.driver.uuids:
        yield f"it is {row.state}: {row.reason}"
    if any(slice_row.lease is not None for slice_row in slices):
        yield "a lease holds a slice on it" if row.mig else "a lease holds it"
    if row.draining:
        yield f"staff drained it: {row.draining}"
    if row.uuid in worker.acting:
        yield "the pool is working on it: try again in a moment"
    if row.mig is not True:
        yield "its MIG mode is off"
    if any(slice_row.state != SliceState.FREE for slice_row in slices):
        yield "a slice on it is not free"


def _without_broken_reservations(worker: Worker, barred: dict[str, str]) -> tuple[str, ...]:
    """The GPUs that can be lent together; one that a reservation needs gets its reason."""
    view = worker.store.view()
    lent: list[str] = []
    for uuid in [uuid for uuid, reason in barred.items() if not reason]:
        broken = feasible.broken_promises(view, _drained(view, (*lent, uuid)))
        if soon := [promise for promise in broken if promise.moment <= view.at + LONGEST_S]:
            barred[uuid] = " ".join(promise.message for promise in soon)
        else:
            lent.append(uuid)
    return tuple(lent)


def _drained(view: PoolView, gpus: tuple[str, ...]) -> dict[str, GpuSnapshot]:
    return view.gpus | {uuid: view.gpus[uuid].under_proof(UNDER_PROOF) for uuid in gpus}
