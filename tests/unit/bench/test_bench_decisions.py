"""`./lab bench decisions` builds its scene, and asks its questions in turns."""

from pathlib import Path

import pytest

from miglab_bench.measures.decisions import QUESTIONS, Row, compare, probe

HERE = Path(__file__).resolve().parents[3]


class RecordedProbe:
    """A side that answers what it is told to."""

    def __init__(self, name: str, took_ms: float, asked: list[str]) -> None:
        self._name, self._took_ms, self._asked = name, took_ms, asked

    def ask(self, scene: str, question: str) -> tuple[float, float]:
        self._asked.append(self._name)
        return self._took_ms, 1.0


def test_the_two_sides_take_turns() -> None:
    """Whatever slows the machine slows both; the ratio is ours by the other's."""
    asked: list[str] = []
    rows = compare(RecordedProbe("a", 3.0, asked), RecordedProbe("b", 6.0, asked), 2, ["plain"])  # type: ignore[arg-type]
    assert asked == ["a", "b"] * 3 * len(QUESTIONS)
    assert rows[0] == Row("plain", "match", 3.0, 1.0, 6.0, 1.0)
    assert rows[0].ratio == 0.5


@pytest.mark.long
def test_this_checkout_answers() -> None:
    """A grant that finds nothing holds the lock; offers are answered off it."""
    with probe(HERE, ["plain"]) as ours:
        _, locked_ms = ours.ask("plain", "match")
        assert locked_ms > 0
        assert ours.ask("plain", "offers")[1] == 0
