"""Drawings: fixed ones lie in their frame; what students put together is drawn, right or wrong."""

from xml.etree import ElementTree

import pytest

from labkit.exercises.packing import A100
from labkit.notebook.drawings import partition, picture, pictures, pipeline

FOUR = [("1g.5gb", start) for start in range(4)]


def words_of(picture) -> str:
    """The words of a drawing: those above it, in its lanes, and in its boxes."""
    (bars, labels), title = picture.spec["layer"], picture.spec["title"]
    return " ".join([*title["text"], *title["subtitle"], *texts(bars), *texts(labels)])


def texts(layer) -> list[str]:
    """What the boxes of a layer say, and the names of their lanes and kinds."""
    return [row[name] for row in layer["data"]["values"] for name in ("lane", "kind", "label")]


def test_a_partition_says_what_is_in_use():
    """A 3g.20gb at 4 leaves room for four 1g.5gb; everything but the memory's eighth is in use."""
    drawing = partition(("3g.20gb", 4), *FOUR)
    assert "98 of 98 SMs in use, 38.62 of 39.5 GiB in use" in repr(drawing)
    assert words_of(drawing).count("1g.5gb") >= 4
    assert "not cut" in repr(partition())


@pytest.mark.parametrize(
    ("slices", "sentence"),
    [
        ([("3g.20gb", 2)], "a 3g.20gb cannot begin at 2, only at 0, 4"),
        ([("3g.20gb", 0), *FOUR], "the 1g.5gb at 3 overlaps the 3g.20gb at 0"),
        ([("7g.40gb", 4)], "cannot begin at 4, only at 0"),
    ],
)
def test_what_does_not_fit_is_drawn_and_said(slices, sentence):
    """Nothing is refused: the picture shows it, and names it."""
    assert sentence in words_of(partition(*slices))
    assert sentence in repr(partition(*slices))


def test_a_schedule_shows_its_waiting():
    """Ticks of (stage, micro-batch), or a text of F and B a stage."""
    ticks = [[(stage, at - stage) for stage in range(2) if 0 <= at - stage < 3] for at in range(4)]
    assert "25% of the time" in repr(pipeline(ticks, 2))
    drawing = pipeline(["FFFBBB", "FBFBFB"], 2)
    assert "2 stages, 8 ticks" in repr(drawing)
    assert "backward" in words_of(drawing)
    for nothing in ([], ["BF", "FB"]):
        assert pipeline(nothing, 2)._repr_mimebundle_() == {
            "text/plain": "There is no schedule to draw yet."
        }


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_xml_with_words(name):
    """A screen reader gets the sentence, a terminal too; nothing is drawn outside."""
    drawing = picture(name)
    root = ElementTree.fromstring(drawing._repr_html_())
    assert root.get("role") == "img"
    assert root[0].text == repr(drawing)
    for item in root.iter():
        if item.get("x") is not None:
            width = float(root.get("viewBox").split()[2])
            right = float(item.get("x")) + float(item.get("width") or 0)
            bottom = float(item.get("y")) + float(item.get("height") or 0)
            assert 0 <= right <= width
            assert 0 <= bottom <= float(root.get("viewBox").split()[3])


def test_the_geometry_is_that_of_the_packing_puzzle():
    """Seven and eight, and every profile with its shares."""
    description = repr(picture("geometry"))
    assert "seven slices of 14 SMs" in description
    shares = [f"{profile.name} {profile.compute} and {profile.memory}" for profile in A100.values()]
    assert all(share in description for share in shares)
