"""Slurm as a backend: a ticket is a job, and one picture of the cluster serves every page."""
