"""Findings about the pool and its GPUs: what is wrong, and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from miglab_api.gpus import PoolSnapshot, SliceState
from miglab_pool.gpu.readings import GpuInfo, Health
from miglab_pool.ledger.rows import GPU_LOST, GPU_UNFIT

HOT_C = 85  # °C; an A100 begins to slow down a little above
GPU_IS_LOST = (
    "look for Xid messages in the kernel log (dmesg | grep -i xid), then end what runs on the GPU "
    "and reset it, or reboot the host"
)
GPU_IS_MISSING = (
    "compare gpus.uuids in lab.toml with `nvidia-smi -L`; if the card is no longer on the bus "
    "(lspci), reboot the host, then restart the pool, which costs no lease"
)
RESUMES_ITSELF = "make room on the lab's disk (see its finding); grants then resume by themselves"
COMES_BACK = "it takes new leases again by itself within a minute of that"


class Level(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    WRONG = "WRONG"


@dataclass(frozen=True)
class HealthFinding:
    """The result of one check.

    Attributes:
        subject: the part of the lab.
        observation: how it is.
        remedy: what to do about it; empty if it is fine.
    """

    subject: str
    level: Level
    observation: str
    remedy: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to do something."""
        return self.level is Level.WRONG


def fine(subject: str, observation: str) -> HealthFinding:
    """A finding that needs no action."""
    return HealthFinding(subject, Level.FINE, observation)


def wrong(subject: str, observation: str, remedy: str) -> HealthFinding:
    """A finding that needs action."""
    return HealthFinding(subject, Level.WRONG, observation, remedy)


def fine_or_wrong(subject: str, is_fine: bool, observation: str, remedy: str) -> HealthFinding:
    """A finding that needs action unless ``is_fine``."""
    return fine(subject, observation) if is_fine else wrong(subject, observation, remedy)


def gpu_findings(gpu: GpuInfo, health: Health, *, is_whole: bool) -> Iterator[HealthFinding]:
    """Yield the findings about a GPU.

    Args:
        gpu: what it is.
        health: how it is.
        is_whole: whether lab.toml wants it whole, with MIG off.
    """
    name = f"GPU {gpu.index}"
    if health.lost:
        yield wrong(name, health.reason, GPU_IS_LOST)
    elif health.ok is False:
        by_hand = "drain it, then reset it (or remove it from gpus.uuids)"
        yield wrong(name, health.reason, COMES_BACK if health.needs else by_hand)
    elif health.ok is None:
        yield wrong(name, f"health unknown: {health.reason}", "see `nvidia-smi -q`")
    if health.temperature_c is not None and health.temperature_c > HOT_C:
        observation = (
            f"its temperature is {health.temperature_c} °C, and it slows down to protect itself"
        )
        yield wrong(name, observation, "check the fans and the room")
    if mode := wrong_mode(gpu, is_whole=is_whole):
        yield wrong(name, f"{gpu.name}: {mode.problem}", mode.remedy)
    else:
        mode_now = "on: partitioned on demand" if gpu.mig else "off: leased whole"
        yield fine(name, f"{gpu.name}, MIG {mode_now}")


class WrongMode(NamedTuple):
    """A wrong MIG mode of a GPU, and the command that corrects it."""

    problem: str
    remedy: str


def wrong_mode(gpu: GpuInfo, *, is_whole: bool) -> WrongMode | None:
    """Compare a GPU's MIG mode, now and after a reset, with lab.toml; None if they agree.  Pure.

    From Hopper on the mode is lost at each reset and reboot.  A GPU with another mode than the one
    wanted takes no lease: neither slices nor the whole of it were meant.

    Args:
        gpu: what it says of itself.
        is_whole: whether lab.toml wants MIG off.
    """
    if not gpu.geometry.profiles:
        return None
    if gpu.mig is None or gpu.mig_pending is None:
        return WrongMode("its MIG mode is unknown", f"see nvidia-smi -i {gpu.uuid} -q -d MIG")
    set_mode = f"nvidia-smi -i {gpu.uuid} -mig {0 if is_whole else 1}"
    reset = f"nvidia-smi --gpu-reset -i {gpu.uuid}, or reboot the host"
    now, later = ("on" if mode else "off" for mode in (gpu.mig, gpu.mig_pending))
    if gpu.mig is not is_whole:  # as wanted
        problem = f"MIG is {now}, and turns {later} at the next reset"
        return WrongMode(problem, f"take that back: {set_mode}") if now != later else None
    if now != later:
        problem = f"MIG is {now} until the next reset"
        return WrongMode(problem, f"when nothing runs on it: {reset}")
    setting = "take it out of gpus.whole" if is_whole else "add it to gpus.whole"
    kind = "cut into slices" if is_whole else "leased whole"
    remedy = (
        f"when nothing runs on it: {set_mode} (an A100 or A30 also needs {reset}); or, if it is to "
        f"be {kind}, {setting} in lab.toml and restart the pool"
    )
    return WrongMode(f"MIG is {now}, and lab.toml wants it {'off' if is_whole else 'on'}", remedy)


