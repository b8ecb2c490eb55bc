"""Layout files: read and written back the same; what is wrong is said with file, line and key."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_api.layouts import LayoutSpec, LayoutTime
from miglab_pool.gpu.geometry import Geometry, Profile, maximal_layouts
from miglab_pool.gpu.simulated.models import model_named
from miglab_pool.layouts.checks import PartitionableGpu
from miglab_pool.layouts.file import LayoutError, chosen, dump, read, resolve

A100 = model_named("A100-40GB").geometry
A30 = Geometry(4, (Profile("1g.6gb", 14, 0, 1, 1, 14, 5952, 4, (0, 1, 2, 3)),))
GPUS = [PartitionableGpu(f"GPU-{n}", n, "NVIDIA A100", A100) for n in range(3)]
MIXED = [*GPUS[:1], PartitionableGpu("GPU-a30", 1, "NVIDIA A30", A30)]
NOW = dt.datetime(2026, 6, 1, 8, 0, tzinfo=dt.UTC).timestamp()
COURSES = ("vision", "deep")

WHOLE = """\
# how the GPUs of the practical are cut
version: 1
layouts:
  practical:
    course: vision
    gpus:
      all: 4g + 3x1g
      2: [7g]
    when:
      - weekdays: mon-wed, fri
        from: 10:00
        to: 12:30
        tz: Europe/Berlin
      - date: 2026-12-24
        from: "09:00"
        to: "10:00"
        tz: UTC
  rest:
    gpus: {"0-1, GPU-2": [3g.20gb, 2x1g.5gb]}
"""


def specs(text: str, gpus: list[PartitionableGpu] = GPUS) -> list[LayoutSpec]:
    return resolve(read(text, "practical.yaml"), gpus, COURSES, NOW)


def test_read() -> None:
    """A file means what it says: names in full, times as a clock shows them, UUIDs for indices."""
    practical, rest = specs(WHOLE)
    assert practical == LayoutSpec(
        name="practical",
        course="vision",
        gpus={
            "GPU-0": ("1g.5gb", "1g.5gb", "1g.5gb", "4g.20gb"),
            "GPU-1": ("1g.5gb", "1g.5gb", "1g.5gb", "4g.20gb"),
            "GPU-2": ("7g.40gb",),
        },
        when=(
            LayoutTime(
                weekdays=("mon", "tue", "wed", "fri"),
                from_time="10:00",
                to_time="12:30",
                tz="Europe/Berlin",
            ),
            LayoutTime(date=dt.date(2026, 12, 24), from_time="09:00", to_time="10:00", tz="UTC"),
        ),
    )
    assert rest.gpus == dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), ("1g.5gb", "1g.5gb", "3g.20gb"))


def test_all_on_gpus_of_several_kinds() -> None:
    """A short name is each GPU's own profile."""
    (found,) = specs("version: 1\nlayouts: {a: {gpus: {all: 4x1g}}}", MIXED)
    assert found.gpus == {"GPU-0": ("1g.5gb",) * 4, "GPU-a30": ("1g.6gb",) * 4}


def test_chosen() -> None:
    """By name one takes some of a file's layouts; a name that is not there lists those that are."""
    drafts = read(WHOLE, "a.yaml")
    assert [draft.name for draft in chosen(drafts, ["rest"])] == ["rest"]
    assert len(chosen(drafts, [])) == 2
    with pytest.raises(LayoutError, match="no layout 'other'; there are practical, rest"):
        chosen(drafts, ["other"])


# -- round trip -----------------------------------------------------------------------------------

PARTITIONS = [
    tuple(sorted(item.profile.name for item in layout))
    for layout in maximal_layouts(A100, [profile.name for profile in A100.profiles])
]
clock = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda at: f"{at[0]:02}:{at[1]:02}")
days = st.sets(st.sampled_from(("mon", "tue", "wed", "thu", "fri", "sat", "sun")), min_size=1)


@st.composite
def times(draw: st.DrawFn) -> LayoutTime:
    first, last = sorted(draw(st.sets(clock, min_size=2, max_size=2)))
    some = draw(days)
    found: dict[str, Any] = {"date": draw(st.dates(dt.date(2026, 6, 2), dt.date(2027, 1, 1)))}
    if draw(st.booleans()):
        order = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
        found = {"weekdays": tuple(day for day in order if day in some)}
    return LayoutTime(from_time=first, to_time=last, tz="Europe/Berlin", **found)


