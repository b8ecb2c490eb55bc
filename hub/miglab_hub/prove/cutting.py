"""Lines that make and destroy slices, on GPUs that nobody holds."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from miglab_hub.prove.lines import CannotTry, LineAnswer
from miglab_hub.prove.other_process import slice_of_other_process
from miglab_hub.prove.pace import Rounds
from miglab_hub.prove.reading import clause_of, milliseconds
from miglab_hub.prove.trial import Trial
from miglab_pool.gpu.proof_driver import CallTimes
from miglab_pool.gpu.readings import GpuError, SliceReading
from miglab_pool.state.proof_record import ProofSlice

REFUSALS = {
    "create at a taken placement": "INSUFFICIENT_RESOURCES",
    "create at a placement the profile lacks": "INVALID_ARGUMENT",
    "find a GPU instance that is not there": "NOT_FOUND",
    "destroy a GPU instance with a compute instance": "IN_USE",
}
"""What the lab, and its simulated card, take NVML to answer."""

IDS_OF_EIGHTHS = (9, 7, 8, 11, 12, 13, 14)  # of seven 1g in order on an empty GPU (dask-cuda #583)


@dataclass
class Cycles:
    """The results of creating and destroying a slice repeatedly.

    Attributes:
        errors: what failed, as clauses; the series ends at the first.
        without_uuid: how many slices had no UUID directly after they were made.
        remnants: how many were listed after a destroy that no NVML call refused.
    """

    created: list[CallTimes] = field(default_factory=list)
    destroyed: list[CallTimes] = field(default_factory=list)
    readings: list[SliceReading] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    without_uuid: int = 0
    remnants: int = 0

    @property
    def figures(self) -> dict[str, list[float]]:
        """Return the series of creates and destroys, milliseconds."""
        creates, destroys = milliseconds(self.created), milliseconds(self.destroyed)
        return {
            **{f"create.{name}": series for name, series in creates.items() if self.created},
            **{f"destroy.{name}": series for name, series in destroys.items() if self.destroyed},
        }

    @property
    def result(self) -> str:
        """Return how many slices were made and destroyed, and what failed, in words."""
        counts = f"{len(self.created)} slices made, {len(self.destroyed)} destroyed"
        return "; ".join([counts, *self.errors])

    def add(self, other: "Cycles") -> "Cycles":
        """Return the sum of two results."""
        return Cycles(
            self.created + other.created,
            self.destroyed + other.destroyed,
            self.readings + other.readings,
            self.errors + other.errors,
            self.without_uuid + other.without_uuid,
            self.remnants + other.remnants,
        )


def run_cycles(
    trial: Trial, place: ProofSlice, rounds: Rounds, reader: "SliceReader | None" = None
) -> Cycles:
    """Make and destroy a slice at an announced placement, until one fails."""
    cycles = Cycles()
    try:
        for _ in rounds:
            _cycle(trial, place, cycles, reader)
    except GpuError as error:
        cycles.errors.append(clause_of(error))
    return cycles


def _cycle(trial: Trial, place: ProofSlice, cycles: Cycles, reader: "SliceReader | None") -> None:
    reading, times = trial.create(place)
    cycles.created.append(times)
    cycles.readings.append(reading)
    cycles.without_uuid += reading.uuid is None
    if reader is not None:
        reader.read_once(reading)
    try:
        cycles.destroyed.append(trial.destroy(reading))
    except GpuError as error:
        cycles.remnants += error.__cause__ is None and _is_listed(trial, place)
        raise
    cycles.remnants += _is_listed(trial, place)


def _is_listed(trial: Trial, place: ProofSlice) -> bool:
    return any(ProofSlice.of(reading) == place for reading in trial.driver.slices(place.gpu))


def try_one_slice(trial: Trial) -> Iterator[LineAnswer]:
    """Create and destroy one slice on one GPU repeatedly."""
    place = trial.smallest_place(trial.free[0])
    with trial.announced(place):
        cycles = run_cycles(trial, place, trial.pace.cycles)
    facts = {"profile": place.profile, "start": place.start}
    yield LineAnswer.judged(
        "create-destroy", not cycles.errors, cycles.result, cycles.figures, facts=facts
    )
    if not cycles.created:
        raise CannotTry("no slice could be made")
    count = len(cycles.created)
    result = f"{count - cycles.without_uuid} of {count} slices had their UUID at once"
    yield LineAnswer.judged("uuid-at-once", not cycles.without_uuid, result)
    yield _check_uuid_repeats(cycles.readings)
    if not cycles.destroyed and not cycles.remnants:
        raise CannotTry("no slice could be destroyed")
    result = f"{cycles.remnants} slices were still listed after NVML had destroyed them"
    yield LineAnswer.judged("gone-at-once", not cycles.remnants, result)


def _check_uuid_repeats(readings: Sequence[SliceReading]) -> LineAnswer:
    """Check that equal ids give equal UUIDs, which NVML derives from the ids."""
    uuids = {reading.uuid for reading in readings if reading.uuid}
    ids = {(reading.gi_id, reading.ci_id) for reading in readings}
    by_ids = {(reading.gi_id, reading.ci_id, reading.uuid) for reading in readings}
    result = f"slices: {len(readings)}, different UUIDs: {len(uuids)}, different ids: {len(ids)}"
    facts = {"uuids": len(uuids), "gi_ids": sorted({reading.gi_id for reading in readings})}
    return LineAnswer.judged("uuid-repeats", len(by_ids) == len(ids), result, facts=facts)


def try_ids(trial: Trial) -> Iterator[LineAnswer]:
    """Check which ids a GPU assigns, from the lowest placement to the highest."""
    uuid = trial.free[0]
    place = trial.smallest_place(uuid)
    profile = trial.profile(place)
    starts = [p.start for p in trial.free_placements(uuid, profile)][: profile.max_count]
    places = [ProofSlice(uuid, profile.name, start, profile.size) for start in starts]
    readings, error = [], ""
    with trial.announced(*places):
        try:
            for target in places:
                readings.append(trial.create(target)[0])
        except GpuError as refusal:
            error = clause_of(refusal)
    sequence = [reading.gi_id for reading in readings]
    result = f"{profile.name} from the lowest start: ids {', '.join(map(str, sequence))}"
    is_comparable = len(places) == len(profile.starts) == len(IDS_OF_EIGHTHS)
    is_usual = not is_comparable or sequence == list(IDS_OF_EIGHTHS)
    result = "; ".join(filter(None, [result, error]))
    facts = {"starts": starts, "ids": sequence, "is_comparable": is_comparable}
    yield LineAnswer.judged("ids", is_usual and not error, result, facts=facts)


def try_highest_start(trial: Trial) -> Iterator[LineAnswer]:
    """Check where the driver puts a GPU instance that names no placement."""
    uuid = trial.free[0]
    profile = trial.profile(trial.smallest_place(uuid))
    legal = trial.free_placements(uuid, profile)
    places = [ProofSlice(uuid, profile.name, place.start, place.size) for place in legal]
    with trial.announced(*places):
        _, lies_at = trial.driver.ask(
            uuid, lambda d: d.create_anywhere(uuid, profile), changes=True
        )
    starts = [place.start for place in legal]
    result = f"{profile.name} lies at {lies_at.start}, of {', '.join(map(str, starts))}"
    yield LineAnswer.judged(
        "highest-start", lies_at == max(legal), result, facts={"start": lies_at.start}
    )


def try_refusals(trial: Trial) -> Iterator[LineAnswer]:
    """Check NVML's errors for impossible requests."""
    place = trial.smallest_place(trial.free[0])
    with trial.announced(place):
        reading, _ = trial.create(place)
        answers = trial.driver.ask(place.gpu, lambda d: d.refusals(reading), changes=True)
    unexpected = {act: name for act, name in answers.items() if name != REFUSALS[act]}
    result = "; ".join(f"{act}: {name}, not {REFUSALS[act]}" for act, name in unexpected.items())
    yield LineAnswer.judged(
        "refusals",
        not unexpected,
        result or "every error is the expected one",
        facts={"answers": answers},
    )


