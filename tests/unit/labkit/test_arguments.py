"""Every public call refuses nonsense with a sentence, and starts nothing for it."""

import re
import types
from pathlib import Path

import pytest

import labkit
from labkit.errors import LabError

SOURCES = Path(__file__).parents[3] / "notebooks" / "src"
pytestmark = pytest.mark.usefixtures("nothing_starts")
FINDS_OUT = {"where", "is_quick", "is_measured_here", "rounds", "peak_rss_mib"}  # take nothing
PUBLIC = {name: one for name, one in vars(labkit.steps).items() if hasattr(one, "__wrapped__")}
PUBLIC |= {name: getattr(labkit, name) for name in labkit.__all__}


def timed(samples=1, n=1):
    """A student's function whose arguments are called as options are."""


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("measure", (5,), "takes a function for `function`"),
        ("compare", (len, None), "takes a function for `b`"),
        ("fresh_copy", (3,), "takes a text for `name`"),
        ("summary", ("T-1", 4), "takes a text for `keys`"),
        ("card", ("here",), "takes a `Place` for `place`"),
        ("cite", ("wikipedia",), "No source"),
        ("picture", ("cat",), "No picture"),
        ("count_visible", ([0],), "devices' names"),
        ("count_visible", ([],), "devices' names"),
        ("experiment", ("T-2", 5), "is no step"),
        ("experiment", ("NEW",), "give title, question"),
        ("experiment", (), "missing a required argument"),
        ("together", (3, ("a",)), "takes a function for `function`"),
        ("together", (len, 3), "takes a dictionary or a list for `spots`"),
        ("timed_step", ("a", "right", len), "takes a number for `x`"),
        ("hand_in", (7,), "`notebooks`"),
    ],
)
def test_what_is_wrong_is_named(name, arguments, says):
    """The sentence says which argument, and what it should be."""
    with pytest.raises(LabError, match=says):
        PUBLIC[name](*arguments)


def test_a_known_experiment_asks_for_its_words():
    """Braces that nobody fills, and words that nobody asked for, are named."""
    step = labkit.steps.computed_step("a", 1, lambda: 1.0)
    with pytest.raises(LabError, match="MIG-1 takes unit"):
        labkit.experiment("MIG-1", step)
    with pytest.raises(LabError, match="T-2 takes no words"):
        labkit.experiment("T-2", step, unit="SMs")
    own = {"title": "Mine", "question": "How long?", "x_label": "x", "y_label": "ms"}
    assert labkit.experiment("MY-1", step, **own).experiment.title == "Mine"
    with pytest.raises(LabError, match="has no colour"):
        labkit.experiment("MY-1", step, **own, colour="red")


def test_every_public_name_is_a_call_a_record_or_a_room():
    """Nothing else is exported."""
    for name, one in PUBLIC.items():
        assert isinstance(one, types.FunctionType | types.ModuleType | type), name


def test_a_notebook_knows_forty_names_at_most():
    """All that are exported, and what else the notebooks take of labkit."""
    texts = [file.read_text() for file in SOURCES.glob("*.py")]
    used = {name for text in texts for name in re.findall(r"\blabkit\.([A-Za-z_]+)", text)}
    assert len(used | set(labkit.__all__)) <= 40


@pytest.mark.parametrize("name", sorted(FINDS_OUT))
def test_what_takes_nothing_refuses_what_it_is_given(name):
    """In a sentence, as the others do."""
    with pytest.raises(LabError, match=name):
        PUBLIC[name](3, "and more")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: labkit.measure(timed, samples=40), "both an option of measure and an argument"),
        (lambda: labkit.ranks(timed, n=4), "both an option of ranks and an argument of `timed`"),
        (lambda: labkit.parts.parts_of(3), "takes a `Place`"),
        (lambda: labkit.published.figure("nowhere"), "no published figure `nowhere`"),
        (lambda: labkit.exercises.packing.used_sms({"9g.90gb": 1}), "no profile `9g.90gb`"),
        (lambda: labkit.exercises.roofline.matmul(2, 2, 2, "float7"), "no format known here"),
        (lambda: labkit.sharing.why_not("turns"), "no way to share"),
        (lambda: labkit.parts.on_part(timed, 0), "of at least 1 for `size`"),
        (lambda: labkit.parts.on_part(timed, True), "takes a whole number"),
        (lambda: labkit.parts.launches("here"), "launches takes a `Place`"),
        (lambda: labkit.exercises.networks.mlp(0, 2), "of at least 1 for `width`"),
        (
            lambda: labkit.exercises.networks.transformer_step("4", 64, 1, 8),
            "a whole number for `batch`",
        ),
        (lambda: labkit.stats.median([]), "at least one"),
        (lambda: labkit.stats.median("fast"), "a list of numbers"),
        (lambda: labkit.stats.line_fit([1, 2], [3, float("nan")]), "y = .3, nan"),
        (lambda: labkit.stats.line_fit([1.0], [2.0]), "two points or more"),
        (lambda: labkit.stats.line_fit([1, 2], [2, 3, 4]), r"not x = \[1, 2\]"),
    ],
)
def test_rooms_that_notebooks_use_refuse_too(call, says):
    """What a student mistypes in a room's call is a sentence as well."""
    with pytest.raises(LabError, match=says):
        call()
