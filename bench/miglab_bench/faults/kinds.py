"""The kinds of faults: how each begins, and how it ends.  Between the two students go on."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from miglab_bench.faults.lab import FaultLab
from miglab_pool.gpu.simulated.machine import Break, error_code

Step = Callable[[FaultLab, Random], None]
HOUR_S = 3600
CALLS = (
    "nvmlDeviceCreateGpuInstance",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetHandleByUUID",
)
ERRORS = ("UNKNOWN", "IN_USE", "INSUFFICIENT_RESOURCES", "NOT_FOUND", "TIMEOUT")


@dataclass(frozen=True)
class FaultKind:
    """One kind.

    Attributes:
        begin: the fault.
        end: what ends it, or repairs what an operator would have to.
        acts: how many more actions of students it takes for the fault to matter.
        needs_labels: whether it is only for servers that say on labels what they hold.
        needs_disk: whether it needs a state folder on a disk of its own.
    """

    begin: Step
    end: Step
    acts: int = 0
    needs_labels: bool = False
    needs_disk: bool = False


def _start_again(lab: FaultLab, _rng: Random) -> None:
    lab.keep_running()


def _set_clock(by_s: int) -> Step:
    def step(lab: FaultLab, _rng: Random) -> None:
        lab.offset_s += by_s
        lab.set_clock(lab.offset_s)

    return step


def _fail_call(lab: FaultLab, rng: Random) -> None:
    code = error_code(rng.choice(ERRORS))
    lab.machine.fail_next(rng.choice(CALLS), code, rng.randint(1, 4))


def _hang(lab: FaultLab, rng: Random) -> None:
    gpu = rng.choice((None, *lab.gpus))
    lab.machine.hang(rng.choice(("", *CALLS)), gpu)


def _repair(lab: FaultLab, _rng: Random) -> None:
    for gpu in lab.gpus:
        lab.machine.break_gpu(Break.OK, gpu)
    lab.keep_running()


def _age(lab: FaultLab, rng: Random) -> None:
    lab.back_up()
    _set_clock(HOUR_S)(lab, rng)


def _restore(lab: FaultLab, _rng: Random) -> None:
    lab.end(signal.SIGKILL)
    lab.restore()
    lab.keep_running()


def _limit_lifted(lab: FaultLab, _rng: Random) -> None:
    lab.limit_files(None)
    lab.keep_running()


def _room_again(lab: FaultLab, _rng: Random) -> None:
    lab.free_disk()
    lab.keep_running()


KINDS: dict[str, FaultKind] = {
    "kill": FaultKind(lambda lab, _: lab.end(signal.SIGKILL), _start_again),
    "stop and resume": FaultKind(
        lambda lab, _: lab.send(signal.SIGSTOP), lambda lab, _: lab.send(signal.SIGCONT)
    ),
    "clock forward": FaultKind(_set_clock(HOUR_S), _start_again),
    "clock back": FaultKind(_set_clock(-HOUR_S), _start_again),
    "full disk": FaultKind(lambda lab, _: lab.fill_disk(), _room_again, needs_disk=True),
    "torn and failing writes": FaultKind(
        lambda lab, rng: lab.limit_files(rng.randint(0, 20_000)), _limit_lifted
    ),
    "NVML error": FaultKind(_fail_call, _repair),
    "NVML hang": FaultKind(_hang, _repair),
    "lost GPU": FaultKind(
        lambda lab, rng: lab.machine.break_gpu(Break.LOST, rng.choice(lab.gpus)), _repair
    ),
    "ledger restored": FaultKind(_age, _restore, acts=24, needs_labels=True),
    "upgrade": FaultKind(lambda lab, _: lab.end(signal.SIGTERM), _start_again),
}
