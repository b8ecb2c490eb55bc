"""What a runner says of a job: samples together, everything else at once, nothing lost."""

import pytest

from labkit.errors import LabError
from labkit.measuring.job_server import RESULT_LIMIT, Messages


def turns(*rounds: int) -> dict[str, object]:
    return {"type": "turns", "turns": [[round_, "work", 0.1, 0.0] for round_ in rounds]}


async def test_samples_pass_together_and_in_order():
    """The first are said at once; later ones wait for more, or for whatever else is said."""
    sent_messages: list[object] = []
    messages = Messages(lambda letter, content: sent_messages.append((letter, content)))
    for round_ in range(4):
        messages.add(0, turns(round_))
    assert sent_messages == [("m", [0, turns(0)])]
    messages.add(0, {"type": "stage", "stage": "measuring"})
    assert sent_messages[1:] == [
        ("m", [0, turns(1, 2, 3)]),
        ("m", [0, {"type": "stage", "stage": "measuring"}]),
    ]
    with messages:
        messages.add(1, turns(0))
        messages.add(1, turns(1))
    assert sent_messages[3:] == [("m", [1, turns(0, 1)])]


async def test_what_is_too_large_is_refused_and_what_was_sampled_is_kept():
    """The refusal is a sentence, and the samples before it are said."""
    contents: list[object] = []
    with (
        pytest.raises(LabError, match="larger than 16 MiB"),
        Messages(lambda letter, content: contents.append(content)) as messages,
    ):
        messages.add(0, turns(0))
        messages.add(0, turns(1))
        messages.add(0, {"type": "value", "value": "x" * RESULT_LIMIT})
    assert contents == [[0, turns(0)], [0, turns(1)]]