@st.composite
def layouts(draw: st.DrawFn) -> LayoutSpec:
    """Any layout: any cut, or a part of one, on any GPUs, at any times."""
    partition = st.sampled_from(PARTITIONS).flatmap(
        lambda whole: st.sets(st.integers(0, len(whole) - 1)).map(
            lambda some: tuple(whole[n] for n in sorted(some))
        )
    )
    name = st.from_regex(r"\A[aZä漢0_]([aZä漢0_.+ -]{0,20}[aZä漢0_.+-])?\Z")
    return LayoutSpec(
        name=draw(name),
        course=draw(st.sampled_from(("", *COURSES))),
        gpus=draw(
            st.dictionaries(st.sampled_from([gpu.uuid for gpu in GPUS]), partition, min_size=1)
        ),
        when=tuple(draw(st.lists(times(), max_size=3))),
    )


@given(layouts())
@settings(max_examples=3 * settings.default.max_examples)
def test_round_trip(spec: LayoutSpec) -> None:
    """What is written of any layout is read as that very layout."""
    assert specs(dump([spec])) == [spec]


def test_every_partition_round_trips() -> None:
    """All the layouts that an A100 can have."""
    assert len(set(PARTITIONS)) > 38
    for partition in set(PARTITIONS):
        spec = LayoutSpec(name="a", gpus={"GPU-1": partition})
        assert specs(dump([spec])) == [spec]


# -- what is wrong --------------------------------------------------------------------------------

