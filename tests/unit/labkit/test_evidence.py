"""Evidence: a prediction as people type it; a file, read back whole, refused when it was edited."""

from dataclasses import replace

import pytest

from labkit.errors import EvidenceDamaged, NotAPrediction, NotMeasured
from labkit.evidence import evidence as store
from labkit.evidence.evidence import (
    Evidence,
    Point,
    Trend,
    draft_of,
    parse_number,
    parse_trend,
    predict,
)
from labkit.records import Device, Measurement, Tier

RECORD = Measurement("f", (0.1, 0.2, 0.3), Tier.CPU, (Device("cpu", "Xeon", 1024),), "host", False)
MADE = Evidence(
    experiment="DP-3",
    title="Strong scaling",
    unit="x",
    place="Xeon",
    tier="cpu",
    started="2026-11-20T10:00:00+00:00",
    points=(Point(1.0, "one", 0.2, (RECORD,)),),
)


def test_evidence_comes_back_as_it_was(tmp_path):
    """Points, records and samples survive the file."""
    assert store.load(store.save(MADE, tmp_path)) == MADE


FASTER = ("0.1,", "0.01,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "measure first"),
        ("", "not whole JSON"),
        ('{"schema": 1, "po', "not whole JSON"),
        ("[1]", "no evidence"),
        ('{"schema": 99}', "schema 99"),
        (FASTER, "changed after it was measured"),
    ],
)
def test_damaged_files_say_what_is_wrong(tmp_path, text, message):
    """Not there yet, cut short, another kind, another version; a faster sample typed by hand."""
    path = store.save(MADE, tmp_path)
    if text is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(*text) if text is FASTER else text)
    with pytest.raises(EvidenceDamaged, match=message):
        store.load(path)


def test_a_forged_digest_does_not_hide_a_contradiction(tmp_path):
    """A prediction later than the start, identical samples: found although the digest fits."""
    late = predict("1", "because", "x")
    repeated = Measurement("f", (0.1,) * 20, Tier.CPU, (), "host", False)
    forged = replace(MADE, prediction=late, points=(Point(1.0, "one", 0.1, (repeated,)),))
    contradictions = store.inconsistencies(forged)
    assert len(contradictions) == 2
    with pytest.raises(EvidenceDamaged, match="contradicts itself"):
        store.load(store.save(forged, tmp_path))


def test_only_a_predicted_run_by_hand_is_a_students_own():
    """Headless runs, replays and runs without a prediction never count."""
    predicted = replace(MADE, prediction=predict("1", "because", "x"))
    assert predicted.is_students
    assert not MADE.is_students
    assert not replace(predicted, headless=True).is_students


def test_a_replayed_run_is_marked_and_not_the_students():
    """Recorded evidence loses its prediction and says where it came from."""
    replayed = store.recorded("MX-5")
    assert (replayed.replayed_from, replayed.prediction) == (replayed.place, None)
    assert not replayed.is_students
    with pytest.raises(NotMeasured, match="No recorded run"):
        store.recorded("nothing-like-this")


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
        ("0,125", 0.125),
        ("12,5", 12.5),
        ("12 500", 12500.0),
        ("12'500", 12500.0),
        ("12\N{NARROW NO-BREAK SPACE}500,5", 12500.5),
        ("12,500.5", 12500.5),
        ("12.500,5", 12500.5),
        ("1,234,567 GB/s", 1234567.0),
        ("1.234.567", 1234567.0),
        ("1,0000", 1.0),
        ("1000,5", 1000.5),
    ],
)
def test_numbers_are_read_as_people_type_them(typed, value):
    """Commas, spaces, groups of three digits and the unit itself are fine."""
    assert parse_number(typed, "GB/s") == value


@pytest.mark.parametrize(
    ("typed", "first", "second"),
    [
        ("1,000", "1000", "1"),
        ("12,500 GB/s", "12500", "12.5"),
        ("1.500", "1500", "1.5"),
        ("+2,048", "2048", "2.0480"),
    ],
)
def test_a_number_that_could_be_two_is_asked_about(typed, first, second):
    """Half the world groups digits by the mark with which the other half divides them."""
    with pytest.raises(NotAPrediction, match=rf"could be {first} or {second}\. Type one"):
        parse_number(typed, "GB/s")
    assert [parse_number(answer, "GB/s") for answer in (first, second)] == [
        float(first),
        float(second),
    ]


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "fast",
        "1.5 apples",
        "1e999",
        "nan",
        "½",
        "9" * 60 + "z",
        "2..5.1",
        "12,50.1",
        "1,5,",
        "1.23.456,7",
    ],
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
    ("number", "unit", "message"),
    [("", None, "Choose first"), ("", "ms", "Type a number in ms"), ("1", "x", "why")],
)
def test_what_is_missing_is_asked_for_in_its_order(number, unit, message):
    """Whoever presses Lock in at once is asked for the prediction, then for the reason."""
    with pytest.raises(NotAPrediction, match=message):
        predict(number, " ", unit)
    assert "because fewer SMs" in str(predict("7.5", "fewer SMs", "x"))


def test_two_kernels_save_at_the_same_time(tmp_path):
    """Each has a draft of its own, the last to end is kept whole, a failed one leaves nothing."""
    target = tmp_path / "DP-4.json"
    with draft_of(target) as early, draft_of(target) as late:
        early.write_text("early")
        late.write_text("late")
        assert not target.exists()
    assert target.read_text() == "early"
    with pytest.raises(OSError), draft_of(target) as draft:
        draft.write_text("half")
        raise OSError
    assert [path.name for path in tmp_path.iterdir()] == ["DP-4.json"]
    assert target.read_text() == "early"
