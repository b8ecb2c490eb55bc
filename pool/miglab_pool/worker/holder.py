"""What the pool asks of those that hold slices."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from miglab_api.holders import Liveness


@dataclass(frozen=True)
class Stray:
    """A container labelled with a lease.

    Attributes:
        holder: its name here.
        lease: what its label says; ``generation`` and ``ledger`` likewise, with None and an empty
            one where it was started before there were any.
        uuids: the slices it was given.
        is_running: whether it runs, and was not only created.
    """

    holder: str
    lease: int
    generation: int | None = None
    ledger: str = ""
    uuids: tuple[str, ...] = ()
    is_running: bool = False


@dataclass(frozen=True)
class Claim:
    """A container's use of a slice, of which the ledger has no word.

    Attributes:
        holder: the container.
        lease: the live lease of this very ledger that it was started for, and is not attached to;
            None: no lease that this ledger has.
    """

    holder: str
    lease: int | None = None


class Holders(Protocol):
    """Who holds slices, whatever it is made of."""

    def probe(self, holder: str) -> Liveness:
        """Whether the holder is there; never raises."""

    def missing(self, holders: Collection[str]) -> set[str]:
        """Those worth a probe: cheap, may be wrong either way, empty when nothing can be told."""

    def labelled(self) -> list[Stray] | None:
        """Every container of this lab that a label ties to a lease; None when unknown."""

    def engine(self) -> str:
        """The id of the engine that containers are asked of; empty where none can be told."""

    def expect(self, engine: str) -> None:
        """Which engine the holders are at: what another does not have is not gone.

        Args:
            engine: its id; empty for any.
        """

    def end(self, holder: str) -> bool:
        """Stop what runs under this name, gently first, and remove it.

        Returns:
            Whether it is gone now, confirmed.
        """

    def remove(self, holder: str, *, force: bool) -> bool:
        """Remove what exists under this name.

        Args:
            holder: which.
            force: also when it runs.

        Returns:
            Whether it is gone now, confirmed.
        """
