"""Lines about a student's container on a slice that is seconds old."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from miglab_api.holders import processes_of
from miglab_hub.prove.holders import HOLDING_PROGRAM, TORCH_FACTS, parse_facts, slice_pids
from miglab_hub.prove.host import container_settings
from miglab_hub.prove.lines import CannotTry, LineAnswer
from miglab_hub.prove.pace import wait_until
from miglab_hub.prove.reading import clause_of
from miglab_hub.prove.servers import (
    NotStartedError,
    ProofServers,
    StartRefusedError,
    StudentContainer,
)
from miglab_hub.prove.trial import Trial
from miglab_pool.gpu.readings import GpuError, InUse, SliceReading
from miglab_pool.state.proof_record import ProofSlice
from miglab_spawner.containers.gpu_handover import visible_uuids

LIST_GPUS = ("nvidia-smi", "-L")
NOT_A_COMMAND = (126, 127)
MEMORY_SHARE = 0.1  # by which PyTorch's figure may be below the profile's: the driver keeps some
FAILING_PROGRAM = """
import torch
torch.zeros(4, device="cuda")[torch.tensor([1 << 30], device="cuda")]
torch.cuda.synchronize()
"""
"""An index out of range: the kernel's assertion ends the program (Xid 13, 31 or 43)."""


@dataclass
class StartEndTimes:
    """Times of containers that were started and ended.

    Attributes:
        starts_ms: from the create to the engine's word that it runs, by container.
        ends_ms: from the engine's word that it is gone to a destroy that succeeded.
        refusals: how often a slice was still in use.
    """

    starts_ms: list[float] = field(default_factory=list)
    ends_ms: list[float] = field(default_factory=list)
    refusals: int = 0


def try_containers(trial: Trial) -> Iterator[LineAnswer]:
    """Try all lines about containers, on one new slice after the other."""
    place = trial.smallest_place(trial.free[0])
    servers = ProofServers(container_settings(trial), trial.journal.record.run)
    with closing(servers), trial.announced(place):
        trial.journal.announce_containers()
        yield from _try_starts_and_ends(trial, servers, place)


def _try_starts_and_ends(
    trial: Trial, servers: ProofServers, place: ProofSlice
) -> Iterator[LineAnswer]:
    ends = StartEndTimes()
    inside: list[LineAnswer] = []
    try:
        for number in trial.pace.containers:
            _start_and_end(trial, servers, place, ends, inside if number == 0 else None)
    except NotStartedError as error:
        yield _start_failed(trial, error)
        raise CannotTry("no container was started") from error
    except InUse as error:
        yield from _start_answers(ends, inside)
        yield LineAnswer.judged("end-to-destroy", False, clause_of(error), {"ms": ends.ends_ms})
        return
    yield from _start_answers(ends, inside)
    result = f"{len(ends.ends_ms)} times; {ends.refusals} destroys met a slice still in use"
    figures = {"end_to_destroy_ms": ends.ends_ms}
    yield LineAnswer.judged(
        "end-to-destroy", True, result, figures, facts={"refusals": ends.refusals}
    )


def _start_answers(ends: StartEndTimes, inside: list[LineAnswer]) -> Iterator[LineAnswer]:
    """Yield the answer about all starts, then those about the first container."""
    figures = {"create_to_running_ms": ends.starts_ms}
    result = f"{len(ends.starts_ms)} containers started on slices just made"
    yield LineAnswer.judged("container-start", True, result, figures)
    yield from inside


def _start_failed(trial: Trial, error: Exception) -> LineAnswer:
    """Return the answer for a container that did not start; simulated GPUs need the tests' hook."""
    if trial.simulated_state is not None:
        raise CannotTry("the engine has no hook that knows these simulated GPUs") from error
    return LineAnswer.judged("container-start", False, str(error))


def _start_and_end(
    trial: Trial,
    servers: ProofServers,
    place: ProofSlice,
    ends: StartEndTimes,
    inside: list[LineAnswer] | None,
) -> None:
    """Create a slice, start a container with it, end both, and record the times."""
    reading, _ = trial.create(place)
    started_at = time.perf_counter()
    with servers.started(servers.lease_container(reading)) as container:
        ends.starts_ms.append(1000 * (time.perf_counter() - started_at))
        if inside is not None:
            inside += _try_inside(trial, servers, container, reading)
        container.remove()
    seconds, refusals = trial.destroy_when_unused(reading, trial.pace.release_s)
    ends.ends_ms.append(1000 * seconds)
    ends.refusals += refusals


def _try_inside(
    trial: Trial, servers: ProofServers, container: StudentContainer, reading: SliceReading
) -> list[LineAnswer]:
    """Try the lines inside the first container."""
    answers = [_check_visible_slices(container, reading)]
    status, output = container.run("python3", "-c", TORCH_FACTS)
    torch_facts = parse_facts(output) if status == 0 else {}
    answers.append(_check_torch(trial, reading, torch_facts))
    answers.append(_check_foreign_slice_hidden(servers, reading))
    answers += _try_program(trial, container, reading, has_cuda=bool(torch_facts.get("memory_mib")))
    return answers


