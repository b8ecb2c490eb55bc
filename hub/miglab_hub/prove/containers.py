"""Lines about a student's container on a slice that is seconds old."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from miglab_api.holders import processes_of
from miglab_hub.prove.holders import HOLD, LOOK, parsed, slice_pids
from miglab_hub.prove.host import servers_of
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
from miglab_pool.state.proof import ProofSlice
from miglab_spawner.containers.gpu_handover import visible_uuids

LIST_GPUS = ("nvidia-smi", "-L")
NOT_A_COMMAND = (126, 127)
MEMORY_SHARE = 0.1  # by which PyTorch's figure may be below the profile's: the driver keeps some
FAIL = """
import torch
torch.zeros(4, device="cuda")[torch.tensor([1 << 30], device="cuda")]
torch.cuda.synchronize()
"""
"""An index out of range: the kernel's assertion ends the program (Xid 13, 31 or 43)."""


@dataclass
class Ends:
    """Containers that were started and ended.

    Attributes:
        starts_ms: from the create to the engine's word that it runs, by container.
        ends_ms: from the engine's word that it is gone to a destroy that succeeded.
        refusals: how often a slice was still in use.
    """

    starts_ms: list[float] = field(default_factory=list)
    ends_ms: list[float] = field(default_factory=list)
    refusals: int = 0


def on_fresh_slices(trial: Trial) -> Iterator[LineAnswer]:
    """All lines about containers, on one slice after the other."""
    place = trial.smallest_place(trial.free[0])
    servers = ProofServers(servers_of(trial), trial.journal.record.run)
    with closing(servers), trial.announced(place):
        trial.journal.announce_containers()
        yield from _tried(trial, servers, place)


def _tried(trial: Trial, servers: ProofServers, place: ProofSlice) -> Iterator[LineAnswer]:
    ends = Ends()
    inside: list[LineAnswer] = []
    try:
        for number in trial.pace.containers:
            _start_and_end(trial, servers, place, ends, inside if number == 0 else None)
    except NotStartedError as error:
        yield _not_started(trial, error)
        raise CannotTry("no container was started") from error
    except InUse as error:
        yield from _with_start(ends, inside)
        yield LineAnswer.judged("end-to-destroy", False, clause_of(error), {"ms": ends.ends_ms})
        return
    yield from _with_start(ends, inside)
    result = f"{len(ends.ends_ms)} times; {ends.refusals} destroys met a slice still in use"
    figures = {"end_to_destroy_ms": ends.ends_ms}
    yield LineAnswer.judged(
        "end-to-destroy", True, result, figures, facts={"refusals": ends.refusals}
    )


def _with_start(ends: Ends, inside: list[LineAnswer]) -> Iterator[LineAnswer]:
    """The lines about the first container, behind the one about all starts."""
    figures = {"create_to_running_ms": ends.starts_ms}
    result = f"{len(ends.starts_ms)} containers started on slices just made"
    yield LineAnswer.judged("container-start", True, result, figures)
    yield from inside


def _not_started(trial: Trial, error: Exception) -> LineAnswer:
    """A container that the engine refused; of simulated GPUs only the tests' hook knows."""
    if trial.simulated_state is not None:
        raise CannotTry("the engine has no hook that knows these simulated GPUs") from error
    return LineAnswer.judged("container-start", False, str(error))


def _start_and_end(
    trial: Trial,
    servers: ProofServers,
    place: ProofSlice,
    ends: Ends,
    inside: list[LineAnswer] | None,
) -> None:
    """One slice, made, given to a container, and destroyed when that has ended."""
    reading, _ = trial.create(place)
    started_at = time.perf_counter()
    with servers.started(servers.lease_container(reading)) as container:
        ends.starts_ms.append(1000 * (time.perf_counter() - started_at))
        if inside is not None:
            inside += _inside(trial, servers, container, reading)
        container.remove()
    seconds, refusals = trial.destroy_when_unused(reading, trial.pace.release_s)
    ends.ends_ms.append(1000 * seconds)
    ends.refusals += refusals


