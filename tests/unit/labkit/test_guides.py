"""Instructors' guides: what a notebook asks to be explained has a rubric and a model answer."""

import re
from pathlib import Path

import pytest

from labkit.notebook.catalogue import EXPERIMENTS
from make_notebooks import marked

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "notebooks" / "src").glob("[1-7]*_*.py"))
MARK = re.compile(r'labkit\.experiment\(\s*"([^"]+)"|## (Exercise \d)|\*\*(Explain)')


def keys_to_explain(source: Path) -> list[str]:
    """The experiments and exercises of the core after which an explanation is asked for."""
    last, explanations = "", []
    for key, exercise, is_asked in MARK.findall(source.read_text(encoding="utf-8")):
        last = key or exercise or last
        if is_asked and not (last in EXPERIMENTS and EXPERIMENTS[last].is_optional):
            explanations.append("-".join(last.split("-")[:2]))  # DP-5-time belongs to DP-5
    return explanations


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_every_explanation_has_a_rubric_and_a_model_answer(source):
    """And so have the decision and the debrief."""
    guide = (ROOT / "docs" / "howto" / "teach" / f"{source.stem}.md").read_text(encoding="utf-8")
    explanations = keys_to_explain(source)
    assert explanations
    for key in explanations:
        assert f"| {key}, Explain" in guide, key
        assert f"*{key}, a model answer:*" in guide, key
    assert "(Decide)" in guide or "| Decide" in guide
    assert "*Debrief" in guide


MOST_MINUTES = 75.5  # a sitting
MACHINE_MIN = 1.0  # a notebook's core on one GPU or on two quiet cores, without a person


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_is_one_sitting(source):
    """A minute for 100 words of the core, two for a line that the student writes, six a panel."""
    text = source.read_text(encoding="utf-8")
    core = re.split(r"^# #+ (?:Your s|S)ummary", text, maxsplit=1, flags=re.MULTILINE)[0]
    cells = core.split("# %%")
    word_count = sum(len(cell.split()) for cell in cells if cell.startswith(" [markdown]"))
    lines = [line.strip() for line, block in marked(core) if block == "solution"]
    lines_to_write = sum(bool(line) and not line.startswith("#") for line in lines)
    panels = len(re.findall(r"labkit\.experiment\(", core))
    assert word_count / 100 + 2 * lines_to_write + 6 * panels + MACHINE_MIN <= MOST_MINUTES