HEAD = "version: 1\nlayouts:\n  a:\n"
WHEN = HEAD + "    gpus: {all: 1g}\n    when:\n      - "
TIME = "{weekdays: mon, from: '10:00', to: '11:00', tz: UTC}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "practical.yaml:1: it is empty; begin with version: 1."),
        ("# nothing\n", "practical.yaml:1: it is empty"),
        ("just words", "practical.yaml:1: it must be a mapping with the keys version, layouts."),
        ("- a\n- b", "practical.yaml:1: it must be a mapping"),
        ("version: 1", "practical.yaml:1: the key layouts is missing."),
        ("layouts: {}", "practical.yaml:1: the key version is missing."),
        ("version: 2\nlayouts: {}", "practical.yaml:1: version: this miglab reads version 1"),
        ("version: v1\nlayouts: {}", "practical.yaml:1: version: this miglab reads version 1"),
        ("version: [1]\nlayouts: {}", "practical.yaml:1: version: it must be one word"),
        ("version: 1\nlayouts: {}", "practical.yaml:2: layouts: a file has 1 to 32 layouts"),
        ("version: 1\nlayouts: []", "practical.yaml:2: layouts: it must be a mapping"),
        (HEAD + "    gpu: {all: 1g}", "practical.yaml:4: layouts.a.gpu: there is no such key; "
                                      "allowed here: gpus, course, when."),
        (HEAD + "    course: deep", "practical.yaml:3: layouts.a: the key gpus is missing."),
        (HEAD + "    gpus: {}", "practical.yaml:4: layouts.a.gpus: name a GPU by index or UUID"),
        (HEAD + "    gpus: 1g", "practical.yaml:4: layouts.a.gpus: it must be a mapping"),
        (HEAD + "    gpus: {all: 1h}", "practical.yaml:4: layouts.a.gpus.all: '1h' is no profile"),
        (HEAD + "    gpus:\n      0: [1g,\n       full]", "practical.yaml:6: layouts.a.gpus.0.1: "
                                                         "'full' is no profile: write '1g.5gb'"),
        (HEAD + "    gpus: {0: {1g: 3}}", "layouts.a.gpus.0: it must be a list of profiles, such"),
        (HEAD + "    gpus: {0: [[1g]]}", "layouts.a.gpus.0.0: it must be one word or text."),
        (HEAD + "    gpus:\n      all: 4g + 4x1g", "practical.yaml:5: layouts.a.gpus.all: GPU 0 "
         "(NVIDIA A100): 4g.20gb + 4x1g.5gb do not fit on it: beside 4g.20gb + 3x1g.5gb, which "
         "would fit, there is no place for 1g.5gb."),
        (HEAD + "    gpus:\n      all: 5g", "it has no 5g; it can be cut into 1g.5gb, 2g.10gb"),
        (HEAD + "    gpus:\n      3: 1g", "practical.yaml:5: layouts.a.gpus.3: there is no such "
         "GPU that can be cut; there are 0 (GPU-0), 1 (GPU-1), 2 (GPU-2)."),
        (HEAD + "    gpus: {1-3: 1g}", "layouts.a.gpus.1-3: there is no such GPU"),
        (HEAD + "    gpus: {GPU-9: 1g}", "layouts.a.gpus.GPU-9: there is no such GPU"),
        (HEAD + "    gpus: {'': 1g}", "layouts.a.gpus: there is no such GPU"),
        (HEAD + "    gpus:\n      0: 1g\n      GPU-0: 1g", "practical.yaml:6: layouts.a.gpus.GPU-0:"
         " GPU 0 is named in line 5 already."),
        (HEAD + "    gpus:\n      0: 1g\n      0: 2g", "practical.yaml:6: layouts.a.gpus.0: it "
         "stands there already, in line 5."),
        (HEAD + "    gpus: {all: 1g}\n    course: nope", "practical.yaml:3: layouts.a: there is no "
         "course 'nope' here; courses: deep, vision."),
        (WHEN + "mon", "practical.yaml:6: layouts.a.when.0: it must be a mapping with the keys "
         "weekdays, date, from, to, tz."),
        (WHEN + "{weekdays: mon, to: '11:00', tz: UTC}", "layouts.a.when.0: the key from is miss"),
        (WHEN + TIME.replace("weekdays: mon, ", ""), "layouts.a.when.0: say either weekdays"),
        (WHEN + TIME.replace("mon,", "mon, date: 2026-12-24,"), "when.0: say either weekdays"),
        (WHEN + TIME.replace("mon", "noday"), "layouts.a.when.0.weekdays: 'noday' is no weekday"),
        (WHEN + TIME.replace("10:00", "25:00"), "layouts.a.when.0.from: '25:00' is not a time"),
        (WHEN + TIME.replace("weekdays: mon", "date: tomorrow"), "when.0.date: 'tomorrow' is not"),
        (WHEN + TIME.replace("weekdays: mon", "date: 2020-01-01"), "2020-01-01 10:00-11:00 is ov"),
        (WHEN + TIME.replace("11:00", "09:00"), "practical.yaml:6: layouts.a.when.0: 10:00 to 09:00"
         " is no time"),
        (WHEN + TIME.replace("UTC", "Mars/Olympus"), "layouts.a.when.0: There is no time zone"),
        (HEAD + "    gpus: {all: 1g}\n    when: []", "it has 0 times; 1 to 64 can be"),
        (HEAD + "    gpus: {all: 1g}\n    when: always", "layouts.a.when: it must be a list of"),
        (HEAD + "    gpus: {0: 1g}\n  b:\n    gpus: {all: 2g}", "practical.yaml:5: layouts.b: "
         "Layouts a and b both cut GPU-0 at any time"),
        ("version: 1\nlayouts: {a/b: {gpus: {all: 1g}}}", "layouts.a/b: a name has letters"),
        ("version: 1\nlayouts: {? [a] : {gpus: {all: 1g}}}", "layouts.?: it must be one word"),
        ("version: 1\nlayouts: {a: &x {gpus: {all: 1g}}, b: *x}", "anchors, aliases and tags"),
        ("version: !!int 1\nlayouts: {}", "anchors, aliases and tags"),
        ("version: 1\n---\nversion: 1", "practical.yaml:2: a layout file is one document"),
        ("[" * 5000, "practical.yaml:1: a layout file is one document"),
        ("version: 1\nlayouts:\n\ta: 1", "practical.yaml:3: this is no YAML: found character"),
        ("version: 1\nlayouts: {a: [", "practical.yaml:2: this is no YAML"),
        ("version: 1\na\x00", "practical.yaml:2: this is no YAML: no text."),
        ("version: '1", "this is no YAML"),
    ],
)  # fmt: skip
def test_wrong(text: str, says: str) -> None:
    """Whatever is wrong: file, line, key, why, and what would do."""
    with pytest.raises(LayoutError) as error:
        specs(text)
    assert says in str(error.value)
    assert str(error.value).startswith("practical.yaml:")


def test_no_gpus() -> None:
    """While no GPU can be cut, that is what is said."""
    with pytest.raises(LayoutError, match="no GPU that can be cut now"):
        specs("version: 1\nlayouts: {a: {gpus: {all: 1g}}}", [])


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    """No text does anything but be read or be refused."""
    try:
        specs(text)
    except LayoutError as error:
        assert error.position.line >= 1


@given(st.lists(st.sampled_from(sorted(set(WHOLE.replace(":", " : ").split()))), max_size=40))
@settings(max_examples=3 * settings.default.max_examples)
def test_any_words_of_a_layout(words: list[str]) -> None:
    """The words of a good file in any order are read or refused, never an error of ours."""
    for between in (" ", "\n"):
        try:
            specs(between.join(words))
        except LayoutError as error:
            assert str(error)
