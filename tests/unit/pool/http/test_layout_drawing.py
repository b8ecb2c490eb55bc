"""A GPU before and after a layout: no gap, each run with its fate, the sum in words."""

from miglab_api.layouts import GpuLayout, LayoutDrain, PlacedSlice
from miglab_pool.layouts.page import GpuChange, changes

from .fakes import slice_view
from .test_drawing import gpu

NOW = 1000.0


def drain(slice_id: int, **more: object) -> LayoutDrain:
    values = {"profile": "2g.10gb", "start": 0, "size": 2, "user": "bob", "course": "ml"}
    return LayoutDrain(slice_id=slice_id, lease=slice_id, **(values | more))


def place(profile: str, start: int, size: int) -> PlacedSlice:
    return PlacedSlice(profile=profile, start=start, size=size)


def change(**more: object) -> GpuChange:
    """The one GPU: bob on a 2g.10gb, a free 1g.5gb, one that is not the lab's."""
    view = gpu(
        slice_view(1, 0, "bob", size=2, profile="2g.10gb"),
        slice_view(2, 2),
        slice_view(3, 6, state="foreign"),
    )
    values = {"layout": "small", "conforms": False}
    (found,) = changes([GpuLayout(gpu="GPU-0", index=0, **(values | more))], [view], NOW)
    return found


def test_before_and_after() -> None:
    """What is held is waited for, what is free and not wanted goes, what is wanted is new."""
    found = change(
        drains=[drain(1, ends_at=NOW + 600)],
        removes=[place("1g.5gb", 2, 1)],
        makes=[place("1g.5gb", 0, 1), place("1g.5gb", 1, 1)],
        ready_at=NOW + 600,
    )
    assert [(p.start, p.size, p.fate) for p in found.now] == [
        (0, 2, "held"),
        (2, 1, "goes"),
        (3, 3, "gap"),
        (6, 1, "other"),
        (7, 1, "gap"),
    ]
    assert [(p.start, p.size, p.fate) for p in found.then] == [
        (0, 1, "new"),
        (1, 1, "new"),
        (2, 6, "gap"),
    ]
    assert found.says == (
        "2 to create, 1 to remove, waiting for 1 in use, done in 10 minutes at the latest"
    )
    assert found.who == ("bob (ml) holds 2g.10gb: the lease ends in 10 minutes",)


def test_who_must_not_be_named_is_somebody() -> None:
    """And where a lease has no end, it is said that the time is not known."""
    found = change(drains=[drain(1, user=None, course="")])
    assert found.who == ("somebody holds 2g.10gb: the lease has no end",)
    assert "has no end" in found.says
    assert found.now[0].word == "somebody, then removed"


def test_as_it_is_to_be_and_without_a_layout() -> None:
    """Both are said; where there is no layout there is nothing it is to become."""
    keeps = [place("2g.10gb", 0, 2)]
    conforming = change(conforms=True, keeps=keeps)
    assert conforming.says == "Conforms"
    assert (conforming.then[0].fate, conforming.then[0].what) == ("stays", "2g.10gb")
    free = change(layout="")
    assert (free.then, free.says) == ((), "No layout: partitioned on demand")


def test_a_gpu_that_is_gone_is_left_out() -> None:
    """A layout may name one that is not there any more."""
    assert changes([GpuLayout(gpu="GPU-9", index=9, conforms=False)], [gpu()], NOW) == []
