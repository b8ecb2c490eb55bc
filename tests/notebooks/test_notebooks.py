"""Every notebook from end to end: solved, as a student gets it, and with typical wrong answers."""

import ast
import re
import statistics
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tests.needs import needs

import make_notebooks as maker
from labkit.evidence import evidence as store
from labkit.evidence.checks import CHECKS
from labkit.evidence.evidence import predict
from labkit.evidence.published import publications
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.notebook.missing import read_tasks
from labkit.panel.plot import plot_of
from labkit.records import Verdict

needs("torch", "the notebooks measure with torch")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted((NOTEBOOKS / "src").glob("*.py"))
NAMES = [source.stem for source in SOURCES]
CORE = {
    "1_your_slice": {"T-1", "T-2", "T-3", "T-4", "T-6"},
    "2_mig_trade_offs": {"MIG-1", "MIG-3", "MIG-5", "MIG-6", "MIG-7"},
    "3_mixed_precision": {"MX-2", "MX-5", "MX-9", "MX-12"},
    "3b_kernels": {"KN-1", "KN-2", "KN-3"},
    "4a_averaging": {"DP-2", "DP-12", "DP-13"},
    "4b_sending": {"DP-3", "DP-4", "DP-6"},
    "4c_sharding": {"SH-1", "SH-2", "SH-3"},
    "5a_splitting_layers": {"MP-3"},
    "5b_memory_and_pipelines": {"MP-6"},
    "6_choose_your_slice": {"CH-1", "CH-2", "CH-3"},
    "7_which_worker_lies": {"WL-1", "WL-2"},
}
QUICKEST = "1_your_slice"  # which `./lab test` solves
LONG = pytest.mark.long
CELL_S = 600  # a cell that hangs fails; how long one takes is the machine's affair
CELL_LINES = 16  # the median of a notebook's cells may not grow beyond this


def build(name: str, target: Path, *, solutions: bool):
    """One notebook of the repository, made as the image makes it."""
    file = target / f"{name}.ipynb"
    maker.make(NOTEBOOKS / "src" / f"{name}.py", file, solutions=solutions)
    return nbformat.read(file, 4)


def execute(notebook, folder: Path):
    """Run every cell in a fresh kernel."""
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources).execute()


@pytest.fixture
def no_lease(monkeypatch: pytest.MonkeyPatch):
    """A server without a slice, whatever this test runs in."""
    for name in ("LEASE", "SHAPE", "SLICES", "SIMULATED", "API", "COURSE"):
        monkeypatch.delenv(f"MIGLAB_{name}", raising=False)
    for name in ("LAB_QUICK", "LAB_HEADLESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def assert_evidence(name: str, folder: Path):
    """Complete, marked headless, and never the opposite of what this tier should show."""
    evidence_by_key = {file.stem: store.load(file) for file in (folder / "evidence").glob("*.json")}
    assert CORE[name] <= set(evidence_by_key)
    for evidence in evidence_by_key.values():
        assert_it_grows(evidence)
        assert evidence.headless
        assert evidence.stopped is None, evidence.stopped
        judged = evidence.judgement
        if judged is None or judged.expected == "not applicable here":
            continue
        is_right = judged.verdict.value in (judged.expected, Verdict.UNDECIDED.value)
        assert is_right or is_noise(evidence), judged


def assert_it_grows(evidence):
    """A panel is drawn after each point, with a prediction, as whoever pressed Run sees it."""
    experiment = EXPERIMENTS[evidence.experiment]
    guess = "rises" if experiment.unit is None else "2"
    predicted = replace(evidence, prediction=predict(guess, "a guess", experiment.unit), ended="")
    for count in range(len(evidence.points) + 1):
        plot_of(experiment, replace(predicted, points=evidence.points[:count]))


def is_noise(evidence) -> bool:
    """A machine on which the same function differs from itself by 5 % (T-1) says so rightly."""
    return evidence.experiment == "T-1" and 0.75 < evidence.points[0].value < 1.33


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        (QUICKEST, "LAB_QUICK"),
        *(pytest.param(name, "LAB_HEADLESS", marks=LONG) for name in NAMES),
    ],
)
def test_the_solved_notebook_measures_what_its_tier_shows(name, variable, tmp_path, no_lease):
    """From the first cell to the hand-in no cell fails, and no verdict is the wrong way round.

    With the quick budget, or with every sample that a student's run takes.
    """
    no_lease.setenv(variable, "1")
    notebook = build(name, tmp_path, solutions=True)
    execute(notebook, tmp_path)
    assert_evidence(name, tmp_path)
    assert "not chosen yet" not in said_in(notebook)  # notebook 6: its tables are filled, too
    assert (tmp_path / "hand-in.zip").is_file()
    assert {*read_tasks(notebook.cells).exercises.values()} == {True}


