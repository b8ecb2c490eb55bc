"""Where am I: tiers, environments, CPU budgets, and a lease that torch cannot see."""

import pytest

from labkit.errors import NoRealSlice
from labkit.machine import device, parts
from labkit.measuring import place
from labkit.records import CpuBudget, Device, Lease, Place, Tier
from labkit.run.borrowed import shape_to_borrow

CPU = Device("cpu", "Xeon", 1024)
SLICE = Device("cuda", "A100", 4864, sms=14, uuid="MIG-a", is_slice=True)
OTHER_SLICE = Device("cuda", "A100", 4864, sms=14, uuid="MIG-b", is_slice=True)
GPU = Device("cuda", "A100", 40960, sms=108, uuid="GPU-a")
OTHER_GPU = Device("cuda", "A100", 40960, sms=108, uuid="GPU-b")


def holding(tier, *devices):
    """A server with these devices."""
    return Place(tier, devices, "", CpuBudget(2.0, 2), Lease())


@pytest.mark.parametrize(
    ("devices", "tier"),
    [
        ([], Tier.CPU),
        ([CPU], Tier.CPU),
        ([SLICE], Tier.SLICE),
        ([SLICE, SLICE], Tier.SLICE),
        ([SLICE, OTHER_SLICE], Tier.SEVERAL_SLICES),
        ([GPU], Tier.WHOLE_GPU),
        ([GPU, OTHER_GPU], Tier.SEVERAL_GPUS),
        ([GPU, CPU], Tier.CPU),
    ],
)
def test_the_tier_is_that_of_the_devices_measured_on(devices, tier):
    """One CPU rank makes it a CPU result; ranks that share a device count it once."""
    assert device.tier_of(devices) is tier


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000", 2.0),
        ("50000 100000\n", 0.5),
        ("max 100000", None),
        ("", None),
        ("1 2 3", None),
        ("-1 100000", None),
        ("１００ 0", None),
        ("9" * 400 + " x", None),
    ],
)
def test_cpu_quota_is_read_or_unknown(text, cores):
    """A quota in cores; none for max, nonsense, unicode or over-long input."""
    assert device.parse_cpu_max(text) == cores


def test_the_budget_is_the_smaller_of_quota_and_affinity(tmp_path):
    """A quota of half a core counts; older hosts keep it in two files, where -1 means none."""
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert device.cpu_budget(tmp_path).cores == 0.5
    threads = device.thread_environment(2, device.cpu_budget(tmp_path))
    assert set(threads.values()) == {"1"}
    older = tmp_path / "v1"
    (older / "cpu").mkdir(parents=True)
    (older / "cpu" / "cpu.cfs_period_us").write_text("100000")
    for quota, cores in (("150000", 1.5), ("-1", None)):
        (older / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        assert device.read_quota(older) == cores


def test_each_rank_gets_a_slice_of_its_own():
    """One UUID each, and a share of the threads; more ranks than slices are the CPU's."""
    two, budget = ("MIG-a", "MIG-b"), CpuBudget(4.0, 4)
    added = [device.child_environment(two, rank, 2, budget) for rank in range(2)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in added] == ["MIG-a", "MIG-b"]
    assert added[0]["OMP_NUM_THREADS"] == "2"
    third = device.child_environment(two, 0, 3, budget)
    assert (third["CUDA_VISIBLE_DEVICES"], third["LABKIT_CPU_RANKS"]) == ("", "1")


@pytest.mark.parametrize(
    ("devices", "environ", "opened"),
    [
        ((GPU, OTHER_GPU), {}, ("0",)),
        ((GPU, OTHER_GPU), {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}, ("GPU-b",)),
        ((GPU,), {}, ()),
        ((CPU,), {}, ()),
    ],
)
def test_a_process_that_needs_one_gpu_opens_no_other(devices, environ, opened, monkeypatch):
    """Of several whole GPUs it gets the first it may use; else its environment stays as it is."""
    monkeypatch.setitem(place._PLACE, "here", holding(device.tier_of(devices), *devices))
    assert place.one_of_several_gpus(environ) == opened


@pytest.mark.parametrize(
    ("slices", "ranks", "visible", "backend"),
    [
        ("MIG-a", 2, ["MIG-a", "MIG-a"], "gloo"),
        ("MIG-a,MIG-b", 3, ["MIG-a", "MIG-b", "MIG-a"], "gloo"),
        ("MIG-a,MIG-b", 2, ["MIG-a", "MIG-b"], "gloo"),
        ("", 2, ["", ""], "gloo"),
    ],
)
async def test_ranks_that_may_share_go_around_the_devices(
    slices, ranks, visible, backend, monkeypatch
):
    """Only where there are too few; without a GPU they stay on the CPU."""
    monkeypatch.setenv("MIGLAB_SLICES", slices)
    devices = (CPU,) if not slices else ()
    monkeypatch.setitem(place._PLACE, "here", holding(Tier.CPU, *devices))
    added, chosen_backend = await place.assign_devices(ranks, share_device=True)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in added] == visible
    assert chosen_backend == backend


