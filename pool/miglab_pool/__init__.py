"""The pool process: which GPUs there are, who holds which slice, and when it is free again.

A room is a subject, with its routes and pages.  From the bottom up; a room imports only what stands
above it in this list:

    gpu            what the hardware is and does: NVML, and the simulated GPUs
    settings       the pool's tables of lab.toml; schedule: weekly times
    ledger         the rows on disk, and how they got there
    state          the pool in memory: the store, its view, placement, partitions, fair-share usage
    http           what all routes and pages stand on: sign-in, rights, limits, refusals, the frame
    reservations   slots kept for a course at a time
    queue          the order of tickets, quotas, offers, estimates
    leases         tickets and leases: requested, granted, attached, extended, released
    usage          slice-hours of a period
    reclaim, staff, worker    what acts on leases and GPUs
    layouts, roster           how GPUs are partitioned; who is in a class
    pool           all of it put together
    applications   the service's two applications over the pool, and the loops that run it
"""

__version__ = "0.1.0"
