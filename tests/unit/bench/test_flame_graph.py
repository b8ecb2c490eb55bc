"""A flame graph is of what was active, by library, and leaves nothing out that took long."""

from xml.etree import ElementTree

from miglab_bench.harness.flame_graph import Frame, draw, read_stacks

ASKED = "thread (1): MainThread;run (asyncio/runners.py:190);_run (asyncio/events.py:80)"
DECIDED = f"{ASKED};decide (miglab_pool/applications/pool_runner.py:9)"
STACKS = f"""\
{DECIDED};put (sqlalchemy/engine/base.py:1) 30
{DECIDED};<lambda> (miglab_pool/pool.py:3) 10
{ASKED};select (selectors.py:468) 900
thread (7): miglab-gpu_3;_worker (concurrent/futures/thread.py:83);run (threading.py:1) 59
thread (8): miglab-gpu_4;_worker (concurrent/futures/thread.py:81) 900
thread (9): miglab-nvml-GPU-0123-ab;call (pynvml.py:7) 1
"""


def names(frame: Frame) -> dict[str, object]:
    return {name: names(call) for name, call in frame.calls.items()}


def test_what_waits_is_left_out_and_a_library_is_one_frame() -> None:
    """Threads of one kind are one, whatever their number."""
    root = read_stacks(STACKS)
    decide = "decide (miglab_pool/applications/pool_runner.py)"
    assert names(root) == {
        "MainThread": {"asyncio": {decide: {"sqlalchemy": {}}}},
        "miglab-gpu": {"concurrent": {"threading": {}}},
        "miglab-nvml": {"pynvml": {}},
    }
    assert root.samples == 100
    assert root.calls["MainThread"].calls["asyncio"].calls[decide].samples == 40


def test_the_drawing_is_to_scale() -> None:
    """A box is as wide as its share of all samples, and says it."""
    boxes = {}
    for group in ElementTree.fromstring(draw(read_stacks(STACKS), "a <title>")).iter():
        if group.tag.endswith("}g"):
            title, rect, _ = group
            name, _, share = (title.text or "").rpartition(": ")
            boxes[name] = (share, float(rect.attrib["width"]))
    assert boxes["all that was active"] == ("100.0%", 1199.5)
    assert boxes["miglab-gpu"] == ("59.0%", 707.5)
    assert boxes["pynvml"] == ("1.0%", 11.5)


def test_nothing_sampled_is_an_empty_drawing() -> None:
    """A process that only waited has one box."""
    assert draw(read_stacks(""), "idle").count("<g>") == 1
