"""A day of a class in simulated time, over the pool's own decisions.

What it shows and what it assumes: docs/explanation/class-day.md.

assumptions.py  what the day is made of; every value can be changed
plan.py         who comes when and does what; from the seed alone
lab.py          the real pool over simulated GPUs, with a clock that the day moves
server.py       a student's server: what it does, and what it says of itself
student.py      a student through the day
rules.py        who ends servers: the reclaimer, an idle culler, nobody
run.py          one day under one of them
figures.py      what came of it
"""
