"""What somebody may do to a slice or a GPU, and what will happen to whom if they do.  Pure."""

from collections.abc import Iterable

from miglab_api.gpus import GpuView, SliceState, SliceView
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.access.rights import Right
from miglab_pool.http.pages.elements.buttons import MAY_REASON, REASON, Action, Field

DRAINABLE = frozenset({SliceState.FREE, SliceState.LEASED, SliceState.MAKING, SliceState.SCRUBBING})


def on_slice(item: SliceView, gpu: GpuView, principal: Principal) -> list[Action]:
    """What the principal may do to a slice, whoever holds it."""
    found: list[Action] = []
    if principal.may(Right.DRAIN, gpu.course) and item.profile != "full" and not gpu.draining:
        found += _drain_slice(item)
    if principal.may(Right.QUARANTINE):
        found += _quarantine(item)
    if principal.may(Right.ADOPT) and item.state is SliceState.FOREIGN:
        found.append(
            _to_slice(
                item,
                "adopt",
                "Adopt",
                f"{_named(item)} was not created by the lab: whatever runs on it loses it. The "
                "slice is destroyed, and the pool takes its placement over.",
                is_grave=True,
            )
        )
    return found


def _drain_slice(item: SliceView) -> Iterable[Action]:
    if item.draining:
        yield _to_slice(
            item,
            "undrain",
            "End draining",
            "Its placement takes new leases again.",
            fields=(MAY_REASON,),
        )
    elif item.state in DRAINABLE:
        who = f"{item.user} keeps it; after that, n" if item.user else "N"
        yield _to_slice(
            item, "drain", "Drain", f"{who}obody gets this placement until you end the drain."
        )


def _quarantine(item: SliceView) -> Iterable[Action]:
    if item.state is SliceState.FREE:
        yield _to_slice(
            item,
            "quarantine",
            "Quarantine",
            "It stays as it is, and nobody gets it until somebody tries again to destroy it.",
        )
    if item.state is SliceState.QUARANTINED:
        yield _to_slice(
            item,
            "clear",
            "Try again",
            "The driver is asked again to destroy it. Then its placement is free.",
            fields=(MAY_REASON,),
        )


def _to_slice(
    item: SliceView,
    key: str,
    title: str,
    says: str,
    fields: tuple[Field, ...] = (REASON,),
    is_grave: bool = False,
) -> Action:
    return Action(
        key,
        title,
        says,
        title,
        f"{_named(item)}: {title.lower()}, done.",
        f"slices/{item.slice_id}/{key}",
        fields=fields,
        fixed={"expected": _state(item)},
        is_grave=is_grave,
    )


def _named(item: SliceView) -> str:
    return f"{item.profile} on GPU {item.gpu}"


def _state(item: SliceView) -> str:
    """What the action calls the state that was seen."""
    return "draining" if item.draining and item.state in DRAINABLE else item.state.value


def on_gpu(gpu: GpuView, principal: Principal) -> list[Action]:
    """What the principal may do to a whole GPU."""
    if not principal.may(Right.DRAIN, gpu.course):
        return []
    name = f"GPU {gpu.index}"
    if gpu.draining:
        says = f"{name} takes new leases again."
        return [_to_gpu(gpu, "undrain", "End draining", says, says, MAY_REASON)]
    held = len({item.lease for item in gpu.slices if item.lease is not None})
    who = f"The {held} lease{'s' if held != 1 else ''} on it go on. " if held else ""
    says = f"{who}No new lease gets a slice of {name} until you end the drain."
    return [_to_gpu(gpu, "drain", "Drain", says, f"{name} is draining.", REASON)]


def _to_gpu(gpu: GpuView, key: str, title: str, says: str, done: str, reason: Field) -> Action:
    fixed = {"expected": "draining" if gpu.draining else gpu.state}
    path = f"gpus/{gpu.uuid}/{key}"
    return Action(key, title, says, title, done, path, fields=(reason,), fixed=fixed)
