"""Faults of a lab on Slurm, drawn evenly by a seed, and whether a server is lost or doubled."""
