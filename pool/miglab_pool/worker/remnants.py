"""Whether a slice that the ledger does not know is left over from the pool's own work.

NVML has been seen to list a slice that it had said was destroyed (go-nvml, issue 146).  A remnant
is foreign like any other: it is shown, and untouched until an admin adopts it.  Only words differ.
"""

from sqlalchemy import String, cast, select

from miglab_pool.gpu.readings import SliceReading
from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import GONE
from miglab_pool.state.store import Store

REMEMBERED_S = 3600.0
MINUTE_S = 60.0
DESTROYED = "destroyed"
"""The reason with which a slice is noted as gone once it was destroyed."""
STRANGER = "miglab did not make it; it stays untouched until an admin adopts it"


def foreign_reason(store: Store, reading: SliceReading, at: float) -> str:
    """Why a slice that NVML shows is foreign, in words for staff.

    Args:
        store: the pool's.
        reading: the slice.
        at: now, seconds since the epoch.
    """
    slices, log = tables.slices.c, tables.transitions.c
    query = (
        select(slices.id, log.at, log.reason)
        .join(tables.transitions, (log.kind == "slice") & (log.target == cast(slices.id, String)))
        .where(
            slices.gpu == reading.gpu_uuid,
            slices.profile == reading.profile.name,
            slices.start == reading.placement.start,
            slices.state == GONE,
            slices.tried,
            log.at > at - REMEMBERED_S,
        )
        .order_by(log.id.desc())
        .limit(1)
    )
    for row in store.ledger.read(query):
        act = "destroyed" if row["reason"] == DESTROYED else "tried to create"
        minutes = max(1, round((at - row["at"]) / MINUTE_S))
        return (
            f"a remnant, most likely: miglab {act} slice {row['id']} at this very place {minutes} "
            "min ago; it stays untouched until an admin adopts it, which destroys it again"
        )
    return STRANGER
