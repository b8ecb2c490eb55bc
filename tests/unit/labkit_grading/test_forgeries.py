"""Whoever wants the mark without the work: each of these was "right" while the judge ran beside it.

The exercise's answer is 42 and 43 for the questions "a" and "b"; nothing that a student's process
can reach says so.
"""

import io
import json
import os
import resource
import subprocess
import time

import pytest
from tests.needs import needs
from tests.unit.labkit_grading.in_process import InProcess
from tests.unit.labkit_grading.test_grading import notebook_of

from labkit.errors import LabError
from labkit_grading import grade_code, sandbox, student_process
from labkit_grading.answering import wire

needs("torch", "one of the forgeries patches it")

SOURCE = """# %%
def answer(question):
    # <solution>
    return 42 + (question == "b")
    # </solution>

# %%
def check_answer():
    import torch

    given = answer("a"), answer("b")
    if given[0] == 42 and torch.allclose(torch.tensor(float(given[1])), torch.tensor(43.0)):
        return "right"
    return f"not yet right: {given}"

answer_verdict = check_answer()
"""
EVERY_FILE = """
def answer(question):
    import statistics
    system = statistics.random._os
    for number in range(1, 12):
        try:
            system.write(number, b'["answer_verdict", "right"]\\n')
        except OSError:
            pass
    system._exit(0)
"""
ITS_FRAME = """
def answer(question):
    import collections
    frame = collections._sys._getframe(1)
    while frame:
        for constant in frame.f_code.co_consts:
            if constant == 42:
                return 42 + (question == "b")
        frame = frame.f_back
    return 0
"""
EQUALS_EVERYTHING = """
def answer(question):
    two = "_" * 2
    always = lambda *_: True
    names = {two + "eq" + two: always, two + "float" + two: lambda _: 43.0}
    return type("Anything", (), names)()
"""
ALLCLOSE = """
def answer(question):
    import torch as changed
    changed.allclose = lambda *_, **__: True
    return 42
"""
JSON = """
def answer(question):
    import collections
    encoder = collections._sys.modules["json"]
    encoder.dumps = lambda *_, **__: '["answer_verdict", "right"]'
    return 0
"""
EVERY_OBJECT = """
def answer(question):
    import collections
    modules = collections._sys.modules
    objects = modules["importlib"].import_module("gc").get_objects()
    code = "_" * 2 + "code" + "_" * 2
    code_of = modules["operator"].attrgetter(code)
    for function in objects:
        if type(function) is type(answer) and code_of(function).co_name == "check_answer":
            constants = code_of(function).co_consts
    return next(c for c in constants if c == 42) + (question == "b")
"""
FORKED_WRITER = """
def answer(question):
    import statistics
    system = statistics.random._os
    if not system.fork():
        system.popen("sleep 1").read()
        for number in range(1, 12):
            try:
                system.write(number, b'["answer_verdict", "right"]\\n')
            except OSError:
                pass
        system._exit(0)
    return 0
"""
SEARCHED = """
def answer(question):
    import collections, statistics
    system = statistics.random._os
    found = system.popen(
        "cat /proc/[0-9]*/environ 2> /dev/null; "
        "find / -name '*lab[k]it*' -not -path '/proc/*' 2> /dev/null"
    ).read()
    if "labkit" in collections._sys.modules or "labkit" in found:
        return 42 + (question == "b")
    return 0
"""
FORGERIES = {
    "a verdict on every open file, and an exit": EVERY_FILE,
    "the constants of the check, by its frame": ITS_FRAME,
    "an object that equals everything": EQUALS_EVERYTHING,
    "a torch that finds everything close": ALLCLOSE,
    "a json that writes its own line": JSON,
    "a walk over every object to the check": EVERY_OBJECT,
    "a forked process that writes on the channel": FORKED_WRITER,
    "the answers, searched for in files and processes": SEARCHED,
}


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    source = tmp_path_factory.mktemp("key") / "source.py"
    source.write_text(SOURCE)
    return grade_code.answer_key(source)


