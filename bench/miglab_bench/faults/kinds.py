"""The kinds of faults: how each begins, and how it ends.  Between the two students go on."""

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from miglab_bench.faults.lab import PARTS, FaultLab
from miglab_pool.gpu.simulated.machine import Break, error_code

Step = Callable[[FaultLab, Random], None]
HOUR_S = 3600
LONGEST_LOG_BYTES = 20_000
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
STATEMENTS = ("INSERT INTO leases", "UPDATE leases", "UPDATE tickets", "UPDATE slices")


@dataclass(frozen=True)
class FaultKind:
    """One kind.

    Attributes:
        begin: the fault.
        end: what ends it, or repairs what an operator would have to; whatever does not run then is
            started again.
        is_ledger_older: whether the ledger then does not know of everything that came about.
        needs_clock: whether it needs a clock that is not the machine's.
    """

    begin: Step
    end: Step = lambda _lab, _rng: None
    is_ledger_older: bool = False
    needs_clock: bool = False


def _kill(*names: str) -> Step:
    return lambda lab, _rng: lab.end(signal.SIGKILL, *names)


def _set_clock(by_s: int) -> Step:
    return lambda lab, _rng: lab.clock.step(by_s)


def _fail_call(lab: FaultLab, rng: Random) -> None:
    code = error_code(rng.choice(ERRORS))
    lab.machine.fail_next(rng.choice(CALLS), code, rng.randint(1, 4))


def _hang(lab: FaultLab, rng: Random) -> None:
    gpu = rng.choice((None, *lab.gpus))
    lab.machine.hang(rng.choice(("", *CALLS)), gpu)


def _repair(lab: FaultLab, _rng: Random) -> None:
    for gpu in lab.gpus:
        lab.machine.break_gpu(Break.OK, gpu)


def _age(lab: FaultLab, _rng: Random) -> None:
    """The copy is from now, and an hour passes."""
    lab.databases.back_up()
    lab.clock.step(HOUR_S)


def _restore(lab: FaultLab, _rng: Random) -> None:
    lab.end(signal.SIGKILL, "pool")
    lab.databases.restore()


def _upgrade(lab: FaultLab, _rng: Random) -> None:
    lab.end(signal.SIGTERM, *PARTS)
    lab.databases.age_ledger()


def _lose_hub_database(lab: FaultLab, _rng: Random) -> None:
    lab.end(signal.SIGKILL, "hub")
    lab.hub_log.forget()
    lab.databases.lose_hubs()


def _limit_growth(lab: FaultLab, more: int | None) -> None:
    with suppress(ProcessLookupError):  # it ended by itself, and is started again without a limit
        lab.databases.limit_growth(lab.parts["pool"].pid, more)


def _room_again(lab: FaultLab, _rng: Random) -> None:
    """The hub is restarted, too.

    JupyterHub 6 keeps a server "pending stop" for good if its database could not be written then,
    and may not end by SIGTERM: its own cleanup fails at the same database session.
    """
    lab.disk.free()
    lab.end(signal.SIGKILL, "hub")


KINDS: dict[str, FaultKind] = {
    "pool killed": FaultKind(_kill("pool")),
    "hub and proxy killed": FaultKind(_kill("hub", "proxy")),
    "stop and resume": FaultKind(
        lambda lab, rng: lab.send(signal.SIGSTOP, rng.choice(PARTS)),
        lambda lab, _: lab.send(signal.SIGCONT, *PARTS),
    ),
    "clock forward": FaultKind(_set_clock(HOUR_S), needs_clock=True),
    "clock back": FaultKind(_set_clock(-HOUR_S), needs_clock=True),
    "full disk": FaultKind(lambda lab, _: lab.disk.fill(), _room_again),
    "torn writes": FaultKind(
        lambda lab, rng: _limit_growth(lab, rng.randint(0, LONGEST_LOG_BYTES)),
        lambda lab, _: _limit_growth(lab, None),
    ),
    "failing disk": FaultKind(
        lambda lab, rng: lab.databases.fail_commit(rng.choice(STATEMENTS)),
        lambda lab, _: lab.databases.mend(),
    ),
    "NVML error": FaultKind(_fail_call, _repair),
    "NVML hang": FaultKind(_hang, _repair),
    "lost GPU": FaultKind(
        lambda lab, rng: lab.machine.break_gpu(Break.LOST, rng.choice(lab.gpus)), _repair
    ),
    "engine restart": FaultKind(
        lambda lab, _: lab.engine.stop(), lambda lab, _: lab.engine.start()
    ),
    "hub database lost": FaultKind(_lose_hub_database),
    "ledger restored": FaultKind(_age, _restore, is_ledger_older=True),
    "upgrade": FaultKind(_upgrade),
}
