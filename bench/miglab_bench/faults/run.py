"""`./lab bench faults`: the lab under seeded faults, and whether its invariants hold after each.

Proxy, hub and pool over two simulated A100s, with containers of an engine of the harness's own as
students' servers.  Of each kind of fault it says how it begins and how it ends; between the two
students go on.  How long each kind takes to be well again is measured from the end of the fault
until health is good, every server that ended is released, and every other answers through the
proxy.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Annotated

import typer

from miglab_bench.faults.engine import IMAGE, OwnEngine, StudentServers
from miglab_bench.faults.lab import BOUND_S, PARTS, FaultLab
from miglab_bench.faults.series import Act, FaultPlan, FaultSeries, KindResult, plan_of, run_and_say
from miglab_bench.faults.students import FaultClass, breaches, unsettled
from miglab_bench.harness.results import p95
from miglab_bench.harness.student import CheckFailed
from miglab_hub.errors import StartError
from miglab_pool.gpu.simulated.machine import Break, error_code

Step = Callable[[FaultLab, Random], None]
STUDENTS = 8
LAST_SHAPE = "3g.20gb"
HOUR_S = 3600
UNCONTAINED = 95  # the Xid of a memory error after which the card needs a reset
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
    """One kind of fault.

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


def _restart_without_gpu(lab: FaultLab, rng: Random) -> None:
    lab.machine.break_gpu(Break.MISSING, rng.choice(lab.gpus))
    lab.end(signal.SIGKILL, "pool")


def _repair(lab: FaultLab, _rng: Random) -> None:
    for gpu in lab.gpus:
        lab.machine.break_gpu(Break.OK, gpu)


def _age(lab: FaultLab, _rng: Random) -> None:
    """Copy the ledger as it is now, then move the clock by an hour."""
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


def _limit_growth(lab: FaultLab, extra_bytes: int | None) -> None:
    with suppress(ProcessLookupError):  # it ended by itself, and is started again without a limit
        lab.databases.limit_growth(lab.parts["pool"].pid, extra_bytes)


