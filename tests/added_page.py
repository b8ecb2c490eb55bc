"""docs/howto/add-to-your-hub.md as printed, for the tests that follow it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent

import httpx

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/howto/add-to-your-hub.md").read_text(encoding="utf-8")
PROXY = Path(sys.prefix) / "proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy"


def printed(language: str) -> list[str]:
    """The page's blocks in a language; commands are in none."""
    blocks = re.findall(r"(?ms)^ *```(\w*)\n(.*?)^ *```$", PAGE)
    return [dedent(block) for name, block in blocks if name == language]


def as_here(text: str, replaced: dict[str, str]) -> str:
    """The text with what a test must have otherwise."""
    for original, replacement in replaced.items():
        assert original in PAGE, original
        text = text.replace(original, replacement)
    return text


@contextmanager
def running(log: Path, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process with all that it starts."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"},  # node
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def answers(url: str) -> bool:
    """Whether something answers there with success."""
    with suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False, timeout=20).is_success
    return False