def pool_findings(
    snapshot: PoolSnapshot, health: dict[str, Any], contradictions: Sequence[str]
) -> Iterator[HealthFinding]:
    """Yield the findings about the running service, its GPUs and slices."""
    yield from _service_findings(health)
    yield fine("pool", f"{len(snapshot.gpus)} GPUs, {len(snapshot.waiting)} waiting")
    if snapshot.paused:
        do = RESUMES_ITSELF if health.get("is_disk_full") else "miglab pool resume"
        yield wrong("pool", f"paused: {snapshot.paused}", do)
    for contradiction in contradictions:
        remedy = "pause the pool, keep a copy of the ledger, and report this"
        yield wrong("invariant", contradiction, remedy)
    yield from _slice_findings(snapshot)


def _service_findings(health: dict[str, Any]) -> Iterator[HealthFinding]:
    if health["is_stuck"]:
        remedy = "see the driver's messages (dmesg | grep -i nvrm); a restart loses no lease"
        yield wrong("pool", "a driver call hangs, so its GPU gets no new leases", remedy)
    if not health["is_reconciled"]:
        remedy = (
            "check again in a moment; if that does not help, see the pool's log in the state folder"
        )
        yield wrong("pool", "ledger, GPUs and servers have not been compared yet", remedy)
    if lost := health.get("unknown_to_hub"):
        remedy = (
            "wait: the pool ends them itself a minute after the hub first reports this; see its log"
        )
        yield wrong("pool", f"servers that must end but that the hub does not know: {lost}", remedy)
    if strays := health.get("left_alone"):
        remedy = (
            "see the Health page, which lists them; once their students have saved, remove them "
            "(docker rm -f CONTAINER) and adopt their slices"
        )
        observation = (
            f"containers with slices that this ledger did not give them, left alone: {strays}"
        )
        yield wrong("pool", observation, remedy)
    if health.get("is_other_engine"):
        remedy = (
            "correct DOCKER_HOST (compose: MIGLAB_SOCKET); if those containers are gone for good: "
            "miglab backup, then miglab restore --new-host"
        )
        observation = "another Docker engine answers than the one that has the leases' containers"
        yield wrong("pool", f"{observation}, so no slice is freed", remedy)
    if silent := health.get("silent_servers"):
        remedy = (
            "`miglab pool reclaim` says whose; look into their servers, and set a shorter "
            "pool.lease_s if you cannot trust your students"
        )
        yield wrong(
            "pool", f"servers that do not report, so nobody knows what they do: {silent}", remedy
        )
    if health["failing"]:
        remedy = "see the pool's log in the state folder; a restart of the lab loses no lease"
        yield wrong("pool", f"its last rounds failed: {', '.join(health['failing'])}", remedy)


SEE = "see the driver's messages"
_REMEDIES = {GPU_LOST: GPU_IS_LOST, GPU_UNFIT: "do what is said there"}  # by `why_unfit`


def _slice_findings(snapshot: PoolSnapshot) -> Iterator[HealthFinding]:
    for gpu in snapshot.gpus:
        if gpu.state != "ok":
            yield wrong(
                f"GPU {gpu.index}", f"{gpu.state}: {gpu.reason}", _REMEDIES.get(gpu.state, SEE)
            )
        for slice_view in gpu.slices:
            name = f"slice {slice_view.slice_id}"
            observation = f"{slice_view.profile} on GPU {gpu.index}: {slice_view.reason}"
            if slice_view.state is SliceState.QUARANTINED:
                remedy = f"find out what uses it, then run: miglab pool clear {slice_view.slice_id}"
                yield wrong(name, observation, remedy)
            elif slice_view.state is SliceState.FOREIGN:
                command = f"miglab pool adopt {slice_view.slice_id}"
                remedy = f"leave it, or let the pool take it over: {command}"
                yield wrong(name, observation, remedy)
