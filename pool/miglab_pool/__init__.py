"""The pool process: which GPUs there are, who holds which slice, and when it is free again.

From the occupancy up; a room imports only what stands above it in this list:

gpu            what the hardware is and does: NVML, and the simulated GPUs
model          plain values: rows, GPUs, the queue, reservations
settings       the pool's tables of lab.toml
rules          pure functions: who comes next, what fits where, how long a lease lasts
ledger         the rows on disk, and how they got there
state          the pool's rows in memory
decisions      questions about the pool that change nothing
transactions   what changes it
views, worker  what it looks like from outside; what is done to the GPUs
staff, pool    the door
reclaimer      which leases are warned and reclaimed
http           the service's two applications and its pages
"""

__version__ = "0.1.0"
