"""What a person may do to the pool by hand: pause, adopt, clear.  Each is in the ledger."""

from miglab_spawner.messages import SliceState

from . import leases
from .core import Core
from .refused import Refused
from .rows import SliceRow


def pause(core: Core, why: str, by: str) -> None:
    """Grant nothing while ``why`` is not empty.  A restart does not end it."""
    with core.write(durable=True) as tx:
        tx.pause(why, by)


def adopt(core: Core, number: int, by: str) -> None:
    """Announce the destruction of a foreign slice."""
    _scrub_if(core, number, SliceState.FOREIGN, by, "not-foreign")


def clear(core: Core, number: int, by: str) -> None:
    """Announce another try at a quarantined slice."""
    _scrub_if(core, number, SliceState.QUARANTINED, by, "not-quarantined")


def _scrub_if(core: Core, number: int, state: SliceState, by: str, reason: str) -> None:
    with core.write(durable=True) as tx:
        row: SliceRow | None = core.state.slices.get(number)
        if row is None or row.state != state:
            now = "not there" if row is None else str(row.state)
            raise Refused(reason, f"Slice {number} is {now}, not {state}.")
        leases.scrub(tx, row, f"by hand, by {by}", remake=False)