def _check_visible_slices(container: StudentContainer, reading: SliceReading) -> LineAnswer:
    """Check that the driver's own tool shows exactly the leased slice."""
    status, output = container.run(*LIST_GPUS)
    if status in NOT_A_COMMAND:
        return LineAnswer.untried("container-sees-slice", "there is no nvidia-smi in the container")
    uuids = visible_uuids(output)
    holds = uuids == [reading.uuid]
    result = f"{len(uuids)} slices are visible" + ("" if holds else ", and not exactly the leased")
    return LineAnswer.judged("container-sees-slice", holds, result, facts={"status": status})


def _check_torch(trial: Trial, reading: SliceReading, torch_facts: dict[str, Any]) -> LineAnswer:
    """Check that PyTorch has one device, with the memory of the profile."""
    line = "container-torch"
    if not torch_facts.get("torch"):
        return LineAnswer.untried(line, "PyTorch does not run in the students' image")
    if trial.simulated_state is not None:
        return LineAnswer.untried(line, "simulated GPUs run no program")
    if torch_facts.get("cuda") is None:
        return LineAnswer.untried(line, "the image's PyTorch is built without CUDA")
    memory = torch_facts["memory_mib"]
    least = (1 - MEMORY_SHARE) * reading.profile.memory_mib
    holds = len(memory) == 1 and least <= memory[0] <= reading.profile.memory_mib
    result = f"{len(memory)} device, {memory} MiB; the profile has {reading.profile.memory_mib}"
    return LineAnswer.judged(line, holds, result, facts=torch_facts)


def _check_foreign_slice_hidden(servers: ProofServers, reading: SliceReading) -> LineAnswer:
    """Check that an environment variable does not give a container another's slice."""
    asks = {"NVIDIA_VISIBLE_DEVICES": str(reading.uuid)}
    try:
        guarded = _is_slice_visible(servers, reading, asks, is_guarded=True)
        alone = _is_slice_visible(servers, reading, asks, is_guarded=False)
    except NotStartedError as error:
        return LineAnswer.untried("container-refused", str(error))
    result = (
        f"with the spawner's environment the slice is {_visibility(guarded)}, "
        f"by the variable alone {_visibility(alone)}"
    )
    facts = {"with_spawner": guarded, "by_variable_alone": alone}
    return LineAnswer.judged("container-refused", not guarded, result, facts=facts)


def _visibility(is_visible: bool) -> str:
    return "visible" if is_visible else "not visible"


def _is_slice_visible(
    servers: ProofServers, reading: SliceReading, asks: dict[str, str], *, is_guarded: bool
) -> bool:
    """Whether a container without a lease sees the slice.

    One whose start the engine refuses sees nothing.

    Raises:
        NotStartedError: it could not be tried.
    """
    container = servers.container_without_lease(reading, asks, is_guarded=is_guarded)
    try:
        with servers.started(container):
            status, output = container.run(*LIST_GPUS)
    except StartRefusedError:
        return False
    if status is None:
        raise NotStartedError("the engine does not tell how nvidia-smi ended in the container")
    return str(reading.uuid) in output


def _try_program(
    trial: Trial, container: StudentContainer, reading: SliceReading, *, has_cuda: bool
) -> list[LineAnswer]:
    """Check that NVML shows a container's program, and the ids of an Xid event."""
    if trial.simulated_state is not None or not has_cuda:
        reason = "simulated GPUs run no program" if trial.simulated_state else "no CUDA program ran"
        return [
            LineAnswer.untried("process-is-holder", reason),
            LineAnswer.untried("event-ids", reason),
        ]
    container.begin("python3", "-c", HOLDING_PROGRAM)
    limit_s = trial.pace.program_s
    wait_until(lambda: bool(slice_pids(trial, reading)), limit_s)
    listed, processes = slice_pids(trial, reading), _container_pids(container)
    result = (
        f"NVML lists {len(listed)} processes, {len(listed & processes)} of them the container's"
    )
    is_holder = bool(listed) and listed <= processes
    return [
        LineAnswer.judged("process-is-holder", is_holder, result),
        _check_xid_event(trial, container, reading),
    ]


def _container_pids(container: StudentContainer) -> set[int]:
    return set(processes_of(f"container:{container.id}"))


def _check_xid_event(
    trial: Trial, container: StudentContainer, reading: SliceReading
) -> LineAnswer:
    """Check that a failing program's Xid event names its slice."""
    gpu = reading.gpu_uuid
    try:
        trial.driver.ask(gpu, lambda d: d.listen(gpu))
        container.run("python3", "-c", FAILING_PROGRAM)
        event = trial.driver.ask(gpu, lambda d: d.next_xid(trial.pace.xid_s))
    except GpuError as error:
        return LineAnswer.untried("event-ids", clause_of(error))
    if event is None:
        return LineAnswer.untried("event-ids", f"no Xid event came within {trial.pace.xid_s:g} s")
    holds = (event.gi_id, event.ci_id) == (reading.gi_id, reading.ci_id)
    result = f"Xid {event.number} with ids {event.gi_id} and {event.ci_id}"
    slice_ids = [reading.gi_id, reading.ci_id]
    facts = {**asdict(event), "slice": slice_ids, "needs": _read_recovery_action(trial, gpu)}
    return LineAnswer.judged("event-ids", holds, result, facts=facts)


def _read_recovery_action(trial: Trial, gpu: str) -> str | None:
    try:
        return trial.needs(gpu)
    except GpuError:
        return None
