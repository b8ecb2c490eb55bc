"""Draws a flame graph of a process that py-spy has sampled, as a small SVG without scripts.

py-spy's own drawing shows every line of every library, and threads that only wait, as it cannot
tell on every host which do.  Here what waits is left out, the frames of one library that follow
one another are one, and what took less than `LEAST_SHARE` is not drawn.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

LEAST_SHARE = 0.004
WIDTH, ROW, CHARACTER = 1200, 16, 5.6  # pixels
OURS = "miglab_"
WAITS = (
    "_worker (concurrent/futures/thread.py",
    "_run_calls (miglab_pool/gpu/watched.py",
    "select (selectors.py",
    "wait (threading.py",
)
"""The beginnings of the innermost frames of threads that wait."""
COLOURS = {
    "miglab_pool/gpu/simulated": "#f2b37a",
    OURS: "#9db8e8",
    "fastapi": "#a9d8a5",
    "starlette": "#a9d8a5",
    "pydantic": "#a9d8a5",
    "uvicorn": "#cfe6a0",
    "h11": "#cfe6a0",
    "sqlalchemy": "#d9c3e8",
    "pynvml": "#f2d27a",
}
OTHER_COLOUR = "#e2e2e2"
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]+?)(:\d+)?\)$")


@dataclass
class Frame:
    """A function of ours or a library, by what called it, and the samples in which it was active.

    Attributes:
        name: the function with its file, or the library.
        samples: how many.
        calls: the frames that it called, by name.
    """

    name: str
    samples: int = 0
    calls: dict[str, "Frame"] = field(default_factory=dict)

    def add(self, names: Iterable[str], samples: int) -> None:
        """Count a stack, outermost frame first."""
        frame = self
        frame.samples += samples
        for name in names:
            frame = frame.calls.setdefault(name, Frame(name))
            frame.samples += samples


def read_stacks(text: str) -> Frame:
    """Return all stacks of ``py-spy record --threads --format raw``, below a frame for all."""
    root = Frame("all that was active")
    for line in text.splitlines():
        stack, _, samples = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if frames and not any(wait in frames[-1] for wait in WAITS):
            root.add([_kind_of_thread(thread), *_merged(frames)], int(samples))
    return root


def _kind_of_thread(thread: str) -> str:
    """Return a thread's name without its number or GPU: ``thread (12): miglab-gpu_3``."""
    name = thread.rpartition(": ")[2].strip()
    return re.sub(r"(-GPU-[0-9a-f-]+|_\d+)$", "", name)


def _merged(frames: Iterable[str]) -> Iterator[str]:
    """Yield the frames, those of one library that follow one another as its name alone."""
    last = ""
    for frame in frames:
        match = _FRAME.match(frame)
        file = match["file"] if match else ""
        library = file.partition("/")[0].removesuffix(".py")
        is_ours = file.startswith(OURS)
        name = f"{match['function']} ({file})" if match and is_ours else library or frame
        if name != last and not name.startswith("<"):
            yield name
        last = name


def draw(root: Frame, title: str) -> str:
    """Return the SVG: callers above what they call, as wide as their share of the samples."""
    boxes, depth = _boxes(root, root.samples, 0.0, 0)
    height = (depth + 2) * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="10">'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="4" y="11" font-weight="bold">{escape(title)}</text>{"".join(boxes)}</svg>\n'
    )


def _boxes(frame: Frame, total: int, left: float, row: int) -> tuple[list[str], int]:
    """Return the boxes of a frame and of all that it called, and the lowest row."""
    share = frame.samples / max(total, 1)
    boxes, lowest = [_box(frame.name, share, left, row)], row
    for call in sorted(frame.calls.values(), key=lambda call: -call.samples):
        if call.samples / total < LEAST_SHARE:
            break
        below, depth = _boxes(call, total, left, row + 1)
        boxes, lowest = boxes + below, max(lowest, depth)
        left += WIDTH * call.samples / total
    return boxes, lowest


def _box(name: str, share: float, left: float, row: int) -> str:
    width, top = WIDTH * share, (row + 1) * ROW
    colour = next((c for word, c in COLOURS.items() if word in name), OTHER_COLOUR)
    label = escape(name[: int(width / CHARACTER)]) if width > 4 * CHARACTER else ""
    return (
        f'<g><title>{escape(name)}: {share:.1%}</title><rect x="{left:.1f}" y="{top}" '
        f'width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}" fill="{colour}"/>'
        f'<text x="{left + 2:.1f}" y="{top + 11}">{label}</text></g>'
    )


def draw_file(stacks: Path, title: str) -> Path:
    """Draw the stacks of a file beside it, and return the SVG's path."""
    drawing = stacks.with_suffix(".svg")
    drawing.write_text(draw(read_stacks(stacks.read_text()), title), encoding="utf-8")
    return drawing
