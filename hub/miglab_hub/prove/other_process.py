"""Makes a slice in a process of its own, and destroys it when a line comes in.

So that an NVML session that is open elsewhere can be asked what it sees of it:
``python -m miglab_hub.prove.other_process STATE GPU PROFILE START``, where STATE is the folder of a
simulated machine, or empty.  The placement is announced by whoever starts this.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from miglab_hub.prove.lines import CannotTry
from miglab_hub.prove.trial import Trial
from miglab_pool.gpu.watched import open_gpus
from miglab_pool.state.proof_record import ProofSlice

MADE, GONE = "made", "gone"
END_S = 60.0


class OtherProcess:
    """The handle of a started process that makes a slice."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def wait_for(self, message: str) -> None:
        """Wait until the process prints a word.

        Raises:
            CannotTry: it ended without.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != message:
            raise CannotTry("the other process could not make or destroy its slice")

    def destroy(self) -> None:
        """Let the process destroy its slice, and wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.wait_for(GONE)


@contextmanager
def slice_of_other_process(trial: Trial, place: ProofSlice) -> Iterator[OtherProcess]:
    """Start a process that makes a slice, for the time of the block."""
    state = str(trial.simulated_state or "")
    command = [sys.executable, "-m", __name__, state, place.gpu, place.profile, str(place.start)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    end_it = threading.Timer(END_S, process.kill)  # a driver call of it may hang
    end_it.start()
    try:
        other = OtherProcess(process)
        other.wait_for(MADE)
        yield other
    finally:
        process.kill()
        process.communicate()
        end_it.cancel()


def main(state: str, gpu: str, profile_name: str, start: str) -> None:
    """Make the slice, wait for a line, destroy it."""
    driver = open_gpus(simulated_state=Path(state) if state else None, gpu_uuids=[gpu])
    profile = driver.info(gpu).geometry.by_name[profile_name]
    placement = next(place for place in profile.placements if place.start == int(start))
    reading = driver.create(gpu, profile, placement)
    print(MADE, flush=True)
    sys.stdin.readline()
    driver.destroy(gpu, reading.gi_id)
    print(GONE, flush=True)
    driver.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
