"""Reservations: slots kept for a course at a time.  What decisions elsewhere ask of them.

What changes them is in `transactions`, and what people see in `routes` and `page`.
"""

from miglab_pool.reservations.ahead import reserved_times, staying
from miglab_pool.reservations.feasible import broken_by
from miglab_pool.reservations.guarantees import (
    GuaranteeLimit,
    check_end,
    claimable,
    extension_limit,
    grant_limit,
    kept_until,
    shortened,
    without_promised,
)
from miglab_pool.reservations.rules import InForce, left_of
from miglab_pool.reservations.slots import (
    choose,
    claimants_with_slot,
    claimed_by,
    claims,
    closed,
    drawn_until,
    free_whole,
    in_force,
    in_force_at,
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
    "closed",
    "drawn_until",
    "extension_limit",
    "free_whole",
    "grant_limit",
    "in_force",
    "in_force_at",
    "kept_until",
    "left_of",
    "open_gpus",
    "ready",
    "reserved_s",
    "reserved_times",
    "reserving",
    "shortened",
    "slots_with_reservation",
    "staying",
    "without_promised",
]
