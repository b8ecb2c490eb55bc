"""A class that arrives within a minute and leaves within another; one spawner beside the other.

`plain` configures a hub with both spawners, `visitors` are students and a class of them, `command`
says what came of it.
"""