def said_in(notebook) -> str:
    """Whatever the cells of a notebook say."""
    return "".join(
        output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


@LONG
@pytest.mark.parametrize("name", NAMES)
def test_run_all_without_answers_ends_in_sentences(name, tmp_path, no_lease):
    """As a student gets it, Run All leaves no traceback, measures no panel, and says what to do."""
    notebook = build(name, tmp_path, solutions=False)
    execute(notebook, tmp_path)
    text = said_in(notebook)
    assert "measure first" in text
    assert "rite" in text or "not yet right" in text  # "write … first", or what is missing
    assert not (tmp_path / "evidence").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_student_gets_the_parts_that_are_promised_and_no_solution(name, tmp_path):
    """What one can decide, published figures, a summary, exercises, short cells, handing in.

    The same source gives the same bytes: unedited copies in homes can be told from edited ones.
    """
    handed_out, solved = (
        maker.build_text(source_of(name), solutions=is_solved) for is_solved in (False, True)
    )
    assert handed_out != solved
    assert not re.search("(solution|student)>", handed_out + solved)
    notebook = build(name, tmp_path, solutions=False)
    first_bytes = (tmp_path / f"{name}.ipynb").read_bytes()
    build(name, tmp_path, solutions=False)
    assert (tmp_path / f"{name}.ipynb").read_bytes() == first_bytes
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for part in ("Afterwards you can decide", "Summary", "ublished", "ptional"):
        assert part.casefold() in prose.casefold(), part
    assert 1 <= prose.count("## Exercise") <= 4
    tasks = read_tasks(notebook.cells)
    assert CORE[name] <= {*tasks.experiments}
    assert all(heading.startswith("Exercise ") for heading in tasks.exercises)
    assert f'labkit.fresh_copy("{name}")' in prose
    assert notebook.cells[-1].source == "labkit.hand_in()"
    lengths = [len(c.source.splitlines()) for c in notebook.cells if c.cell_type == "code"]
    assert statistics.median(lengths) <= CELL_LINES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# <solution>\nx = 1\n", "never closed"),
        ("# </solution>\n", "closes nothing"),
        ("# <solution>\n# <student>\n", "inside"),
        ("# <student>\n# </solution>\n", "closes nothing"),
    ],
)
def test_marks_that_do_not_match_are_refused(text, message):
    """A forgotten mark would hand the solutions out."""
    with pytest.raises(ValueError, match=message):
        maker.build_text(text, solutions=False)


def test_each_build_gets_its_own_lines():
    """A stub for students, the answer for the solved build, the indentation kept."""
    solution = "    # <solution>\n    return 1\n    # </solution>\n"
    text = f"def f():\n{solution}    # <student>\n    # return None\n    # </student>\n"
    assert maker.build_text(text, solutions=True) == "def f():\n    return 1\n"
    assert maker.build_text(text, solutions=False) == "def f():\n    return None\n"


def source_of(name: str) -> str:
    return (NOTEBOOKS / "src" / f"{name}.py").read_text()


def shown_in(name: str) -> set[str]:
    """The experiments a notebook shows."""
    return set(re.findall(r'labkit\.experiment\(\s*"([^"]+)"', source_of(name)))


def test_the_catalogue_holds_what_the_notebooks_show_and_no_more():
    """No words without a panel, no panel without words; the core has checks of the same names."""
    pairs_by_notebook = {
        name: [(key, EXPERIMENTS[key]) for key in shown_in(name)] for name in NAMES
    }
    assert {key for pairs in pairs_by_notebook.values() for key, _ in pairs} == set(EXPERIMENTS)
    assert {
        name: {key for key, experiment in pairs if experiment.check and not experiment.is_optional}
        for name, pairs in pairs_by_notebook.items()
    } == CORE
    assert set(CHECKS) >= set().union(*CORE.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_imports_labkit_and_no_room_of_it(name):
    """One module to know; what else is imported is Python's own, or torch."""
    tree = ast.parse(maker.build_text(source_of(name), solutions=True))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    rooms = [ast.unparse(node) for node in imports if "labkit" in ast.unparse(node)]
    assert rooms == ["import labkit"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_cites_every_source_whose_figures_it_uses(name):
    """Author, title and link stand where a published figure is drawn or printed."""
    text = source_of(name)
    rows = [EXPERIMENTS[key].published for key in shown_in(name)]
    figures = [figure for row in rows if row for figure in (*row.places, row.base) if figure]
    used = {figure.split(".")[0] for figure in figures}
    used |= set(re.findall(r'f?"(cern5|cern6|dettmers|habr|nvidia)\.', text))
    cited = set(re.findall(r'"(\w+)"', " ".join(re.findall(r"labkit\.cite\((.*)\)", text))))
    assert used <= cited
    assert cited <= set(publications())


@pytest.mark.parametrize("name", NAMES)
def test_every_core_panel_stands_under_a_prompt(name):
    """The text before a panel asks for the prediction, and between two panels there is one."""
    prompted = False
    for part in source_of(name).split("# %%"):
        if part.startswith(" [markdown]"):
            prompted = prompted or "**Predict" in part
        for key in re.findall(r'labkit\.experiment\(\s*"([^"]+)"', part):
            assert prompted or EXPERIMENTS[key].is_optional, key
            prompted = False
