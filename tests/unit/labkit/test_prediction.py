"""Predictions as people type them, and sentences for what is none."""

import pytest

from labkit.errors import NotAPrediction
from labkit.evidence.evidence import Trend, parse_number, parse_trend, predict


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("1.5", 1.5),
        (" 1,5 x", 1.5),
        ("2 GB/s", 2.0),
        ("1 000", 1000.0),
        ("+3", 3.0),
        ("1e3", 1000.0),
        (".5", 0.5),
    ],
)
def test_numbers_are_read_as_people_type_them(typed, value):
    """Commas, spaces and the unit itself are fine."""
    assert parse_number(typed, "GB/s") == value


@pytest.mark.parametrize(
    "typed", ["", "fast", "1.5 apples", "1e999", "nan", "½", "9" * 60 + "z", "2..5.1"]
)
def test_what_is_no_number_is_answered_in_a_sentence(typed):
    """Empty, words, other units, infinities, unicode, over-long."""
    with pytest.raises(NotAPrediction, match="GB/s"):
        parse_number(typed, "GB/s")


def test_a_number_is_not_below_zero_and_may_have_no_unit():
    """Times, ratios, counts, percentages; the largest number of a format, a relative error."""
    with pytest.raises(NotAPrediction, match="below zero"):
        parse_number("-3", "GB/s")
    assert parse_number("0", "%") == 0.0
    with pytest.raises(NotAPrediction, match=r"Type one, for example"):
        parse_number("much", "")
    assert str(predict("65504", "five bits", "")) == "65504, because five bits"


def test_trends_are_three():
    """Rises, flat, falls, in any case."""
    assert parse_trend(" Rises ") is Trend.RISES
    with pytest.raises(NotAPrediction, match="none of rises, flat, falls"):
        parse_trend("up")
    assert str(predict("flat", "no reason", None)) == "it stays flat, because no reason"


@pytest.mark.parametrize(
    ("said", "unit", "says"),
    [("", None, "Choose first"), ("", "ms", "Type a number in ms"), ("1", "x", "why")],
)
def test_what_is_missing_is_asked_for_in_its_order(said, unit, says):
    """Whoever presses Lock in at once is asked for the prediction, then for the reason."""
    with pytest.raises(NotAPrediction, match=says):
        predict(said, " ", unit)
    assert "because fewer SMs" in str(predict("7.5", "fewer SMs", "x"))
