"""What the reclaimer needs of whoever keeps the leases: the lab's own pool, or jobs of Slurm."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from miglab_api.leases import LeaseView, WarningKind
from miglab_pool.transactions.activity import Spent
from miglab_pool.views.lease_cases import Case


class KeptLeases(Protocol):
    """The leases, as `PoolLeases` has them."""

    def cases(self) -> Sequence[Case]:
        """The leases in use."""

    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder."""

    def end_warning(self, number: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease."""

    def put_off(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """Give a warned holder longer."""

    def bring_forward(self, number: int, reclaim_at: float, reason: str) -> LeaseView:
        """Let a warning by staff end sooner."""

    def worked(self, number: int) -> None:
        """Work was seen."""

    def release(self, number: int, by: str, reason: str) -> LeaseView:
        """Ask for a lease back."""

    def note_activity(self, spent: Iterable[Spent]) -> None:
        """Keep what was seen of leases."""


class LeaseKeeper(Protocol):
    """See the module."""

    @property
    def leases(self) -> KeptLeases:
        """The leases."""

    @property
    def now(self) -> float:
        """Seconds since the epoch."""

    @property
    def samples(self) -> int:
        """How often the slices were read."""

    def close_for_maintenance(self, reason: str, by: str) -> Any:
        """Grant nothing for this reason; empty: grant again, unless a person has paused."""
