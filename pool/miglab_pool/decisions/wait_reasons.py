"""Why somebody waits, in words.  Reads only.

Asked for one ticket or for all who wait: what is the same for many is worked out once.
"""

from functools import cached_property

from miglab_api.tickets import TicketState
from miglab_pool.decisions import queue, quota_checks, reserved_slots
from miglab_pool.model import reservations
from miglab_pool.model.gpu import open_to
from miglab_pool.model.once import once
from miglab_pool.model.rows import FULL, TicketRow
from miglab_pool.rules.placement.placement import place
from miglab_pool.state.view import PoolView


@once
def reasons(view: PoolView) -> "WaitReasons":
    """Why people wait at a moment, for all who ask."""
    return WaitReasons(view)


class WaitReasons:
    """The reasons at one moment; see `reasons`."""

    def __init__(self, view: PoolView) -> None:
        self._view = view
        self._is_reserved: dict[tuple[str, str], bool] = {}

    def of(self, row: TicketRow) -> str:
        """What to tell whose ticket it is; empty if it just is not their turn, or is over."""
        if row.state != TicketState.WAITING:
            return ""
        if row.lease is not None:
            return "Your slices are being made."
        if (row.user, row.server) in self._view.held_servers:
            return "This server's last slices are not free yet: waiting for the old server to end."
        held = self._why_held(row) or self._why_reserved(row)
        if held or row.next_at is None:
            return held or self._why_drained
        return "Staff gave you the next slices that fit."

    def _why_held(self, row: TicketRow) -> str:
        if not self._view.settings.quotas:
            return ""
        return quota_checks.why_held(self._view, queue.as_waiting(self._view, row))

    @cached_property
    def _why_drained(self) -> str:
        """What to tell everybody while no GPU takes a lease, by acts of staff."""
        drainings = {gpu.draining for gpu in self._view.rows}
        if not drainings or "" in drainings:
            return ""
        said = "; ".join(f"“{reason}”" for reason in sorted(drainings))
        return f"No GPU takes new leases for now ({said}); you keep your position."

    def _why_reserved(self, row: TicketRow) -> str:
        """What to tell somebody who would be served but for a reservation."""
        reserved_s = reserved_slots.reserved_s(self._view)
        if (
            reserved_s is None
            or row.shape == FULL
            or row.id in reserved_slots.claimants_with_slot(self._view)
        ):
            return ""
        key = (row.shape, row.course)
        if key not in self._is_reserved:
            self._is_reserved[key] = self._fits_but_for_a_class(*key)
        if not self._is_reserved[key]:
            return ""
        return (
            "What is free is kept for a class that has reserved it; what the class does not take "
            f"is free for all in at most {max(1, round(reserved_s / 60))} min."
        )

    def _fits_but_for_a_class(self, shape: str, course: str) -> bool:
        names = reservations.profiles(shape)
        now = open_to(reserved_slots.open_gpus(self._view), course)
        then = open_to(self._view.occupancies, course)
        return not place(names, now) and bool(place(names, then))
