"""Benchmarks, the acceptance run and their harnesses; comes with a checkout, is not shipped.

measures     one module for each `./lab bench NAME`, and the hub of two of them
class_day    a simulated day of a class, under several policies
faults       the lab under seeded faults
acceptance   `./lab check`
harness      temporary labs, their processes, and who uses them
"""

__version__ = "0.1.0"
