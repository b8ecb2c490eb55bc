"""Every argument of every public call, wrong in every way that people get it wrong, is refused."""

import inspect
import re
import types
from pathlib import Path

import pytest

import labkit
from labkit.arguments import options_of
from labkit.errors import LabError
from labkit.measuring.measure import compare_async, measure_async, ranks_async
from labkit.measuring.sharing import Way, turns_async
from labkit.records import CpuBudget, Device, Lease, Place, Tier

PLACE = Place(Tier.CPU, (Device("cpu", "a CPU", 1024),), "none", CpuBudget(1.0, 1), Lease())
SPANS = [("operators", "aten::mm", 0.0, 1.0)]


def work(batch=4):
    """A student's function."""


class Network:
    """Stands in for a network where nothing is counted."""

    def parameters(self):
        return []


TIME = {"samples": 20, "flops": 1.0, "moved_bytes": 1.0}
CHILD = {"budget_s": 10.0, "timeout_s": 60.0, "on": "1g.5gb"}
PAIR = {**CHILD, "ranks": 1, "cold": True, "dtype": "float32", "on_update": work}
STEP = {"label": "a", "x": 1.0, "function": work}
TURNS = {"way": Way.TIME, "copies": 2, "sms_per_copy": 16, "pairs": 5, "timeout_s": 60.0}
RIGHT = {
    "card": {"place": PLACE},
    "cite": {"names": "cern5"},
    "compare": {"a": work, "b": work, "band": (0.9, 1.1), **PAIR},
    "compared_step": {
        "label": "a", "x": 1.0, "a": work, "b": work, "band": (0.9, 1.1), "seconds": 9.0,
        "series": "", **PAIR,
    },
    "computed_step": STEP,
    "count_step": {"step": work, "network": Network()},
    "count_visible": {"choices": ["GPU-1"]},
    "evidence_of": {"key": "T-1", "folder": Path()},
    "experiment": {"key": "MY-1", "title": "t", "question": "q", "x_label": "x", "y_label": "y"},
    "fresh_copy": {"name": "1_your_slice", "folder": Path()},
    "hand_in": {"notebooks": "a.ipynb", "folder": Path()},
    "in_turns": {"works": {"a": work}, "times": 5},
    "is_measured_here": {"optional": True},
    "measure": {"function": work, **PAIR, **TIME},
    "partition": {"slices": ("1g.5gb", 0)},
    "peak": {"function": work, "timeout_s": 60.0},
    "drawn": {"question": "1", "student": "ada", "batch": [32, 64]},
    "picture": {"name": "ring"},
    "pipeline": {"schedule": [[(0, "F", 0)]], "stages": 1},
    "pipeline_run": {"spans": [(0, "F", 0, 0.0, 1.0)], "ranks": 1, "title": "t"},
    "profile_of": {"work": work, "ridge": 1.0},
    "ranks": {"function": work, "n": 2, "share_device": False, "timeout_s": 60.0, "on": "1g.5gb"},
    "recorded_note": {"keys": "T-1"},
    "recorded_run": {"key": "T-1"},
    "shared_step": {**STEP, **TURNS, "shows": "gain", "series": ""},
    "spans_of": {"work": work, "warm": 2, "inner": False},
    "summary": {"keys": "T-1", "folder": Path()},
    "timed_step": {**STEP, "value": "mib", "seconds": 9.0, "series": "", **PAIR, **TIME},
    "timeline": {"spans": SPANS, "title": "t"},
    "together": {
        "function": work, "spots": {"a": 1}, "value": "mib", "n": 2, "seconds": 9.0,
        "link": "none", "relative": False, "series": {"a": "b"}, "on": "1g.5gb",
        "share_device": False,
    },
}  # fmt: skip
TAKE_NOTHING = {"is_quick", "peak_rss_mib", "rounds", "where"}
FINDS_OUT = sorted(TAKE_NOTHING | {"is_measured_here"})
SOURCES = Path(__file__).parents[3] / "notebooks" / "src"
PUBLIC = {name: getattr(labkit, name) for name in labkit.__all__}
PUBLIC |= {
    name: public for name, public in vars(labkit.steps).items() if hasattr(public, "__wrapped__")
}
CALLS = {name for name, public in PUBLIC.items() if inspect.isfunction(public)} - TAKE_NOTHING

