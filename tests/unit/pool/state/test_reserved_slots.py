"""Where reserved places are kept: all that fit, none over another, and where it hurts least."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pool.queue.test_queue import A100, slice_at

from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.state.placement import GpuOccupancy, Slot, clash, place, without_places
from miglab_pool.state.slot_choice import FEW, SlotCandidate, choose_slots

ALL = [profile.name for profile in A100.profiles]
PLAIN = [profile.name for profile in A100.profiles if profile.is_plain]


def candidate(
    gpu: str,
    leased: tuple[ProfilePlacement, ...] = (),
    in_slots: tuple[ProfilePlacement, ...] = (),
    ready: tuple[ProfilePlacement, ...] = (),
    fixed_slices: tuple[ProfilePlacement, ...] = (),
) -> SlotCandidate:
    live = (*leased, *in_slots, *fixed_slices)
    return SlotCandidate(
        GpuOccupancy(gpu, A100, live, ready, immovable=fixed_slices), leased, in_slots
    )


def test_unusable_and_full() -> None:
    """No seat on a GPU that does not answer or is foreign; what can be had is kept all the same."""
    foreign = candidate("a", fixed_slices=(slice_at("7g.40gb", 0),))
    silent = SlotCandidate(GpuOccupancy("b", A100, usable=False))
    assert choose_slots([("1g.5gb",)], [foreign, silent]) == ()
    half = candidate("c", fixed_slices=(slice_at("3g.20gb", 0),))
    assert len(choose_slots([("3g.20gb",), ("3g.20gb",)], [foreign, half])) == 1
    assert choose_slots([("9g.90gb",)], [half]) == ()
    assert choose_slots([], [half]) == ()


def test_closed_to_others() -> None:
    """What is kept is neither free, warm, nor freed by a lease's end, for those who draw not."""
    occupancy = candidate("a", ready=(slice_at("1g.5gb", 0), slice_at("1g.5gb", 4))).occupancy
    closed = without_places(occupancy, [slice_at("3g.20gb", 0)])
    assert closed.immovable == (slice_at("3g.20gb", 0),)
    assert closed.warm == (slice_at("1g.5gb", 4),)
    assert place(("7g.40gb",), [closed]) is None
    assert without_places(occupancy, ()) is occupancy


names = st.sampled_from(PLAIN)


def _lists(names: list[str], max_requests: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    return st.lists(
        st.lists(st.sampled_from(names), min_size=1, max_size=2).map(tuple), max_size=max_requests
    )


requests = _lists(PLAIN, 8) | _lists(ALL, FEW // 2)


@st.composite
def candidates(draw: st.DrawFn) -> list[SlotCandidate]:
    """One or two GPUs with slices of every kind, none over another."""
    gpus = []
    for gpu in ("a", "b")[: draw(st.integers(1, 2))]:
        kinds: dict[str, list[ProfilePlacement]] = {
            kind: [] for kind in ("leased", "in_slots", "ready", "fixed_slices")
        }
        on_gpu: list[ProfilePlacement] = []
        for name in draw(st.lists(names, max_size=5)):
            slice_ = slice_at(name, draw(st.sampled_from(A100.by_name[name].starts)))
            if not any(clash(slice_, other) for other in on_gpu):
                on_gpu.append(slice_)
                kinds[draw(st.sampled_from(sorted(kinds)))].append(slice_)
        gpus.append(candidate(gpu, **{kind: tuple(slices) for kind, slices in kinds.items()}))
    return gpus


@settings(max_examples=2 * settings.default.max_examples)
@given(requests=requests, candidates=candidates())
def test_all_that_fit_and_none_over_another(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """Every slice gets a seat exactly if all fit once the leases are over; seats never overlap."""
    slots = choose_slots(requests, candidates)
    names_requested = [name for names in requests for name in names]
    bare = [GpuOccupancy(s.occupancy.gpu, A100, live=s.occupancy.immovable) for s in candidates]
    assert (len(slots) == len(names_requested)) == (place(names_requested, bare) is not None)
    for slot_a, slot_b in combinations(slots, 2):
        assert slot_a.gpu != slot_b.gpu or not clash(slot_a.placed_slice, slot_b.placed_slice)
    for slot in slots:
        fixed_slices = next(
            s.occupancy.immovable for s in candidates if s.occupancy.gpu == slot.gpu
        )
        assert not any(clash(slot.placed_slice, slice_) for slice_ in fixed_slices)
    requested_counts = Counter(
        (request, name) for request, names in enumerate(requests) for name in names
    )
    assert Counter((s.request, s.placed_slice.profile.name) for s in slots) <= requested_counts


@settings(max_examples=2 * settings.default.max_examples)
@given(requests=_lists(PLAIN, 8), candidates=candidates())
def test_each_slot_is_the_best_that_is_left(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """Large slices first, each where the fewest leases lie, looked for among all places anew."""
    profiles_requested = [
        (request, A100.by_name[name]) for request, names in enumerate(requests) for name in names
    ]
    profiles_requested.sort(key=lambda pair: (-pair[1].size, len(pair[1].starts)))
    expected_slots: list[Slot] = []
    for request, profile in profiles_requested:
        options = [
            (
                _lying_on(candidate, slice_),
                -slice_.placement.start,
                Slot(request, candidate.occupancy.gpu, slice_),
            )
            for candidate in candidates
            for slice_ in (slice_at(profile.name, start) for start in profile.starts)
            if not any(
                clash(slice_, other)
                for other in (*candidate.occupancy.immovable, *_on(candidate, expected_slots))
            )
        ]
        expected_slots += (
            [min(options, key=lambda option: (option[0], option[2].gpu, option[1]))[2]]
            if options
            else []
        )
    if len(expected_slots) == len(profiles_requested):
        assert choose_slots(requests, candidates) == tuple(expected_slots)


def _on(candidate: SlotCandidate, slots: list[Slot]) -> list[ProfilePlacement]:
    return [slot.placed_slice for slot in slots if slot.gpu == candidate.occupancy.gpu]


def _lying_on(candidate: SlotCandidate, slice_: ProfilePlacement) -> tuple[int, ...]:
    kinds = (candidate.drawn_leases, candidate.leased)
    return tuple(sum(clash(slice_, other) for other in kind) for kind in kinds)


@settings(max_examples=settings.default.max_examples // 2)
@given(requests=requests, candidates=candidates())
def test_creating_moves_no_slot(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """The seats are the same whichever free slices there are: cutting one comes to an end."""
    bare = [replace(s, occupancy=replace(s.occupancy, warm=())) for s in candidates]
    assert choose_slots(requests, candidates) == choose_slots(requests, bare)
