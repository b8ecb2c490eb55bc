"""The drawings are well-formed, say in words what they show, and lie inside their frame."""

from xml.etree import ElementTree

import pytest

from labkit.exercises.packing import A100
from labkit.notebook.drawings import picture, pictures


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_xml_with_words(name):
    """A screen reader gets the sentence, a terminal too; nothing is drawn outside."""
    shown = picture(name)
    root = ElementTree.fromstring(shown._repr_html_())
    assert root.get("role") == "img"
    assert root[0].text == repr(shown)
    for item in root.iter():
        if item.get("x") is not None:
            width = float(root.get("viewBox").split()[2])
            right = float(item.get("x")) + float(item.get("width") or 0)
            bottom = float(item.get("y")) + float(item.get("height") or 0)
            assert 0 <= right <= width
            assert 0 <= bottom <= float(root.get("viewBox").split()[3])


def test_the_geometry_is_that_of_the_packing_puzzle():
    """Seven and eight, and every profile with its shares."""
    says = repr(picture("geometry"))
    assert "seven slices of 14 SMs" in says
    shares = [f"{one.name} {one.compute} and {one.memory}" for one in A100.values()]
    assert all(share in says for share in shares)
