"""Reservations: slots kept for a course at a time.  What decisions elsewhere ask of them.

What changes them is in `transactions`, and what people see in `routes` and `page`.
"""

from miglab_pool.reservations.ahead import (
    Outlook,
    check_end,
    first_blocked,
    reserved_times,
    staying,
)
from miglab_pool.reservations.feasible import broken_by
from miglab_pool.reservations.rules import InForce, left_of
from miglab_pool.reservations.slots import (
    choose,
    claimants_with_slot,
    claimed_by,
    claims,
    closed,
    free_whole,
    in_force,
    in_force_at,
    open_gpus,
    ready,
    reserved_s,
    slots_with_reservation,
)

__all__ = [
    "InForce",
    "Outlook",
    "broken_by",
    "check_end",
    "choose",
    "claimants_with_slot",
    "claimed_by",
    "claims",
    "closed",
    "first_blocked",
    "free_whole",
    "in_force",
    "in_force_at",
    "left_of",
    "open_gpus",
    "ready",
    "reserved_s",
    "reserved_times",
    "slots_with_reservation",
    "staying",
]
