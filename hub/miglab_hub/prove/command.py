"""What the command line shows of a run, and where its file lies."""

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from miglab_hub.prove.lines import LineAnswer, LineVerdict
from miglab_hub.prove.report import Report, terminal_lines

DONE, DIFFERS = 0, 1
TERMINATED = 128 + signal.SIGTERM


def undo_on_sigterm() -> None:
    """Let SIGTERM end the run as Ctrl-C does, so that everything is undone."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))


def print_line_answer(answer: LineAnswer) -> None:
    """Print an answer as soon as it is there."""
    for line in terminal_lines([answer]):
        print(line, flush=True)


def proof_file(file: Path | None) -> Path:
    """Return the file to write; by default one of this moment in this folder."""
    moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return (file or Path(f"miglab-proof-{moment}.json")).absolute()


def print_summary(report: Report, file: Path) -> int:
    """Print how many lines held, and where the file is; returns the exit status."""
    verdicts = [answer.verdict for answer in report.answers]
    counts = ", ".join(f"{verdict.value}: {verdicts.count(verdict)}" for verdict in LineVerdict)
    print(f"\n{counts}; {report.took_s:.0f} s")
    print(f"{file}: names neither people nor hosts; read it, then send it")
    return DONE if report.holds else DIFFERS
