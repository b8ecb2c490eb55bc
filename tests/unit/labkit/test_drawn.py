"""Each student gets numbers of their own, which a marker can draw again."""

import labkit


def test_a_student_keeps_the_same_numbers_and_others_have_others(monkeypatch):
    """On every machine; a marker names the student."""
    choices = {"batch": (32, 64, 128), "millions": (10, 25, 60)}
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    own = labkit.drawn("4b", **choices)
    assert own == labkit.drawn("4b", **choices) == labkit.drawn("4b", student="ada", **choices)
    assert all(own[name] in some for name, some in choices.items())
    found = {str(labkit.drawn("4b", student=f"s{one}", **choices)) for one in range(40)}
    assert len(found) == 9
