"""A server is not handed over unless it has the slices of its lease."""

from miglab_api.leases import LeaseView

#: What became of the slices, for the person who was to have them, by reason.
_MISSING = {
    "slice-without-uuid": "the pool does not know the identity of every slice that it granted",
    "slice-not-there": "your GPU slice did not arrive in its container",
    "slice-unknown": "nobody can tell whether your GPU slice arrived in its container",
}


class SlicesMissing(Exception):
    """A server or runner lacks slices of its lease, or nobody can tell whether it has them.

    Args:
        reason: one of `refusals.REASONS`, and what the person is told by it is here.
        details: for the operator.
    """

    def __init__(self, reason: str, details: str) -> None:
        super().__init__(f"{reason}: {details}")
        self.reason, self.details = reason, details

    def message_for(self, outcome: str) -> str:
        """Return the message for the person; ``outcome`` says what did not happen."""
        return (
            f"{outcome}, because {_MISSING[self.reason]}. What was granted is being given back. "
            "Try again; if it stays so, tell your instructor."
        )


def check_lease(lease: LeaseView) -> None:
    """Refuse a lease whose slices are not all known by UUID.

    The engine is asked for UUIDs: for none it injects nothing, and says nothing.

    Raises:
        SlicesMissing: there are fewer UUIDs than slices.
    """
    if lease.uuids and len(lease.uuids) >= len(lease.slices):
        return
    uuids = ", ".join(lease.uuids) or "none"
    details = f"lease {lease.id} has {len(lease.slices)} slices, and of UUIDs {uuids}"
    raise SlicesMissing("slice-without-uuid", details)