def try_all_gpus_at_once(trial: Trial) -> Iterator[LineAnswer]:
    """Create and destroy a slice on every free GPU at the same time."""
    places = [trial.smallest_place(uuid) for uuid in trial.free]
    if len(places) < 2:
        raise CannotTry("only one GPU is free")
    with trial.announced(*places), ThreadPoolExecutor(len(places)) as threads:
        series = threads.map(
            lambda place: run_cycles(trial, place, trial.pace.cycles_at_once), places
        )
        cycles = add_cycles(list(series))
    result = f"on {len(places)} GPUs: {cycles.result}"
    yield LineAnswer.judged("all-gpus-at-once", not cycles.errors, result, cycles.figures)


def add_cycles(series: Sequence[Cycles]) -> Cycles:
    """Add the results of several series."""
    total = Cycles()
    for cycles in series:
        total = total.add(cycles)
    return total


class SliceReader:
    """Reads a slice's memory and processes again and again, as the pool does.

    Args:
        trial: whose driver is asked, which is also the one that makes and destroys.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._reading: SliceReading | None = None
        self._has_read = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read_on, daemon=True)
        self.errors: list[str] = []
        self.count = 0

    def __enter__(self) -> "SliceReader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def read_once(self, reading: SliceReading) -> None:
        """Wait until the slice was read at least once; the reading goes on."""
        self._has_read.clear()
        self._reading = reading
        self._has_read.wait(10 * self._trial.pace.read_s + 10)

    def _read_on(self) -> None:
        while not self._is_over.wait(self._trial.pace.read_s):
            reading = self._reading
            if reading is None:
                continue
            try:
                self._trial.driver.usages(reading.gpu_uuid, [reading])
                self.count += 1
            except GpuError as error:
                self.errors.append(clause_of(error))
            if reading is self._reading:
                self._has_read.set()


def try_reading_while_changing(trial: Trial) -> Iterator[LineAnswer]:
    """Check that the pool's readings do not keep a slice from being destroyed."""
    place = trial.smallest_place(trial.free[0])
    with trial.announced(place), SliceReader(trial) as reader:
        cycles = run_cycles(trial, place, trial.pace.read_cycles, reader)
    result = "; ".join([cycles.result, f"read {reader.count} times", *reader.errors[:1]])
    facts = {"readings": reader.count, "failed_readings": len(reader.errors)}
    holds = not cycles.errors and not reader.errors
    yield LineAnswer.judged("read-while-changing", holds, result, cycles.figures, facts=facts)


def try_other_process(trial: Trial) -> Iterator[LineAnswer]:
    """Check that an open session sees slices of another process come and go."""
    place = trial.smallest_place(trial.free[0])
    with trial.announced(place), slice_of_other_process(trial, place) as other:
        listed = _readings_at(trial, place)
        other.destroy()
        remnants = _readings_at(trial, place)
    has_uuid = any(reading.uuid for reading in listed)
    result = (
        f"the slice is {'listed' if listed else 'not listed'} "
        f"{'with' if has_uuid else 'without'} its UUID, and "
        f"{'still' if remnants else 'no longer'} after its destruction"
    )
    yield LineAnswer.judged("other-process", has_uuid and not remnants, result)


def _readings_at(trial: Trial, place: ProofSlice) -> list[SliceReading]:
    return [r for r in trial.driver.slices(place.gpu) if ProofSlice.of(r) == place]
