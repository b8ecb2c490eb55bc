"""The pool process: which GPUs there are, who holds which slice, and when it is free again.

A room is a subject.  From the bottom up; a room imports only what stands above it in this list, and
the pure ``rules`` of any; a subject's routes and pages stand beside http:

    gpu            what the hardware is and does: NVML, and the simulated GPUs
    settings       the pool's tables of lab.toml; schedule: weekly times
    ledger         the rows on disk, and how they got there
    state          the pool in memory: the store, its view, placement
    reservations   slots kept for a course at a time
    layouts        how GPUs are cut
    queue          tickets, their order, quotas, offers, estimates
    leases         granted, attached, extended, released
    reclaim, staff, usage, worker    what acts on them
    pool           all of it put together
    http           the service's two applications and what their pages share
"""

__version__ = "0.1.0"
