"""Students' code behind the wire, in a thread of this process: for what must be quick, not safe."""

import contextlib
import os
import threading
from dataclasses import dataclass
from typing import IO

from labkit_grading.answering.serve import StudentPeer


@dataclass
class Pipes:
    """What a judge sees of a process."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


class InProcess:
    """The program that answers, in a thread; an endless loop in it would stay."""

    def start(self) -> Pipes:
        """Start the thread."""
        to_code, of_judge = os.pipe()
        to_judge, of_code = os.pipe()
        printed, prints = os.pipe()
        os.close(prints)

        def answer() -> None:
            incoming, outgoing = os.fdopen(to_code, "rb"), os.fdopen(of_code, "wb")
            with incoming, contextlib.suppress(OSError), outgoing:
                StudentPeer(incoming, outgoing).serve()

        threading.Thread(target=answer, daemon=True).start()
        return Pipes(os.fdopen(of_judge, "wb"), os.fdopen(to_judge, "rb"), os.fdopen(printed, "rb"))

    def end(self, pipes: Pipes) -> None:
        """Close the channel, which ends the thread."""
        with contextlib.suppress(OSError):
            pipes.stdin.close()

    def require(self) -> None:
        """Works everywhere."""
