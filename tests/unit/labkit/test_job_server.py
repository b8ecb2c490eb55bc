"""What a runner says of a job: samples together, everything else at once, nothing lost."""

import pytest

from labkit.errors import LabError
from labkit.measuring.job_server import RESULT_LIMIT, Messages


def turns(*rounds: int) -> dict[str, object]:
    return {"type": "turns", "turns": [[one, "work", 0.1, 0.0] for one in rounds]}


async def test_samples_pass_together_and_in_order():
    """The first are said at once; later ones wait for more, or for whatever else is said."""
    said: list[object] = []
    messages = Messages(lambda letter, what: said.append((letter, what)))
    for one in range(4):
        messages.add(0, turns(one))
    assert said == [("m", [0, turns(0)])]
    messages.add(0, {"type": "stage", "stage": "measuring"})
    assert said[1:] == [
        ("m", [0, turns(1, 2, 3)]),
        ("m", [0, {"type": "stage", "stage": "measuring"}]),
    ]
    with messages:
        messages.add(1, turns(0))
        messages.add(1, turns(1))
    assert said[3:] == [("m", [1, turns(0, 1)])]


async def test_what_is_too_large_is_refused_and_what_was_sampled_is_kept():
    """The refusal is a sentence, and the samples before it are said."""
    said: list[object] = []
    with (
        pytest.raises(LabError, match="larger than 16 MiB"),
        Messages(lambda letter, what: said.append(what)) as messages,
    ):
        messages.add(0, turns(0))
        messages.add(0, turns(1))
        messages.add(0, {"type": "value", "value": "x" * RESULT_LIMIT})
    assert said == [[0, turns(0)], [0, turns(1)]]
