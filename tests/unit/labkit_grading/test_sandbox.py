"""Students' code in `labkit grade --run-code` may be wrong; it cannot forge, steal or stay."""

import csv
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.labkit_grading.test_grading import notebook_of, zip_of

from labkit.errors import LabError
from labkit_authoring import cli
from labkit_grading import grade_code, grading, sandbox, student_process
from make_notebooks import build_text

pytestmark = [pytest.mark.bubblewrap, pytest.mark.long]
SOURCES = Path(__file__).parents[3] / "notebooks/src"
KEY = """# %%
def answer(question):
    # <solution>
    return 42
    # </solution>

# %%
def check_answer():
    return "right" if answer("?") == 42 else f"not yet right: {answer('?')}"

answer_verdict = check_answer()
"""


@pytest.fixture
def key(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(KEY)
    return grade_code.answer_key(source)


def marked(key, code):
    """The mark of one exercise, and what was said."""
    (mark,) = grade_code.mark(notebook_of(code), key, sandbox.Bubblewrap())
    return mark


def returning(expression):
    """An exercise that answers this."""
    return f"def answer(question):\n    return {expression}"


def reaching(expression):
    """The same, of one that reaches beyond its exercise."""
    return f"def answer(question):\n    import os, socket, threading\n    return {expression}"


HELPER = "def half(x):\n    return x / 2\n"


@pytest.mark.parametrize("code", [returning("42"), HELPER + returning("half(84)")])
def test_honest_code_is_right(key, code):
    """The sandbox lets honest work through, also a function that only the student has."""
    assert marked(key, code).right


EDITED = "\ndef check_answer():\n    return 'right'\nanswer_verdict = 'right'"


@pytest.mark.parametrize("value", ['"right"', "float('nan')", "0" + EDITED])
def test_a_value_cannot_be_forged(key, value):
    """Only the value counts, and no word; the check and its numbers come from the source."""
    found = marked(key, returning(value))
    assert not found.right
    assert found.message.startswith("not yet right: ")


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_the_solutions_of_every_notebook_are_right(source):
    """Every check works in the sandbox: tensors, callbacks, ranks that wait for one another."""
    key, text = grade_code.answer_key(source), source.read_text(encoding="utf-8")
    notebook = notebook_of(build_text(text, solutions=True))
    marks = grade_code.mark(notebook, key, sandbox.Bubblewrap())
    assert [mark for mark in marks if not mark.right] == []


def test_the_token_stays_with_the_grader(key, monkeypatch):
    """The code finds an environment without anything of the grader's."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret-token")
    assert "secret" not in marked(key, reaching("str(dict(os.environ))")).message
    ppid = "open(f'/proc/{os.getppid()}/environ').read()"
    assert "secret" not in marked(key, reaching(ppid)).message


HARM = {
    "home": "os.listdir(os.path.expanduser('~root'))",
    "read a file of ours": f"open({__file__!r}).read()",
    "write beside Python": f"open({sys.prefix!r} + '/forged', 'w')",
    "another user": "os.setuid(0)",
    "network": "socket.create_connection(('127.0.0.1', PORT), 2)",
}


@pytest.mark.parametrize("code", HARM.values(), ids=HARM)
def test_nothing_outside_is_reached(key, code):
    """Files and network of this machine are not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = marked(key, reaching(code.replace("PORT", str(server.getsockname()[1]))))
    assert "Error" in found.message or found.message == "not yet right: []"
    assert not Path(sys.prefix, "forged").exists()


THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
ENDS = {
    f"[{THREAD} for _ in range(999)]": "can't start new thread",
    "len(bytearray(8 << 30))": "MemoryError",
    "os._exit(1)": "the process ended before it answered",
    "threading.Event().wait()": "no answer within 6 s",
    "[0 for _ in iter(int, 1)]": "no answer within 6 s",
}


@pytest.mark.parametrize(("code", "says"), ENDS.items())
def test_processes_memory_and_time_are_limited(key, code, says, monkeypatch):
    """A fork bomb, a big allocation, an exit, a wait and a loop without end cost the exercise."""
    monkeypatch.setattr(student_process, "CALL_S", 6.0)
    assert says in marked(key, reaching(code)).message


COURSE = """
def answer(question):
    import os
    return sorted(
        f"{folder}/{name}"
        for folder, folders, names in os.walk("/")
        for name in folders + names
        if not folder.startswith(("/proc", "/sys")) and any(
            part in name.lower() for part in ("labkit", "miglab", "your_slice", "hand-in")
        )
    )
"""


def test_nothing_of_the_course_is_in_the_sandbox(key, monkeypatch):
    """No labkit, no source, no hand-in: whatever somebody installed beside Python."""
    monkeypatch.setattr(student_process, "CALL_S", 100.0)  # for every folder there is
    assert marked(key, COURSE).message == "not yet right: []"


def test_without_bubblewrap_code_is_refused(tmp_path, capsys, monkeypatch):
    """Where nothing isolates it, no code is run, and a sentence says where to run it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status = cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv"), "--run-code"])
    said = capsys.readouterr().err
    assert status == 2
    assert "bubblewrap is not installed" in said
    assert "apt install bubblewrap" in said
    assert "--unprotected" in said


def test_without_user_namespaces_code_is_refused(tmp_path):
    """As in most containers: bubblewrap is there, and the kernel refuses its namespaces."""
    refusing = ["bwrap", "--unshare-user", "--uid", "1000", "--disable-userns"]
    refusing += ["--dev-bind", "/", "/"]
    command = ["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv"), "--run-code"]
    done = subprocess.run(
        [*refusing, sys.executable, "-m", "labkit", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES.parent)},
    )
    assert done.returncode == 2
    assert "Students' code runs only where something isolates it" in done.stderr


NESTED = "[" * 100_000
ODD = {
    "a member without a name": (".", "x"),
    "a deep manifest": ("manifest.json", NESTED),
    "deep evidence": ("evidence/MX-2.json", NESTED),
    "a deep notebook": ("notebooks/source.ipynb", NESTED),
    "deep code": ("notebooks/source.ipynb", notebook_of("x = " + "-" * 200_000 + "1")),
    "a name that is half a letter": ("manifest.json", '{"student": "\\ud800"}'),
    "no JSON": ("manifest.json", "{"),
    "a student who is a list": ("manifest.json", '{"student": [1]}'),
    "an empty name": ("manifest.json", '{"student": ""}'),
    "a path upwards": ("../../etc/passwd", "x"),
    "an absolute path": ("/etc/passwd", "x"),
    "another folder": ("else/where.json", "{}"),
    "a notebook that is a list": ("notebooks/source.ipynb", "[]"),
    "evidence that is a list": ("evidence/MX-2.json", "[]"),
}


@pytest.mark.parametrize(("name", "text"), ODD.values(), ids=ODD)
def test_an_odd_zip_costs_that_zip(tmp_path, name, text):
    """The others are marked, and the odd one is in the list with a word."""
    zip_of(tmp_path / "odd.zip", {name: text})
    assert "good" in graded(tmp_path)


def graded(folder):
    """Grade a folder with an honest zip beside; what is said of each zip."""
    zip_of(folder / "good.zip", {"notebooks/source.ipynb": notebook_of(returning("42"))})
    (folder / "source.py").write_text(KEY)
    table = folder / "marks.csv"
    plot = folder / "class.svg"
    grading.grade_folder(folder, table, plot, folder, isolation=sandbox.Bubblewrap())
    with table.open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["machine_mark"] for row in rows if row["file"] == "good.zip"] == ["1"]
    return {row["file"].removesuffix(".zip"): row["look_at"] for row in rows}


def test_two_zips_of_one_student_are_told_apart(tmp_path):
    """Mallory's zip that says it is Alice's has rows of its own, and both are flagged."""
    for name, code in (("alice", "42"), ("mallory", "0")):
        parts = {"manifest.json": '{"student": "alice"}'}
        parts["notebooks/source.ipynb"] = notebook_of(returning(code))
        zip_of(tmp_path / f"{name}.zip", parts)
    said = graded(tmp_path)
    assert "mallory.zip claims the same student" in said["alice"]
    assert "alice.zip claims the same student" in said["mallory"]


def test_an_error_of_the_sandbox_is_a_sentence(monkeypatch):
    """A bubblewrap that fails is said in its own words."""
    monkeypatch.setattr(sandbox.Bubblewrap, "command", lambda *_: [shutil.which("false") or ""])
    with pytest.raises(LabError, match="exit status 1"):
        sandbox.Bubblewrap().require()
