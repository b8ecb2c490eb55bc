"""Reconcile: ledger against holders against NVML, at start and on a timer.

Undoes what a crash left half done and takes in what happened meanwhile.  No step is destructive
on an unknown answer: a container is removed only for a lease of this very ledger, by id and
generation, that is over, and if it runs only if it was attached to that lease; a slice is freed
only for a holder that is confirmed gone.
"""

from miglab_api.holders import CONTAINER
from miglab_api.leases import Fence
from miglab_pool.leases import transactions as leases
from miglab_pool.ledger.rows import LeaseRow
from miglab_pool.refused import Refused
from miglab_pool.worker import inspect_gpu, proof
from miglab_pool.worker.holders import Stray
from miglab_pool.worker.inspect_gpu import Finding
from miglab_pool.worker.jobs import probe, quarantine_claimed
from miglab_pool.worker.worker import Claim, Worker

LARGEST_LEASE = 2**53  # a label may say anything


def begin(worker: Worker) -> list[Finding]:
    """What comes before any GPU is asked.

    Every finding, of this and of the other steps, is in the ledger too, as a transition.
    """
    found = check_engine(worker)
    found += proof.follow(worker)
    found += remove_strays(worker)
    inspect_gpu.note_unlisted(worker)
    return found


def check_engine(worker: Worker) -> list[Finding]:
    """See whether the engine that answers is the one that the leases' containers are at.

    Another one (a changed `docker_url`, a rootless engine, an engine that lost its data) has none
    of them, and says so as if they were gone.  Where no lease is at one, it may be changed.
    """
    engine = worker.holders.engine()
    if not engine:
        return []
    with worker.store.lock:
        ledger, leases = worker.store.ledger, worker.store.state.leases.values()
        held = [lease for lease in leases if lease.holder.startswith(CONTAINER)]
        if engine != ledger.engine and not (ledger.engine and held):
            ledger.keep_engine(worker.store.now(), engine)
        known = ledger.engine
    worker.holders.expect(known)
    if known == engine:
        return []
    what = (
        f"it is not {known}, where the containers of {len(held)} leases are, so none of them is "
        "freed: correct DOCKER_HOST (compose: MIGLAB_SOCKET), or, if they are gone for good, "
        "miglab backup, then miglab restore --new-host"
    )
    return [Finding("engine", engine, what)]


def remove_strays(worker: Worker) -> list[Finding]:
    """Remove labelled containers whose very lease is over, before anything else is done.

    A number alone says nothing: a ledger that was restored from a copy, or begun anew, gives its
    numbers once more.  What it did not start itself it leaves alone and tells of.
    """
    strays = worker.holders.labelled()
    if strays is None:
        return []  # an engine that does not answer says nothing new
    with worker.store.lock:
        for stray in strays:
            worker.store.ledger.start_above("lease", min(stray.lease, LARGEST_LEASE))
        claims = [(stray, _claim(worker, stray)) for stray in strays]
        worker.claimed = {
            uuid: claim for stray, claim in claims if claim is not None for uuid in stray.uuids
        }
        if worker.claimed:
            quarantine_claimed(worker)
    return [finding for stray in strays for finding in _settle_stray(worker, stray)]


def _claim(worker: Worker, stray: Stray) -> Claim | None:
    """What the ledger does not know of a container's use of its slices; None: it knows."""
    ledger = worker.store.ledger
    lease = ledger.find(LeaseRow, stray.lease)
    if lease is None or why_left_alone(ledger.identity, lease, stray):
        return Claim(stray.holder)
    if stray.is_running and lease.holder != stray.holder:
        return Claim(stray.holder, lease.id)
    return None


def _settle_stray(worker: Worker, stray: Stray) -> list[Finding]:
    with worker.store.lock:
        lease = worker.store.ledger.find(LeaseRow, stray.lease)
        if any(stray.holder == one.holder for one in worker.store.state.leases.values()):
            return []
    reason = why_left_alone(worker.store.ledger.identity, lease, stray)
    if reason or lease is None:
        return [Finding("holder", stray.holder, f"{reason}; it is left alone")]
    if lease.is_live:
        return _attach_again(worker, lease, stray) if stray.is_running else []
    is_gone = worker.holders.remove(stray.holder, force=True)
    with worker.store.write() as tx:
        tx.record(lease, "pool", f"left-over {stray.holder} removed: {is_gone}")
    done = "removed" if is_gone else ""
    what = f"it is left over from lease {lease.id}, which is {lease.state}"
    return [Finding("holder", stray.holder, what, done)]


def _attach_again(worker: Worker, lease: LeaseRow, stray: Stray) -> list[Finding]:
    """It runs, so it was attached: the ledger is a copy from before that."""
    fence = Fence(generation=lease.generation, ledger=worker.store.ledger.identity)
    what = f"it runs, but lease {lease.id} is not attached: was the ledger restored from a copy?"
    try:
        with worker.store.lock:
            kept = leases.Leases(worker.store)
            kept.attach(lease.id, lease.generation, stray.holder, fence.ledger)
            kept.running(lease.id, fence)
    except Refused as refused:
        return [Finding("holder", stray.holder, f"{what} {refused}")]
    return [Finding("holder", stray.holder, what, "is attached again")]


def why_left_alone(identity: str, lease: LeaseRow | None, stray: Stray) -> str:
    """Why a labelled container is not known to be this ledger's; empty if it is."""
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


def ask_after_holders(worker: Worker) -> list[Finding]:
    """Probe the holders that a cheap listing no longer shows."""
    with worker.store.lock:
        held = {
            lease.holder: lease for lease in worker.store.state.leases.values() if lease.is_held
        }
    found = []
    for holder in sorted(worker.holders.missing(set(held)) if held else ()):
        probe(worker, held[holder].id)
        with worker.store.lock:
            is_over = held[holder].id not in worker.store.state.leases
        if is_over:
            found.append(Finding("holder", holder, "it is gone", "its lease is released"))
    return found