A_NUMBER = ["x", True, [], {}, float("nan"), float("inf")]
WRONG = {
    int: [*A_NUMBER, 1.5, None, 0, -1],
    float: [*A_NUMBER, None],
    bool: ["no", 1, 0.0, None, []],
    str: [5, True, [], {}, b"x", float("nan")],
    tuple: ["x", 1.0, None, (1.0,), (2.0, 1.0), ("a", "b"), (float("nan"), 1.0), (True, 2.0), []],
    dict: ["x", 5, True],
    list: ["x", 5, None, {}, []],
    range: ["x", 5, None, [], range(0), range(9, 1, -1)],
}
ALSO = {
    "spots": [None, [], {}, [[]], [1], {1: 2}, {"a": "b"}],
    "works": [None, [], {}, {"a": 1}, work],
    "key": ["", "../T-1", None],
    "slices": [("9g.90gb", 0), ("1g.5gb", 8), ("1g.5gb", "0"), ("1g.5gb",), "x", 5, None],
    "schedule": [[5], [[5]], [["a"]], "x", None],
    "spans": [[], [5], [(1, 2)], [("a", "b", "c", "d")], "x", None],
    "names": ["wikipedia"],
}
ONLY = {"slices", "schedule", "spans"}  # what is wrong in other ways than its type's others
NONE_OR = {"samples", "flops", "moved_bytes", "on", "link", "value", "dtype", "sms_per_copy"}
NONE_OR |= {"pairs", "series", "on_update"}
MORE_THAN_ZERO = {"seconds", "budget_s", "timeout_s"}


OWN_WORDS = {"count_step", "count_visible", "partition", "pipeline", "pipeline_run", "timeline"}
OWN_WORDS |= {"names", "way"}  # which say what is taken there, without the name


def wrong_values(name, right):
    """What may not stand in the place of a right value."""
    kind = next((right_type for right_type in WRONG if type(right) is right_type), None)
    values = [] if name in ONLY else [*WRONG.get(kind, [None, 5, "x", [], True])]
    if name in MORE_THAN_ZERO:
        values += [0, -1.0]
    if name == "warm":
        values.remove(0)
    if name in NONE_OR:
        values = [value for value in values if value is not None]
    if name == "value":  # a fact's name, or a function
        values = [value for value in values if not isinstance(value, str)]
    if isinstance(right, Path):
        values = [None, 5, True, []]
    if right is None:  # what only labkit's own panels pass
        values = [5, "x"]
    if name == "spots":
        values = []
    return values + ALSO.get(name, [])


def call_by_name(call, arguments):
    """The call as a student would write it."""
    function = PUBLIC[call]
    shape = inspect.signature(function).parameters
    several = [
        name for name, parameter in shape.items() if parameter.kind is parameter.VAR_POSITIONAL
    ]
    positional = [arguments[name] for name in several if name in arguments]
    return function(*positional, **{n: v for n, v in arguments.items() if n not in several})


@pytest.fixture(autouse=True)
def _may_borrow(monkeypatch, tmp_path):
    """On a server that borrows, so that `on=` means something; whoever measures has not refused."""

    def started(*_, **__):
        raise AssertionError("it was measured")

    for module in ("run.child", "measuring.measure", "measuring.place"):
        monkeypatch.setattr(f"labkit.{module}.run_blocking", started)
    monkeypatch.setenv("MIGLAB_BORROW", '["1g.5gb"]')
    monkeypatch.chdir(tmp_path)  # where a call writes


def fault(call, name, wrong):
    """What is not as it should be when this is called; empty where it is refused well."""
    try:
        call_by_name(call, {**RIGHT[call], name: wrong})
    except LabError as error:
        message = str(error)
        inside = any(part in message for part in ("Traceback", "NoneType", "object has no"))
        is_sentence = 30 < len(message) < 400 and message.endswith((".", "?"))
        is_named = bool({call, name} & OWN_WORDS) or re.search(
            rf"`{name}`|{name}=|give {name}", message
        )
        return "" if is_sentence and is_named and not inside else message
    except BaseException as error:  # whatever it is: a student would see our code
        return f"{type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize("call", sorted(RIGHT))