def marked(key, code, isolation):
    (mark,) = grade_code.mark(notebook_of(code), key, isolation)
    return mark


@pytest.mark.bubblewrap
@pytest.mark.long
@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_a_forgery_is_not_right(key, code):
    """In the sandbox there is no check to change, no channel for a verdict and nothing to find."""
    mark = marked(key, code, sandbox.Bubblewrap())
    assert not mark.right
    assert mark.message


IMAGE = os.environ.get("MIGLAB_JUDGE_IMAGE", "")
HONEST = "def answer(question):\n    return 42 + (question == 'b')"


@pytest.mark.skipif(not IMAGE, reason="MIGLAB_JUDGE_IMAGE names no image with Python and torch")
def test_a_forgery_is_not_right_in_a_container(key):
    """Nor is honest work wrong there, and no container stays."""
    container = sandbox.Container(IMAGE)
    container.require()
    assert marked(key, HONEST, container).right
    marks = {name: marked(key, code, container).right for name, code in FORGERIES.items()}
    assert marks == dict.fromkeys(FORGERIES, False)
    names = ["docker", "ps", "--all", "--quiet", "--filter", "name=miglab-judge-"]
    assert subprocess.run(names, capture_output=True, check=True).stdout == b""


def test_a_container_is_refused_where_there_is_no_docker(tmp_path, monkeypatch):
    """In a sentence, before any zip is read."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match="there is no `docker`"):
        sandbox.Container("any").require()


@pytest.mark.parametrize("code", [EVERY_FILE, EQUALS_EVERYTHING, ALLCLOSE, JSON, FORKED_WRITER])
def test_a_forgery_is_not_right_without_a_sandbox_either(key, code):
    """What decides is that only values leave the process, not the walls around it."""
    assert not marked(key, code, sandbox.Unprotected()).right


def test_whoever_computes_the_right_values_is_right(key):
    """In whatever way, also with a helper of their own."""
    helper = "def one():\n    return 1\n"
    code = "def answer(question):\n    return {'a': 42, 'b': 42 + one()}[question]"
    assert marked(key, helper + code, sandbox.Unprotected()).right


def frame(content):
    text = json.dumps(content).encode()
    return wire.LENGTH.pack(len(text)) + text


ODD_FRAMES = {
    "no JSON": wire.LENGTH.pack(3) + b"{{{",
    "a list": frame([1]),
    "a reply to nothing": frame({"reply": 10**6, "value": 42}),
    "a deep list": wire.LENGTH.pack(100_000) + b"[" * 100_000,
    "a long number": wire.LENGTH.pack(10_000) + b"1" * 10_000,
    "a tensor of a huge shape": frame(
        {"reply": 1, "value": {"tensor": "float64", "shape": [10**9, 10**9], "bytes": ""}}
    ),
    "a tensor of objects": frame(
        {"reply": 1, "value": {"tensor": "object", "shape": [], "bytes": ""}}
    ),
}
WRITES = """
def answer(question):
    import os

    for number in os.listdir("/proc/self/fd"):
        try:
            if int(number) > 2:
                os.write(int(number), {frames!r})
        except OSError:
            pass
    return 42 + (question == "b")
"""


@pytest.mark.parametrize("frames", ODD_FRAMES.values(), ids=ODD_FRAMES)
def test_what_is_no_answer_is_refused(key, frames):
    """The channel is the student's to write on, and what stands there is looked at."""
    started = time.monotonic()
    mark = marked(key, WRITES.format(frames=frames), sandbox.Unprotected())
    assert not mark.right
    assert time.monotonic() - started < student_process.EXERCISE_S


class Offering:
    """An object of the judge's, of which students' code may see one part."""

    offered = ("scale",)
    scale, answer = 2, 42


