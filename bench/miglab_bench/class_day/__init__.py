"""A day of a class in simulated time, over the pool's own decisions.

What it shows and what it assumes: docs/explanation/class-day.md.

assumptions.py  what the day is made of; every value can be changed
plan.py         who comes when and does what; from the seed alone
lab.py          the real pool over simulated GPUs, with a clock that the day moves
student.py      a student through the day, the server, and what is borrowed
run.py          one day, and who ends servers in it: the reclaimer, an idle culler, nobody
figures.py      what came of it
"""
