"""A run: every line in order, and everything as it was at the end, however it ends."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from miglab_hub.prove import cutting, holders, host, reading
from miglab_hub.prove.lines import LINES, CannotTry, LineAnswer, LineVerdict
from miglab_hub.prove.report import Report
from miglab_hub.prove.trial import Trial, existing_slices
from miglab_pool.gpu.readings import GpuError

log = logging.getLogger(__name__)
Show = Callable[[LineAnswer], None]


@dataclass(frozen=True)
class Step:
    """A function that answers some of the lines.

    Attributes:
        lines: the lines' names.
        run: yields their answers; a line that it leaves out could not be tried.
    """

    lines: tuple[str, ...]
    run: Callable[[Trial], Iterator[LineAnswer]]


def _containers(trial: Trial) -> Iterator[LineAnswer]:
    """Try the lines about containers, if the engine's client and the spawner are installed."""
    try:
        from miglab_hub.prove.containers import try_containers
    except ImportError as error:
        raise CannotTry(f"{error.name} is not installed here") from error
    yield from try_containers(trial)


STEPS = (
    Step(("versions",), host.check_versions),
    Step(("engine",), host.check_engine),
    Step(("cdi",), host.check_cdi),
    Step(("mig-rights",), host.check_mig_rights),
    Step(("gpus",), reading.check_gpus),
    Step(("geometry",), reading.check_geometry),
    Step(("health",), reading.check_health),
    Step(("recovery-action",), reading.check_recovery_action),
    Step(("lookup", "lookup-at-once"), reading.time_lookup),
    Step(("create-destroy", "uuid-at-once", "uuid-repeats", "gone-at-once"), cutting.try_one_slice),
    Step(("ids",), cutting.try_ids),
    Step(("highest-start",), cutting.try_highest_start),
    Step(("refusals",), cutting.try_refusals),
    Step(("all-gpus-at-once",), cutting.try_all_gpus_at_once),
    Step(("read-while-changing",), cutting.try_reading_while_changing),
    Step(("other-process",), cutting.try_other_process),
    Step(("host-program",), holders.try_host_program),
    Step(
        (
            "container-start",
            "container-sees-slice",
            "container-torch",
            "container-refused",
            "process-is-holder",
            "event-ids",
            "end-to-destroy",
        ),
        _containers,
    ),
)


def prove(trial: Trial, show: Show) -> list[LineAnswer]:
    """Try every line but the last.

    Args:
        trial: what to try it with.
        show: told each answer as soon as it is there.
    """
    answers = []
    for step in STEPS:
        for answer in step_answers(step, trial):
            show(answer)
            answers.append(answer)
    return answers


def step_answers(step: Step, trial: Trial) -> Iterator[LineAnswer]:
    """Yield an answer for each line of a step; an error answers the remaining lines."""
    open_lines = list(step.lines)
    reason = "nothing came back"
    try:
        for answer in step.run(trial):
            open_lines.remove(answer.line)
            yield answer
    except CannotTry as error:
        reason = str(error)
    except GpuError as error:
        if open_lines:
            yield LineAnswer(open_lines.pop(0), LineVerdict.NO, reading.clause_of(error))
        reason = "the line before it failed"
    except Exception as error:  # the outer frame of every step: the others are still tried
        log.exception("%s failed", step.lines[0])
        reason = f"the proof itself failed: {type(error).__name__}: {error}"
    for line in open_lines:
        yield LineAnswer.untried(line, reason)


def check_restored(trial: Trial, problems: Sequence[str]) -> LineAnswer:
    """Check that the used GPUs are as before the run, and no container is left.

    The other GPUs are the pool's, which goes on cutting them meanwhile.

    Args:
        trial: after everything was undone.
        problems: what could not be undone.
    """
    before = {uuid: before for uuid, before in trial.before.items() if uuid not in trial.barred}
    after = existing_slices({uuid: trial.infos[uuid] for uuid in before}, trial.driver.slices)
    remnants = [
        f"{trial.label(uuid)}: slices more: {len(after[uuid] - slices)}, "
        f"fewer: {len(slices - after[uuid])}"
        for uuid, slices in before.items()
        if uuid in after and after[uuid] != slices
    ]
    silent = [f"{trial.label(uuid)} does not answer" for uuid in before if uuid not in after]
    parts = [*problems, *remnants, *silent]
    result = "the GPUs that were cut are as before" if before else "no GPU was cut"
    result += ", and no container of the run is left"
    return LineAnswer.judged("as-it-was", not parts, "; ".join(parts) or result)


class RunClock:
    """The start and the duration of a run."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
        self._started_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the run began."""
        return round(time.monotonic() - self._started_at, 1)


def make_report(
    trial: Trial,
    answers: Sequence[LineAnswer],
    watch: RunClock,
    *,
    is_quick: bool,
    is_read_only: bool,
    lab: str,
) -> Report:
    """Return the report of a finished run."""
    return Report(
        watch.at,
        watch.seconds,
        is_quick,
        trial.simulated_state is not None,
        is_read_only,
        lab,
        sorted(answers, key=lambda answer: [line.name for line in LINES].index(answer.line)),
        trial.driver.calls,
    )
