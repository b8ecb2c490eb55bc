"""Reconciles ledger, holders and NVML, at start and on a timer.

It completes what a crash interrupted, and records what happened meanwhile.  No step is destructive
on an unknown answer.  A container is removed only if its lease, by id and generation, is of this
ledger and over, and a running one only if it was attached to that lease.  A slice is freed only if
its holder is confirmed gone.
"""

from miglab_api.holders import CONTAINER
from miglab_api.leases import Fence
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.refused import Refused
from miglab_pool.worker import inspect_gpu, proof_loans
from miglab_pool.worker.destruction import quarantine_claimed
from miglab_pool.worker.holders import LabelledContainer
from miglab_pool.worker.inspect_gpu import Finding
from miglab_pool.worker.probe import probe
from miglab_pool.worker.worker import Claim, Worker

LARGEST_LEASE = 2**53  # a label may say anything


def reconcile_holders(worker: Worker) -> list[Finding]:
    """Reconcile everything that needs no GPU: the engine, proofs that are over, containers.

    Every finding, of this and of the other steps, is also in the ledger, as a transition.
    """
    findings = check_engine(worker)
    findings += proof_loans.take_back_if_over(worker)
    findings += remove_stray_containers(worker)
    inspect_gpu.mark_unlisted_gpus(worker)
    return findings


def check_engine(worker: Worker) -> list[Finding]:
    """Check that the engine that answers is the one with the leases' containers.

    Another one (a changed `docker_url`, a rootless engine, an engine that lost its data) would
    report them all as gone.  While no lease has a container, the engine may be changed.
    """
    engine = worker.holders.engine()
    if not engine:
        return []
    with worker.store.lock:
        ledger, leases = worker.store.ledger, worker.store.state.leases.values()
        held_leases = [lease for lease in leases if lease.holder.startswith(CONTAINER)]
        if engine != ledger.engine and not (ledger.engine and held_leases):
            ledger.keep_engine(worker.store.now(), engine)
        known_engine = ledger.engine
    worker.holders.expect(known_engine)
    if known_engine == engine:
        return []
    problem = (
        f"it is not {known_engine}, where the containers of {len(held_leases)} leases are, so "
        "none of them is freed: correct DOCKER_HOST (compose: MIGLAB_SOCKET), or, if they are gone "
        "for good, miglab backup, then miglab restore --new-host"
    )
    return [Finding("engine", engine, problem)]


def remove_stray_containers(worker: Worker) -> list[Finding]:
    """Remove labelled containers whose lease is over.

    A lease's number alone proves nothing: a ledger that was restored from a copy, or begun anew,
    gives its numbers again.  Containers that this ledger did not start are left alone and reported.
    """
    strays = worker.holders.labelled_containers()
    if strays is None:
        return []  # an engine that does not answer says nothing new
    with worker.store.lock:
        for stray in strays:
            worker.store.ledger.start_above("lease", min(stray.lease, LARGEST_LEASE))
        claims = [(stray, _unknown_claim(worker, stray)) for stray in strays]
        worker.claimed = {
            uuid: claim for stray, claim in claims if claim is not None for uuid in stray.uuids
        }
        if worker.claimed:
            quarantine_claimed(worker)
    return [finding for stray in strays for finding in _settle_stray_container(worker, stray)]


def _unknown_claim(worker: Worker, stray: LabelledContainer) -> Claim | None:
    """The use of slices by a container that is unknown to the ledger; None if it is known."""
    ledger = worker.store.ledger
    lease = ledger.find(LeaseRow, stray.lease)
    if lease is None or reason_to_leave(ledger.identity, lease, stray):
        return Claim(stray.holder)
    if stray.is_running and lease.holder != stray.holder:
        return Claim(stray.holder, lease.id)
    return None


def _settle_stray_container(worker: Worker, stray: LabelledContainer) -> list[Finding]:
    with worker.store.lock:
        lease = worker.store.ledger.find(LeaseRow, stray.lease)
        if any(
            stray.holder == other_lease.holder for other_lease in worker.store.state.leases.values()
        ):
            return []
    reason = reason_to_leave(worker.store.ledger.identity, lease, stray)
    if reason or lease is None:
        return [Finding("holder", stray.holder, f"{reason}; it is left alone")]
    if lease.is_live:
        return _attach_again(worker, lease, stray) if stray.is_running else []
    is_gone = worker.holders.remove(stray.holder, force=True)
    with worker.store.write() as tx:
        tx.record(lease, "pool", f"left-over {stray.holder} removed: {is_gone}")
    action = "removed" if is_gone else ""
    problem = f"it is left over from lease {lease.id}, which is {lease.state}"
    return [Finding("holder", stray.holder, problem, action)]


def _attach_again(worker: Worker, lease: LeaseRow, stray: LabelledContainer) -> list[Finding]:
    """Attach a running container again: the ledger is a copy from before it was attached."""
    fence = Fence(generation=lease.generation, ledger=worker.store.ledger.identity)
    problem = f"it runs, but lease {lease.id} is not attached: was the ledger restored from a copy?"
    try:
        with worker.store.lock:
            leases_subject = leases.Leases(worker.store)
            leases_subject.attach(lease.id, lease.generation, stray.holder, fence.ledger)
            leases_subject.running(lease.id, fence)
    except Refused as refused:
        return [Finding("holder", stray.holder, f"{problem} {refused}")]
    return [Finding("holder", stray.holder, problem, "is attached again")]


def reason_to_leave(identity: str, lease: LeaseRow | None, stray: LabelledContainer) -> str:
    """Why a labelled container must be left alone; empty if it is certainly this ledger's."""
    label = f"its label names lease {stray.lease}"
    if not stray.ledger:
        return f"{label} and no ledger: it was started by an older miglab"
    if stray.ledger != identity:
        return f"{label} of another ledger ({stray.ledger[:8]})"
    if lease is None:
        return f"{label}, which this ledger never had: was the ledger restored from a copy?"
    if stray.generation != lease.generation:
        return f"{label} of another generation: the ledger was restored from a copy"
    if stray.is_running and not lease.is_live and lease.holder != stray.holder:
        return f"it runs, but {label}, which ended without it: was the ledger restored from a copy?"
    return ""


def probe_missing_holders(worker: Worker) -> list[Finding]:
    """Probe the holders that a cheap listing no longer shows."""
    with worker.store.lock:
        leases_by_holder = {
            lease.holder: lease for lease in worker.store.state.leases.values() if lease.is_held
        }
    findings = []
    for holder in sorted(
        worker.holders.probably_gone(set(leases_by_holder)) if leases_by_holder else ()
    ):
        probe(worker, leases_by_holder[holder].id)
        with worker.store.lock:
            is_over = leases_by_holder[holder].id not in worker.store.state.leases
        if is_over:
            findings.append(Finding("holder", holder, "it is gone", "its lease is released"))
    return findings
