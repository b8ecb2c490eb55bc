"""The worker's own state beside the store: driver, holders, and jobs under way.

Only this package calls the driver or probes holders.  The state may be lost at any moment: the work
list follows from the ledger's rows, so it is the same after a restart.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from miglab_api.holders import boot_id
from miglab_api.leases import LeaseState
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.watched import Stopwatch, WatchedDriver
from miglab_pool.ledger.rows import LeaseRow, SliceRow
from miglab_pool.state.proof_record import ProofFolder
from miglab_pool.state.store import Backoff, Store
from miglab_pool.worker.holders import HostHolders


@dataclass(frozen=True)
class Claim:
    """A container's use of a slice that the ledger does not know.

    Attributes:
        holder: the container.
        lease: the live lease of this very ledger that it was started for, and is not attached to;
            None: no lease that this ledger has.
    """

    holder: str
    lease: int | None = None


def boot_id_or_unknown() -> str:
    """This host's boot id; empty where it does not tell."""
    try:
        return boot_id()
    except OSError:
        return ""


class Worker:
    """See the module.  What is under way is read and written with the store's lock held.

    Attributes:
        boot_id: tells one start of the machine with the GPUs from another; empty: unknown.
        acting: the GPUs that something is done to.
        probing: the leases whose holders are being asked after.
        claimed: the slices that containers use and that are not theirs by this ledger, by UUID:
            nobody else is given them, and they are not destroyed.  None until the containers were
            listed once: before that no GPU is looked at, so nothing is granted, made or destroyed.
        proof_folder: the lock and the record of `miglab prove`.
        proof_turn: held by whoever looks whether a run is over, or lends GPUs to one; it is taken
            before the store's lock.
        gpu_backoff: when a GPU that failed is looked at again.
        probe_backoff: when a holder is asked after again, by `probe_key`.
    """

    def __init__(
        self,
        store: Store,
        driver: Driver | WatchedDriver,
        holders: HostHolders,
        boot_id: Callable[[], str] = boot_id_or_unknown,
    ) -> None:
        self.store = store
        self.driver = driver
        self.holders = holders
        holders.expect(store.ledger.engine)
        self.boot_id = boot_id
        self.stopwatch = Stopwatch()
        self.acting: set[str] = set()
        self.probing: set[int] = set()
        self.claimed: dict[str, Claim] | None = None
        self.proof_folder = ProofFolder(store.ledger.path.parent)
        self.proof_turn = threading.Lock()
        settings = store.settings
        self.gpu_backoff = Backoff(settings.tuning.retry_s, settings.tuning.retry_max_s)
        self.probe_backoff = Backoff(settings.tuning.probe_s, settings.tuning.retry_max_s)

    @contextmanager
    def alone_on(self, gpu: str) -> Iterator[bool]:
        """Mark a GPU as acting, and tell whether nobody else had."""
        with self.store.lock:
            is_alone = gpu not in self.acting
            self.acting.add(gpu)
        try:
            yield is_alone
        finally:
            if is_alone:
                with self.store.lock:
                    self.acting.discard(gpu)

    def other_claim(self, row: SliceRow, uuid: str | None) -> Claim | None:
        """The claim on this slice of a container other than its lease's; None if there is none."""
        claim = (self.claimed or {}).get(uuid or "")
        is_its_own = claim is not None and claim.lease is not None and claim.lease == row.lease
        return None if is_its_own else claim

    def drop_claims(self, holder: str) -> None:
        """Forget the claims of a container that has ended."""
        with self.store.lock:
            claims = (self.claimed or {}).items()
            self.claimed = {uuid: claim for uuid, claim in claims if claim.holder != holder}

    def restart_graces(self, step_s: float) -> None:
        """Move the pauses by a step of the clock."""
        self.gpu_backoff.move(step_s)
        self.probe_backoff.move(step_s)


def probe_key(lease: LeaseRow) -> tuple[int, bool]:
    """The key of a probe's pause, which changes and so ends once the lease is to be released."""
    return lease.id, lease.state == LeaseState.RELEASING
