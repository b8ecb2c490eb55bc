"""A MIG slice of its own for every JupyterHub server.

gpu/           what the hardware is and does: geometry, shapes, NVML, simulated GPUs
pool/          who holds what: ledger, placement, queue, leases, reconcile
messages.py    what spawner and pool service say to each other
client.py      the spawner's side of that conversation
mig_spawner.py the mixin that asks for a slice, attaches it and gives it back
docker.py, local.py   the mixin over DockerSpawner and over local processes
"""

__version__ = "0.1.0"
