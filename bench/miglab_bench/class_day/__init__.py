"""A day of a class in simulated time, over the pool's own decisions.

What it shows and what it assumes: docs/explanation/class-day.md.

plan.py     what the day is made of, every value of which can be changed; who comes and does what
lab.py      the real pool over simulated GPUs, with a clock that the day moves
student.py  a student through the day, the server, and what is borrowed
run.py      one day, who ends servers in it (the reclaimer, an idle culler, nobody), what came of it
"""
