"""`miglab prove`: tries on this host what the lab assumes of GPUs, driver, engine and toolkit.

lines.py        the lines of the report: their names, what each tries, and an answer
pace.py         how often and how long each line is tried
trial.py        what a run works with: GPUs, the free ones among them, the record of what it makes
host.py         lines about the host; reading.py: lines that only read GPUs
cutting.py      lines that make and destroy slices; other_process.py: one that another process makes
servers.py      a student's container, as a lease starts it; containers.py: the lines about it
holders.py      who uses a slice: the lines about a program that runs on it
loan.py         GPUs that nobody holds, from the running pool or from its lock
report.py       the file, without names or secrets
run.py          all of it in order

The rooms that read need Python, pynvml and the pool's GPU layer alone, so that
``python -m miglab_hub.prove`` runs on a GPU machine that has no more than these.
"""
