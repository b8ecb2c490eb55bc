"""Where reserved places are kept: all that fit, none over another, and where it hurts least."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Placed
from miglab_pool.state.placement import GpuOccupancy, Slot, clash, place, without_places
from miglab_pool.state.slot_choice import FEW, SlotCandidate, choose_slots

from .test_queue import A100, placed

ALL = [profile.name for profile in A100.profiles]
PLAIN = [profile.name for profile in A100.profiles if profile.is_plain]


def candidate(
    gpu: str,
    leased: tuple[Placed, ...] = (),
    drawn: tuple[Placed, ...] = (),
    ready: tuple[Placed, ...] = (),
    fixed: tuple[Placed, ...] = (),
) -> SlotCandidate:
    live = (*leased, *drawn, *fixed)
    return SlotCandidate(GpuOccupancy(gpu, A100, live, ready, immovable=fixed), leased, drawn)


def test_unusable_and_full() -> None:
    """No seat on a GPU that does not answer or is foreign; what can be had is kept all the same."""
    foreign = candidate("a", fixed=(placed("7g.40gb", 0),))
    silent = SlotCandidate(GpuOccupancy("b", A100, usable=False))
    assert choose_slots([("1g.5gb",)], [foreign, silent]) == ()
    half = candidate("c", fixed=(placed("3g.20gb", 0),))
    assert len(choose_slots([("3g.20gb",), ("3g.20gb",)], [foreign, half])) == 1
    assert choose_slots([("9g.90gb",)], [half]) == ()
    assert choose_slots([], [half]) == ()


def test_closed_to_others() -> None:
    """What is kept is neither free, warm, nor freed by a lease's end, for those who draw not."""
    occupancy = candidate("a", ready=(placed("1g.5gb", 0), placed("1g.5gb", 4))).occupancy
    closed = without_places(occupancy, [placed("3g.20gb", 0)])
    assert closed.immovable == (placed("3g.20gb", 0),)
    assert closed.warm == (placed("1g.5gb", 4),)
    assert place(("7g.40gb",), [closed]) is None
    assert without_places(occupancy, ()) is occupancy


names = st.sampled_from(PLAIN)


def _lists(names: list[str], most: int) -> st.SearchStrategy[list[tuple[str, ...]]]:
    return st.lists(
        st.lists(st.sampled_from(names), min_size=1, max_size=2).map(tuple), max_size=most
    )


requests = _lists(PLAIN, 8) | _lists(ALL, FEW // 2)


@st.composite
def candidates(draw: st.DrawFn) -> list[SlotCandidate]:
    """One or two GPUs with slices of every kind, none over another."""
    found = []
    for gpu in ("a", "b")[: draw(st.integers(1, 2))]:
        kinds: dict[str, list[Placed]] = {"leased": [], "drawn": [], "ready": [], "fixed": []}
        on_gpu: list[Placed] = []
        for name in draw(st.lists(names, max_size=5)):
            item = placed(name, draw(st.sampled_from(A100.by_name[name].starts)))
            if not any(clash(item, other) for other in on_gpu):
                on_gpu.append(item)
                kinds[draw(st.sampled_from(sorted(kinds)))].append(item)
        found.append(candidate(gpu, **{kind: tuple(items) for kind, items in kinds.items()}))
    return found


@settings(max_examples=2 * settings.default.max_examples)
@given(requests=requests, candidates=candidates())
def test_all_that_fit_and_none_over_another(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """Every slice gets a seat exactly if all fit once the leases are over; seats never overlap."""
    slots = choose_slots(requests, candidates)
    wanted = [name for names in requests for name in names]
    bare = [GpuOccupancy(s.occupancy.gpu, A100, live=s.occupancy.immovable) for s in candidates]
    assert (len(slots) == len(wanted)) == (place(wanted, bare) is not None)
    for one, other in combinations(slots, 2):
        assert one.gpu != other.gpu or not clash(one.placed_slice, other.placed_slice)
    for slot in slots:
        fixed = next(s.occupancy.immovable for s in candidates if s.occupancy.gpu == slot.gpu)
        assert not any(clash(slot.placed_slice, item) for item in fixed)
    asked = Counter((request, name) for request, names in enumerate(requests) for name in names)
    assert Counter((s.request, s.placed_slice.profile.name) for s in slots) <= asked


@settings(max_examples=2 * settings.default.max_examples)
@given(requests=_lists(PLAIN, 8), candidates=candidates())
def test_each_slot_is_the_best_that_is_left(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """Large slices first, each where the fewest leases lie, looked for among all places anew."""
    wanted = [
        (request, A100.by_name[name]) for request, names in enumerate(requests) for name in names
    ]
    wanted.sort(key=lambda one: (-one[1].size, len(one[1].starts)))
    kept: list[Slot] = []
    for request, profile in wanted:
        found = [
            (
                _lying_on(candidate, item),
                -item.placement.start,
                Slot(request, candidate.occupancy.gpu, item),
            )
            for candidate in candidates
            for item in (placed(profile.name, start) for start in profile.starts)
            if not any(
                clash(item, other)
                for other in (*candidate.occupancy.immovable, *_on(candidate, kept))
            )
        ]
        kept += [min(found, key=lambda one: (one[0], one[2].gpu, one[1]))[2]] if found else []
    if len(kept) == len(wanted):
        assert choose_slots(requests, candidates) == tuple(kept)


def _on(candidate: SlotCandidate, kept: list[Slot]) -> list[Placed]:
    return [slot.placed_slice for slot in kept if slot.gpu == candidate.occupancy.gpu]


def _lying_on(candidate: SlotCandidate, item: Placed) -> tuple[int, ...]:
    kinds = (candidate.drawn_leases, candidate.leased)
    return tuple(sum(clash(item, other) for other in kind) for kind in kinds)


@settings(max_examples=settings.default.max_examples // 2)
@given(requests=requests, candidates=candidates())
def test_creating_moves_no_slot(
    requests: list[tuple[str, ...]], candidates: list[SlotCandidate]
) -> None:
    """The seats are the same whichever free slices there are: cutting one comes to an end."""
    bare = [replace(s, occupancy=replace(s.occupancy, warm=())) for s in candidates]
    assert choose_slots(requests, candidates) == choose_slots(requests, bare)
