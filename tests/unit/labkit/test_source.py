"""Functions travel to a child with what they need, and what cannot travel is said."""

import math
import subprocess
import sys
from fractions import Fraction

import pytest

from labkit.errors import Unsendable
from labkit.run import source

SIZE = 3
HALF = Fraction(1, 2)
HUGE = b"x" * (2 << 20)


def helper(value):
    return value * SIZE


class SourceBox:
    def __init__(self, value):
        self.value = value

    def twice(self):
        return helper(self.value) * 2


def uses_much(value=SIZE):
    box = SourceBox(value)

    def inner():
        return box.twice() + math.floor(2.5) + HALF

    return inner()


def uses_huge():
    return len(HUGE)


def calls_itself(n):
    return 1 if n < 2 else n * calls_itself(n - 1)


def rebuilt(function):
    """A function as a child would have it."""
    return source.unpack(source.pack(function))


def test_what_a_function_needs_travels_along():
    """Everything it names, also in nested functions and defaults; itself; what it closed over."""

    def make(step):
        def add(value):
            return value + step

        return add

    assert rebuilt(uses_much)() == uses_much()
    assert rebuilt(calls_itself)(5) == 120
    assert rebuilt(make(4))(1) == 5


def test_what_cannot_travel_is_said():
    """The sentence names the function, the global and the size; or that it cannot be pickled."""
    with pytest.raises(Unsendable, match=r"`uses_huge` uses `HUGE`.*2 MiB"):
        source.pack(uses_huge)
    with pytest.raises(Unsendable, match="cannot travel"):
        source.pack_value((x for x in ()), "numbers", "f")


def test_importing_labkit_wakes_neither_torch_nor_widgets():
    """The notebook's kernel holds no CUDA context, and records can be read without a front end."""
    code = (
        "import sys, labkit, labkit.panel.panel, labkit.measuring.sharing;"
        "print('torch' in sys.modules, 'ipywidgets' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["False", "False"]