def _inside(
    trial: Trial, servers: ProofServers, container: StudentContainer, reading: SliceReading
) -> list[LineAnswer]:
    """What the first container is asked; a line that cannot be tried is left out by the step."""
    answers = [_sees_slice(container, reading)]
    status, output = container.run("python3", "-c", LOOK)
    torch_facts = parsed(output) if status == 0 else {}
    answers.append(_torch(trial, reading, torch_facts))
    answers.append(_refused(servers, reading))
    answers += _with_program(
        trial, container, reading, has_cuda=bool(torch_facts.get("memory_mib"))
    )
    return answers


def _sees_slice(container: StudentContainer, reading: SliceReading) -> LineAnswer:
    """Whether the driver's own tool shows exactly the leased slice."""
    status, output = container.run(*LIST_GPUS)
    if status in NOT_A_COMMAND:
        return LineAnswer.untried("container-sees-slice", "there is no nvidia-smi in the container")
    uuids = visible_uuids(output)
    holds = uuids == [reading.uuid]
    result = f"{len(uuids)} slices are visible" + ("" if holds else ", and not exactly the leased")
    return LineAnswer.judged("container-sees-slice", holds, result, facts={"status": status})


def _torch(trial: Trial, reading: SliceReading, torch_facts: dict[str, Any]) -> LineAnswer:
    """Whether PyTorch has one device, with the memory of the profile."""
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


def _refused(servers: ProofServers, reading: SliceReading) -> LineAnswer:
    """Whether an environment variable alone gets a container the slice of another's lease."""
    asks = {"NVIDIA_VISIBLE_DEVICES": str(reading.uuid)}
    try:
        guarded = _sees(servers, reading, asks, is_guarded=True)
        alone = _sees(servers, reading, asks, is_guarded=False)
    except NotStartedError as error:
        return LineAnswer.untried("container-refused", str(error))
    result = (
        f"with the spawner's environment the slice is {_seen(guarded)}, "
        f"by the variable alone {_seen(alone)}"
    )
    facts = {"with_spawner": guarded, "by_variable_alone": alone}
    return LineAnswer.judged("container-refused", not guarded, result, facts=facts)


def _seen(is_visible: bool) -> str:
    return "visible" if is_visible else "not visible"


def _sees(
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


def _with_program(
    trial: Trial, container: StudentContainer, reading: SliceReading, *, has_cuda: bool
) -> list[LineAnswer]:
    """Whether NVML shows a container's program, and which ids an Xid event has."""
    if trial.simulated_state is not None or not has_cuda:
        reason = "simulated GPUs run no program" if trial.simulated_state else "no CUDA program ran"
        return [
            LineAnswer.untried("process-is-holder", reason),
            LineAnswer.untried("event-ids", reason),
        ]
    container.begin("python3", "-c", HOLD)
    limit_s = trial.pace.program_s
    wait_until(lambda: bool(slice_pids(trial, reading)), limit_s)
    listed, processes = slice_pids(trial, reading), _processes(container)
    result = (
        f"NVML lists {len(listed)} processes, {len(listed & processes)} of them the container's"
    )
    is_holder = bool(listed) and listed <= processes
    return [
        LineAnswer.judged("process-is-holder", is_holder, result),
        _event(trial, container, reading),
    ]


def _processes(container: StudentContainer) -> set[int]:
    return set(processes_of(f"container:{container.id}"))


def _event(trial: Trial, container: StudentContainer, reading: SliceReading) -> LineAnswer:
    """Whether the Xid event of a program that fails names the slice it failed on."""
    gpu = reading.gpu_uuid
    try:
        trial.driver.ask(gpu, lambda d: d.listen(gpu))
        container.run("python3", "-c", FAIL)
        event = trial.driver.ask(gpu, lambda d: d.next_xid(trial.pace.xid_s))
    except GpuError as error:
        return LineAnswer.untried("event-ids", clause_of(error))
    if event is None:
        return LineAnswer.untried("event-ids", f"no Xid event came within {trial.pace.xid_s:g} s")
    holds = (event.gi_id, event.ci_id) == (reading.gi_id, reading.ci_id)
    result = f"Xid {event.number} with ids {event.gi_id} and {event.ci_id}"
    slice_ids = [reading.gi_id, reading.ci_id]
    facts = {**asdict(event), "slice": slice_ids, "needs": _needs(trial, gpu)}
    return LineAnswer.judged("event-ids", holds, result, facts=facts)


def _needs(trial: Trial, gpu: str) -> str | None:
    try:
        return trial.needs(gpu)
    except GpuError:
        return None
