"""What is wrong with the pool and its GPUs, as findings that say what to do."""

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
    """One thing that was looked at.

    Attributes:
        subject: which part of the lab.
        found: how it is.
        do: what to do about it; empty if it is fine.
    """

    subject: str
    level: Level
    found: str
    do: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to do something."""
        return self.level is Level.WRONG


def fine(what: str, found: str) -> HealthFinding:
    """A finding about which nothing is to be done."""
    return HealthFinding(what, Level.FINE, found)


def wrong(what: str, found: str, do: str) -> HealthFinding:
    """A finding about which something is to be done."""
    return HealthFinding(what, Level.WRONG, found, do)


def judged(what: str, is_fine: bool, found: str, do: str) -> HealthFinding:
    """One or the other."""
    return fine(what, found) if is_fine else wrong(what, found, do)


def of_gpu(gpu: GpuInfo, health: Health, *, is_whole: bool) -> Iterator[HealthFinding]:
    """What a GPU says of itself.

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
        found = f"its temperature is {health.temperature_c} °C, and it slows down to protect itself"
        yield wrong(name, found, "check the fans and the room")
    if mode := wrong_mode(gpu, is_whole=is_whole):
        yield wrong(name, f"{gpu.name}: {mode.problem}", mode.remedy)
    else:
        mode_now = "on: partitioned on demand" if gpu.mig else "off: leased whole"
        yield fine(name, f"{gpu.name}, MIG {mode_now}")


class WrongMode(NamedTuple):
    """What is wrong with a GPU's MIG mode, and the command that mends it."""

    problem: str
    remedy: str


def wrong_mode(gpu: GpuInfo, *, is_whole: bool) -> WrongMode | None:
    """Whether a GPU's MIG mode is, and stays, the one that lab.toml wants.  Pure.

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


def of_pool(
    snapshot: PoolSnapshot, health: dict[str, Any], contradictions: Sequence[str]
) -> Iterator[HealthFinding]:
    """What the running service says of itself, of its GPUs and slices."""
    yield from _loops(health)
    yield fine("pool", f"{len(snapshot.gpus)} GPUs, {len(snapshot.waiting)} waiting")
    if snapshot.paused:
        do = RESUMES_ITSELF if health.get("is_disk_full") else "miglab pool resume"
        yield wrong("pool", f"paused: {snapshot.paused}", do)
    for contradiction in contradictions:
        do = "pause the pool, keep a copy of the ledger, and report this"
        yield wrong("invariant", contradiction, do)
    yield from _slices(snapshot)


def _loops(health: dict[str, Any]) -> Iterator[HealthFinding]:
    if health["is_stuck"]:
        do = "see the driver's messages (dmesg | grep -i nvrm); a restart loses no lease"
        yield wrong("pool", "a driver call hangs, so its GPU gets no new leases", do)
    if not health["is_reconciled"]:
        do = (
            "check again in a moment; if that does not help, see the pool's log in the state folder"
        )
        yield wrong("pool", "ledger, GPUs and servers have not been compared yet", do)
    if lost := health.get("unknown_to_hub"):
        do = (
            "wait: the pool ends them itself a minute after the hub first reports this; see its log"
        )
        yield wrong("pool", f"servers that must end but that the hub does not know: {lost}", do)
    if strays := health.get("left_alone"):
        do = (
            "see the Health page, which lists them; once their students have saved, remove them "
            "(docker rm -f CONTAINER) and adopt their slices"
        )
        found = f"containers with slices that this ledger did not give them, left alone: {strays}"
        yield wrong("pool", found, do)
    if health.get("is_other_engine"):
        do = (
            "correct DOCKER_HOST (compose: MIGLAB_SOCKET); if those containers are gone for good: "
            "miglab backup, then miglab restore --new-host"
        )
        found = "another Docker engine answers than the one that has the leases' containers"
        yield wrong("pool", f"{found}, so no slice is freed", do)
    if silent := health.get("silent_servers"):
        do = (
            "`miglab pool reclaim` says whose; look into their servers, and set a shorter "
            "pool.lease_s if you cannot trust your students"
        )
        yield wrong(
            "pool", f"servers that do not report, so nobody knows what they do: {silent}", do
        )
    if health["failing"]:
        do = "see the pool's log in the state folder; a restart of the lab loses no lease"
        yield wrong("pool", f"its last rounds failed: {', '.join(health['failing'])}", do)


SEE = "see the driver's messages"
_DO = {GPU_LOST: GPU_IS_LOST, GPU_UNFIT: "do what is said there"}  # by `why_unfit`


def _slices(snapshot: PoolSnapshot) -> Iterator[HealthFinding]:
    for gpu in snapshot.gpus:
        if gpu.state != "ok":
            yield wrong(f"GPU {gpu.index}", f"{gpu.state}: {gpu.reason}", _DO.get(gpu.state, SEE))
        for item in gpu.slices:
            name = f"slice {item.slice_id}"
            found = f"{item.profile} on GPU {gpu.index}: {item.reason}"
            if item.state is SliceState.QUARANTINED:
                do = f"find out what uses it, then run: miglab pool clear {item.slice_id}"
                yield wrong(name, found, do)
            elif item.state is SliceState.FOREIGN:
                do = f"leave it, or let the pool take it over: miglab pool adopt {item.slice_id}"
                yield wrong(name, found, do)
