"""The service of a lab on Slurm: reports, warnings, reclaim, and the instructors' page."""