def test_a_wrong_argument_is_refused_in_a_sentence(call):
    """Each argument and option, with each value that it may not have; it says which."""
    tried = [
        (name, wrong) for name, right in RIGHT[call].items() for wrong in wrong_values(name, right)
    ]
    faults = {
        f"{name}={wrong!r}": problem
        for name, wrong in tried
        if (problem := fault(call, name, wrong))
    }
    assert not faults


def test_every_call_and_every_option_is_in_the_table():
    """A new call or option joins it."""
    assert RIGHT.keys() == CALLS
    for call, arguments in RIGHT.items():
        shape = inspect.signature(PUBLIC[call]).parameters.values()
        parameters = {p.name for p in shape if p.kind is not p.VAR_KEYWORD}
        assert parameters - {"steps", "optimizers", "arguments"} <= arguments.keys(), call
    carry_out = {"measure": measure_async, "compare": compare_async, "ranks": ranks_async}
    for call, run in {**carry_out, "shared_step": turns_async}.items():
        assert RIGHT[call].keys() >= options_of(run).keys(), call


@pytest.mark.parametrize(
    "call", ["measure", "ranks", "peak", "together", "timed_step", "shared_step"]
)
def test_an_argument_that_the_function_does_not_have_is_named(call):
    """A mistyped option, too, is refused before anything runs."""
    with pytest.raises(LabError, match="`work` has no argument `widht`"):
        call_by_name(call, {**RIGHT[call], "widht": 64})


def timed(samples=1, n=1):
    """A student's function whose arguments are called as options are."""


COUNTED = labkit.steps.computed_step("a", 1, lambda: 1.0)
OWN = {"title": "Mine", "question": "How long?", "x_label": "x", "y_label": "ms"}
SAYS = [
    (lambda: labkit.picture("cat"), "No picture"),
    (lambda: labkit.experiment("T-2", 5), "is no step"),
    (lambda: labkit.experiment("NEW"), "give title, question"),
    (lambda: labkit.experiment(), "missing a required argument"),
    (lambda: labkit.experiment("MIG-1", COUNTED), "MIG-1 takes unit"),
    (lambda: labkit.experiment("T-2", COUNTED, unit="SMs"), "T-2 takes no words"),
    (lambda: labkit.experiment("MY-1", COUNTED, **OWN, colour="red"), "has no colour"),
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
    (lambda: labkit.exercises.networks.transformer_step("4", 64, 1, 8), "number for `batch`"),
    (lambda: labkit.stats.median([]), "at least one"),
    (lambda: labkit.stats.median("fast"), "a list of numbers"),
    (lambda: labkit.stats.line_fit([1, 2], [3, float("nan")]), "y = .3, nan"),
    (lambda: labkit.stats.line_fit([1.0], [2.0]), "two points or more"),
    (lambda: labkit.stats.line_fit([1, 2], [2, 3, 4]), r"not x = \[1, 2\]"),
    *((lambda name=name: PUBLIC[name](3, "and more"), name) for name in FINDS_OUT),
]


@pytest.mark.parametrize(("call", "sentence"), SAYS, ids=[sentence for _, sentence in SAYS])
def test_what_is_mistyped_elsewhere_is_a_sentence_too(call, sentence):
    """A name that nobody knows, words of an experiment, a room that notebooks use."""
    with pytest.raises(LabError, match=sentence):
        call()


def test_an_experiment_of_ones_own_needs_only_words():
    """A key that no notebook has, with its texts."""
    experiment = labkit.experiment("MY-1", COUNTED, **OWN, unit="ms").experiment
    assert (experiment.title, experiment.unit) == ("Mine", "ms")


def test_a_notebook_knows_forty_names_at_most():
    """Calls, records and rooms: all that are exported, and what else the notebooks use."""
    for name, exported in PUBLIC.items():
        assert isinstance(exported, types.FunctionType | types.ModuleType | type), name
        assert exported.__doc__, "the reference is made of them"
    texts = [file.read_text() for file in SOURCES.glob("*.py")]
    used = {name for text in texts for name in re.findall(r"\blabkit\.([A-Za-z_]+)", text)}
    assert len(used | set(labkit.__all__)) <= 40
