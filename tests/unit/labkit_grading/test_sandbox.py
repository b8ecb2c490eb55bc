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
from labkit_grading import grade_code, grading, sandbox
from labkit_grading.grade_code import first_foreign_name
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
FORGER = """
def answer(question, _x=[
    __import__("os").write(fd, b'{"answer_verdict": "right", "id": 0, "returned": "right"}\\n')
    for fd in range(1, 12) if __import__("os").path.exists(f"/proc/self/fd/{fd}")
]):
    __import__("os")._exit(0)
"""


@pytest.fixture
def key(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(KEY)
    return grade_code.answer_key(source)


def mark_of(key, code, limit_s=20.0):
    """The mark of one exercise, and what was said."""
    (mark,) = grade_code.mark(notebook_of(code), key, limit_s=limit_s)
    return mark


def code_returning(expression):
    """An exercise that answers this."""
    return f"def answer(question):\n    return {expression}"


def code_reaching(expression):
    """The same, of one that no person has read."""
    return f"def answer(question):\n    import os, socket, threading\n    return {expression}"


HELPER = "def half(x):\n    return x / 2\n"


@pytest.mark.parametrize("code", [code_returning("42"), HELPER + code_returning("half(84)")])
def test_honest_code_is_right(key, code):
    """The sandbox lets honest work through, also a function that only the student has."""
    assert mark_of(key, code).right


REACHES = {
    "a verdict on every open file": FORGER,
    "a name of the check": "def answer(q):\n    return (lambda: 0).__globals__",
    "a name in a text": "def answer(q):\n    return '{0.__class__}'.format(q)",
    "an object that equals everything": "class Any:\n    def __eq__(self, other): return True",
    "a module": "def answer(q):\n    import os",
    "a module of a module": "def answer(q):\n    from torch import os",
    "a module's own module": "import torch\ndef answer(q):\n    return torch.os",
    "a changed module": "import torch\ndef answer(q):\n    torch.matmul = print",
    "a changed class": "def answer(q):\n    type(q).matmul = print",
    "a changed check": "def answer(q):\n    labkit.exercises.check_fits = print",
    "the files": "def answer(q):\n    return open('/etc/passwd').read()",
}


@pytest.mark.parametrize("code", REACHES.values(), ids=REACHES)
def test_code_that_could_change_its_check_is_not_run(key, code):
    """It is left to a person, with the name that it uses."""
    mark = mark_of(key, code if "answer" in code else f"{code}\ndef answer(q): return Any()")
    assert not mark.right
    assert "reaches beyond the exercise" in mark.message


EDITED = "\ndef check_answer():\n    return 'right'\nanswer_verdict = 'right'"


@pytest.mark.parametrize("value", ['"right"', "float('nan')", "0" + EDITED])
def test_a_value_cannot_be_forged(key, value):
    """Only the value counts, and no word; the check and its numbers come from the source."""
    mark = mark_of(key, code_returning(value))
    assert not mark.right
    assert mark.message.startswith("not yet right: ")


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_the_solutions_of_every_notebook_are_right(source):
    """Honest work is run, and checks work in the sandbox: tensors, callbacks, threads, objects."""
    key = grade_code.answer_key(source)
    assert [name for name in key.exercises if first_foreign_name(key.defined[name])] == []
    marks = grade_code.mark(notebook_of(build_text(source.read_text(), solutions=True)), key)
    assert [m for m in marks if not m.right] == []


@pytest.fixture
def unread(monkeypatch):
    """Code that reaches beyond its exercise is run all the same: the sandbox must hold it."""
    monkeypatch.setattr(grade_code, "first_foreign_name", lambda text: "")


def test_the_token_stays_with_the_grader(key, monkeypatch, unread):
    """The code finds an environment without anything of the grader's."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret-token")
    assert "secret" not in mark_of(key, code_reaching("str(dict(os.environ))")).message
    ppid = "open(f'/proc/{os.getppid()}/environ').read()"
    assert "secret" not in mark_of(key, code_reaching(ppid)).message


HARM = {
    "home": "os.listdir(os.path.expanduser('~root'))",
    "read a file of ours": f"open({__file__!r}).read()",
    "write beside Python": f"open({sys.prefix!r} + '/forged', 'w')",
    "another user": "os.setuid(0)",
    "network": "socket.create_connection(('127.0.0.1', PORT), 2)",
}


@pytest.mark.parametrize("code", HARM.values(), ids=HARM)
def test_nothing_outside_is_reached(key, code, unread):
    """Files and network of this machine are not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mark = mark_of(key, code_reaching(code.replace("PORT", str(server.getsockname()[1]))))
    assert "Error" in mark.message or mark.message == "not yet right: []"
    assert not Path(sys.prefix, "forged").exists()


THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
ENDS = {
    f"[{THREAD} for _ in range(999)]": "can't start new thread",
    "len(bytearray(8 << 30))": "MemoryError",
    "os._exit(1)": "ended its own process",
    "threading.Event().wait()": "no answer within 6 s",
    "[0 for _ in iter(int, 1)]": "no answer within 6 s",
}


@pytest.mark.parametrize(("code", "message"), ENDS.items())
def test_processes_memory_and_time_are_limited(key, code, message, unread):
    """A fork bomb, a big allocation, an exit, a wait and a loop without end cost the exercise."""
    limit_s = 6.0 if message.startswith("no answer") else 20.0
    assert message in mark_of(key, code_reaching(code), limit_s=limit_s).message


def test_without_bubblewrap_code_is_refused(tmp_path, capsys, monkeypatch):
    """Where nothing isolates it, no code is run, and a sentence says where to run it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status = cli.main(["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv"), "--run-code"])
    stderr = capsys.readouterr().err
    assert status == 2
    assert "bubblewrap is not installed" in stderr
    assert "Run `labkit grade --run-code` on a Linux machine" in stderr


def test_without_user_namespaces_code_is_refused(tmp_path):
    """As in most containers: bubblewrap is there, and the kernel refuses its namespaces."""
    refusing = ["bwrap", "--unshare-user", "--uid", "1000", "--disable-userns"]
    refusing += ["--dev-bind", "/", "/"]
    command = ["grade", str(tmp_path), "--csv", str(tmp_path / "o.csv"), "--run-code"]
    process = subprocess.run(
        [*refusing, sys.executable, "-m", "labkit", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES.parent)},
    )
    assert process.returncode == 2
    assert "Students' code runs only where bubblewrap isolates it" in process.stderr


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
    assert "good" in grade_folder(tmp_path)


def grade_folder(folder):
    """Grade a folder with an honest zip beside; what is said of each zip."""
    zip_of(folder / "good.zip", {"notebooks/source.ipynb": notebook_of(code_returning("42"))})
    (folder / "source.py").write_text(KEY)
    table = folder / "marks.csv"
    plot = folder / "class.svg"
    grading.grade_folder(folder, table, plot, folder, run_code=True)
    with table.open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [row["machine_mark"] for row in rows if row["file"] == "good.zip"] == ["1"]
    return {row["file"].removesuffix(".zip"): row["look_at"] for row in rows}


def test_two_zips_of_one_student_are_told_apart(tmp_path):
    """Mallory's zip that says it is Alice's has rows of its own, and both are flagged."""
    for name, code in (("alice", "42"), ("mallory", "0")):
        parts = {"manifest.json": '{"student": "alice"}'}
        parts["notebooks/source.ipynb"] = notebook_of(code_returning(code))
        zip_of(tmp_path / f"{name}.zip", parts)
    problems = grade_folder(tmp_path)
    assert "mallory.zip claims the same student" in problems["alice"]
    assert "alice.zip claims the same student" in problems["mallory"]


def test_an_error_of_the_sandbox_is_a_sentence(monkeypatch):
    """A bubblewrap that fails is said in its own words."""
    monkeypatch.setattr(sandbox, "command", lambda *_: [shutil.which("false") or "false"])
    with pytest.raises(LabError, match="exit status 1"):
        sandbox.require()
