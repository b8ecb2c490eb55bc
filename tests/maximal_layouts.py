"""Every way in which a GPU can be cut in full: what tables and cuts are tested against."""

from collections.abc import Iterable, Iterator

from miglab_pool.gpu.geometry import Geometry, ProfilePlacement, occupied_mask


def maximal_layouts(
    geometry: Geometry, names: Iterable[str]
) -> Iterator[tuple[ProfilePlacement, ...]]:
    """Every set of placements to which nothing can be added, each exactly once.

    Args:
        geometry: the GPU's geometry.
        names: the profiles allowed.

    Yields:
        The layout, ordered by start.
    """
    candidates = [
        ProfilePlacement(geometry.by_name[name], placement)
        for name in names
        for placement in geometry.by_name[name].placements
    ]
    candidates.sort(key=lambda slice_: (slice_.placement, slice_.profile.profile_id))
    yield from _extend((), 0, candidates)


def _extend(
    layout: tuple[ProfilePlacement, ...], first: int, candidates: list[ProfilePlacement]
) -> Iterator[tuple[ProfilePlacement, ...]]:
    for index in range(first, len(candidates)):
        if _fits(candidates[index], layout):
            yield from _extend((*layout, candidates[index]), index + 1, candidates)
    if not any(_fits(candidate, layout) for candidate in candidates):
        yield layout


def _fits(candidate: ProfilePlacement, layout: Iterable[ProfilePlacement]) -> bool:
    layout = list(layout)
    names = [slice_.profile.name for slice_ in (candidate, *layout)]
    if sum(name.endswith(("+me", "+me.all")) for name in names) > 1:
        return False
    return not candidate.placement.mask & occupied_mask(layout)
