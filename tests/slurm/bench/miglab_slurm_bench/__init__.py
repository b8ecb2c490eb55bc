"""A real Slurm on this machine, a lab on it, and what `./lab bench` and `./lab check` do there.

Registered by entry points, so that neither the product nor the bench imports it.
"""
