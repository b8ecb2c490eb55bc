"""Reservations: slots kept for a course at a time.  What decisions elsewhere ask of them.

What changes them is in `transactions`, and what people see in `routes` and `page`.
"""

from miglab_pool.reservations.feasible import broken_by
from miglab_pool.reservations.promises import (
    GuaranteeLimit,
    check_end,
    claimable,
    extension_limit,
    grant_limit,
    kept_until,
    shortened,
    without_promised,
)
from miglab_pool.reservations.rules import InForce, reserved_until
from miglab_pool.reservations.slots import (
    choose,
    claimants_with_slot,
    claimed_by,
    claims,
    drawn_until,
    free_whole,
    in_force,
    open_gpus,
    ready,
    reserved_s,
    reserving,
    slots_with_reservation,
)

__all__ = [
    "GuaranteeLimit",
    "InForce",
    "broken_by",
    "check_end",
    "choose",
    "claimable",
    "claimants_with_slot",
    "claimed_by",
    "claims",
    "drawn_until",
    "extension_limit",
    "free_whole",
    "grant_limit",
    "in_force",
    "kept_until",
    "open_gpus",
    "ready",
    "reserved_s",
    "reserved_until",
    "reserving",
    "shortened",
    "slots_with_reservation",
    "without_promised",
]
