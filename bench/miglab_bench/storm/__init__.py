"""A class that arrives within a minute and leaves within another; one spawner beside the other.

`lab` is proxy, hub and pool of their own, `plain` the hub with both spawners, `visitor` one
student, `waves` a class of them, `command` what is said of it.
"""