@pytest.mark.parametrize("ranks", [1, 2])
async def test_ranks_on_the_cpu_take_no_device_and_borrow_none(ranks, monkeypatch):
    """Where the server holds as many slices as there are ranks, and where its course lends some.

    A single one does not inherit the slice either, and says that it was sent to the CPU.
    """
    monkeypatch.setenv("MIGLAB_SLICES", "MIG-a,MIG-b")
    monkeypatch.setitem(place._PLACE, "here", holding(Tier.CPU))
    added, backend = await place.assign_devices(ranks, on_cpu=True)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in added] == [""] * ranks
    assert {env["LABKIT_CPU_RANKS"] for env in added} == {"1"}
    assert backend == "gloo"
    lending = {"MIGLAB_BORROW": '["1g.5gb", "2x1g.5gb"]'}
    assert shape_to_borrow("cpu", lending, ranks=2) is None
    assert shape_to_borrow(None, lending, ranks=2) == "2x1g.5gb"


@pytest.mark.parametrize(("sms", "half", "share"), [(14, 6, 14 / 6), (42, 20, 2.1), (132, 66, 2.0)])
def test_half_of_a_slice_is_what_the_driver_gives(sms, half, share):
    """Six of fourteen SMs are no half: what is expected of a part follows from its real size."""
    slice_device = Device("cuda", "A100", 4864, sms=sms, capability="8.0", is_slice=True)
    slice_parts = parts.parts_of(holding(Tier.SLICE, slice_device))
    assert slice_parts.half == half
    assert slice_parts.whole / slice_parts.half == pytest.approx(share)


def test_a_real_slice_that_torch_cannot_see_stops_with_the_reason():
    """Never a fall back to the CPU: its figures would be taken for the slice's.

    A simulated slice is shown on the card, and the CPU is measured and named.
    """
    real = Lease("7", "1g.5gb", slices=("MIG-a",))
    with pytest.raises(NoRealSlice, match="built without CUDA") as caught:
        device.require_no_slice(real, "this torch was built without CUDA", {})
    assert "Nothing was measured" in str(caught.value)
    lease = device.read_lease({"MIGLAB_SLICES": "MIG-a, MIG-b", "MIGLAB_SIMULATED": "1"})
    assert (lease.slices, lease.real_slices) == (("MIG-a", "MIG-b"), ())
    device.require_no_slice(lease, "no GPU", {})


def test_the_environment_of_a_child_only_grows():
    """What the notebook has in its environment, the child has too."""
    from labkit.run.child import child_env

    notebook_env = {"HOME": "/home/jo", "PYTHONPATH": "/mine"}
    env = child_env(notebook_env, {"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert env["HOME"] == "/home/jo"
    assert env["PYTHONPATH"].startswith("/mine")
    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-a"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