ASKS = """
def answer(offering, right):
    try:
        return {expression}
    except (AttributeError, TypeError, KeyError) as error:
        return type(error).__name__
"""
SEEN = {
    "offering.scale": 2,
    "offering.answer": "AttributeError",
    "offering.__dict__.get('answer')": None,
    "offering.mro": "AttributeError",
    "right.__globals__": "AttributeError",
    "right.func": "AttributeError",
    "right.__class__(right.__dict__['_peer'], right.__dict__['_number']).offered": "AttributeError",
    "right(1)": 43,
}


@pytest.mark.parametrize(("expression", "seen"), SEEN.items())
def test_only_what_is_offered_of_the_judges_objects_can_be_seen(expression, seen):
    """A function can be called, and an object shows the attributes that it names."""
    with student_process.StudentProcess(InProcess()) as process:
        process.define(ASKS.format(expression=expression), {})
        assert process.look_up("answer")(Offering(), lambda number: number + 42) == seen


def test_a_large_answer_is_refused_before_it_is_read(key, monkeypatch):
    """400 MiB are sent, and nothing of them is kept here."""
    monkeypatch.setattr(student_process, "CALL_S", 60.0)  # to write it takes some
    code = "def answer(question):\n    return 'x' * (400 << 20)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mark = marked(key, code, sandbox.Unprotected())
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert mark.message == "error: it sent 400 MiB, more than may be sent"
    assert grown_mib < 100


def test_many_answers_are_refused_as_one_large_one_is():
    """What is sent while one exercise is judged counts together."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb") as channel:
        for _ in range(3):
            channel.write(frame({"ask": 1, "verb": "call", "of": 7, "with": "x" * 10_000}))
        channel.flush()
        judge = student_process.Judge(stream, io.BytesIO())
        judge.limit_bytes = 25_000
        with pytest.raises(wire.WireError, match="more than may be sent"):
            judge.serve()


TWO = SOURCE.replace("answer", "first") + SOURCE.replace("answer", "second")
LOOP = "\n\ndef first(question):\n    while True:\n        pass\n"


def test_an_endless_loop_costs_its_exercise_and_none_after_it(tmp_path, monkeypatch):
    """The next exercise has a process of its own."""
    monkeypatch.setattr(student_process, "CALL_S", 1.0)
    (tmp_path / "two.py").write_text(TWO)
    key = grade_code.answer_key(tmp_path / "two.py")
    code = LOOP + "def second(question):\n    return 42 + (question == 'b')\n"
    first, second = grade_code.mark(notebook_of(code), key, sandbox.Unprotected())
    assert (first.right, second.right) == (False, True)
    assert "no answer within 1 s" in first.message


def test_what_the_code_prints_is_shown_as_its_own(key):
    """Escaped, shortened, and no part of the verdict."""
    code = "def answer(question):\n    print('right: \\x1b[2J' + 'x' * 10**6)\n    return 0"
    mark = marked(key, code, sandbox.Unprotected())
    assert not mark.right
    assert mark.printed.startswith("right: \\x1b[2Jxxx")
    assert len(mark.printed) == student_process.MOST_SHOWN


@pytest.mark.parametrize("count", [10_000])
def test_definitions_are_read_in_linear_time(count):
    """Twice the statements take about twice the time, also in a chain that needs itself."""
    chain = "\n".join(f"def f{n}():\n    return f{n + 1}()" for n in range(count))
    started = time.process_time()
    defined = grade_code.definitions([chain])
    needed = grade_code.needed_statements(["f0"], defined)
    spent_s = time.process_time() - started
    assert len(defined) == len(needed) == count
    assert needed[-1] == "def f0():\n    return f1()"
    assert spent_s < 15  # a quadratic reading takes minutes


def test_statements_are_read_as_python_reads_them():
    """Several in a line, decorators, other line ends, and letters of several bytes."""
    defined = grade_code.definitions(["a = 'é'; b = 2\r\n@print\ndef f():\n  return a\nf.name = 3"])
    assert defined == {"a": "a = 'é'", "b": "b = 2", "f": "@print\ndef f():\n  return a"}
