"""What runs inside JupyterHub: a spawner that gives every server its own MIG slice.

mixin.py               what every kind of server has in common: start, wait, end
choices.py             what a student chose; backend_hooks.py what a backend overrides
traits.py              the settings
pool_leases.py         servers that start by a lease of the lab's own pool
docker.py, local.py    servers in containers, and as local processes
backends.py            the client of the pool, and what any other backend answers
pages                  what students read before their server is there
containers             how a container is confined, and connected
borrower.py            measurements on borrowed slices, of a server that holds none
"""

__version__ = "0.1.0"
