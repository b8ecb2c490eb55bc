"""Benchmarks, the acceptance run and their harnesses; comes with a checkout, is not shipped.

measures     one module for each `./lab bench NAME`
class_day    a simulated day of a class, under several policies
acceptance   `./lab check`
harness      temporary labs, students and visitors for the three above
"""

__version__ = "0.1.0"
