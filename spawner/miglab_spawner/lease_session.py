"""What a spawner holds between asking for a slice and giving it back."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SavedLease:
    """What a server holds: the part of a lease that must survive a hub crash.

    Attributes:
        lease: the lease's id.
        generation: the fence that attach presents.
        ledger: the id of the ledger that granted it; empty before there was one.
        uuids: the slices, in the lease's order.
    """

    lease: int
    generation: int
    user: str
    server: str
    uuids: tuple[str, ...]
    ledger: str = ""