def _free_disk(lab: FaultLab, _rng: Random) -> None:
    """Free the disk and restart the hub.

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
    "full disk": FaultKind(lambda lab, _: lab.disk.fill(), _free_disk),
    "torn writes": FaultKind(
        lambda lab, rng: _limit_growth(lab, rng.randint(0, LONGEST_LOG_BYTES)),
        lambda lab, _: _limit_growth(lab, None),
    ),
    "failing disk": FaultKind(
        lambda lab, rng: lab.databases.fail_commit(rng.choice(STATEMENTS)),
        lambda lab, _: lab.databases.allow_commits(),
    ),
    "NVML error": FaultKind(_fail_call, _repair),
    "NVML hang": FaultKind(_hang, _repair),
    "lost GPU": FaultKind(
        lambda lab, rng: lab.machine.break_gpu(Break.LOST, rng.choice(lab.gpus)), _repair
    ),
    "missing GPU": FaultKind(
        lambda lab, rng: lab.machine.break_gpu(Break.MISSING, rng.choice(lab.gpus)), _repair
    ),
    "GPU in need of a reset": FaultKind(
        lambda lab, rng: lab.machine.break_gpu(Break.XID, rng.choice(lab.gpus), UNCONTAINED),
        _repair,
    ),
    "pool restarted without a GPU": FaultKind(_restart_without_gpu, _repair),
    "engine restart": FaultKind(
        lambda lab, _: lab.engine.stop(), lambda lab, _: lab.engine.start()
    ),
    "hub database lost": FaultKind(_lose_hub_database),
    "ledger restored": FaultKind(_age, _restore, is_ledger_older=True),
    "upgrade": FaultKind(_upgrade),
}


# -- a run of them ---------------------------------------------------------------------------------


class FaultRun(FaultSeries):
    """A series of faults over real containers.

    Args:
        seed: as of `FaultSeries`.
        kinds: only these; empty: all that the machine allows.
        tell: as of `FaultSeries`.
    """

    def __init__(
        self,
        seed: int,
        *,
        kinds: tuple[str, ...] = (),
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.lab = FaultLab()
        has_clock = self.lab.clock.is_there
        possible = [name for name, kind in KINDS.items() if has_clock or not kind.needs_clock]
        super().__init__(seed, kinds or possible, tell)
        self.servers = StudentServers(self.lab.engine, self.lab.settings)
        self.lesson = FaultClass(self.lab, self.servers, STUDENTS)
        self._has_still = ""
        self._acting = ThreadPoolExecutor(STUDENTS)

    def run(self, count: int) -> dict[str, KindResult]:
        """Cause the faults; then check that one more student is served."""
        super().run(count)
        if not self.is_lost:
            next(reversed(self.results.values())).breaches += self._serve_one_more()
        if any(result.breaches for result in self.results.values()):
            self.tell(f"the logs are kept in {self.lab.keep_logs()}; they end:")
            self.tell(self.lab.log_ends())
        return self.results

    def close(self) -> None:
        """End everything."""
        self._acting.shutdown()
        self.lesson.close()
        self.lab.close()

    def strike(self, number: int, kind: str) -> list[str]:
        """Cause one fault, and return what does not hold after it."""
        lesson = self.lesson
        lesson.without_words.clear()
        try:
            took_s = self._strike(plan_of(self.seed, number, kind, STUDENTS), KINDS[kind])
            self.results[kind].recoveries_s.append(took_s)
            lesson.look()
            problems = breaches(lesson, is_ledger_older=KINDS[kind].is_ledger_older)
            lesson.tidy()
        except CheckFailed as error:
            self.is_lost = True
            return [f"{error}; the lab has still {self._has_still or 'nothing to do'}"]
        return problems

    def _strike(self, plan: FaultPlan, kind: FaultKind) -> float:
        """Begin and end the fault while students and staff go on; wait until the lab is well.

        Returns:
            How long that took from the fault's end, s.

        Raises:
            CheckFailed: that takes too long.
        """
        rng = Random(plan.seed)  # noqa: S311 -- no secret
        acting = self._submit(plan.before)
        time.sleep(plan.at_s)  # the point at which it strikes
        kind.begin(self.lab, rng)
        ends_at = time.monotonic() + plan.lasts_s
        acting += self._submit(plan.during)
        if plan.steering:
            self.lesson.steer(plan.steering, plan.seed)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        kind.end(self.lab, rng)
        self.lab.keep_running()
        ended_at = time.monotonic()
        for act in acting:
            act.result()
        self.lab.wait(self._is_well, BOUND_S, "the lab to be well again")
        return time.monotonic() - ended_at

    def _submit(self, acts: Sequence[Act]) -> list[Future[None]]:
        return [self._acting.submit(self.lesson.students[act.student].act, act) for act in acts]

    def _is_well(self) -> bool:
        self._has_still = unsettled(self.lesson)
        return not self._has_still

    def _serve_one_more(self) -> list[str]:
        """Check that the largest shape can be leased again when all students have left."""
        for holder in self.servers.all():
            self.servers.end(holder)
        for student in self.lesson.students:
            student.lose()
        try:
            self.lesson.come(self.lesson.students[0], LAST_SHAPE, BOUND_S)
        except CheckFailed as error:
            return [f"seed {self.seed}, after all faults: {error}"]
        return []


def bench_faults(
    count: Annotated[int, typer.Option(min=1, help="How many faults.")] = 40,
    seed: Annotated[int, typer.Option(help="Seed of the faults; the same one replays them.")] = 1,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only faults of this kind; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """The lab under seeded faults: kills, clocks, disk, NVML, engine, lost and restored data."""
    if unknown := set(kind or ()) - set(KINDS):
        raise typer.BadParameter(f"no kind {min(unknown)!r}; there are: {', '.join(KINDS)}")
    if not OwnEngine.is_possible():
        raise StartError(f"needs root, and a Docker engine that has {IMAGE}: images/build base")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the lab as well
    run = FaultRun(seed, kinds=tuple(kind or ()), tell=lambda line: typer.echo(line, err=True))
    run_and_say(run, count, as_json=as_json, recovery_p95_s=p95)
