"""Where am I: tiers, environments, CPU budgets, and a lease that torch cannot see."""

import pytest

from labkit.errors import NoRealSlice
from labkit.machine import device, parts
from labkit.machine.lease import from_environment
from labkit.measuring import place
from labkit.records import CpuBudget, Device, Lease, Place, Tier

CPU = Device("cpu", "Xeon", 1024)
SLICE = Device("cuda", "A100", 4864, sms=14, uuid="MIG-a", is_slice=True)
OTHER_SLICE = Device("cuda", "A100", 4864, sms=14, uuid="MIG-b", is_slice=True)
GPU = Device("cuda", "A100", 40960, sms=108, uuid="GPU-a")
OTHER_GPU = Device("cuda", "A100", 40960, sms=108, uuid="GPU-b")


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
    """A quota of half a core counts even where many cores are visible."""
    (tmp_path / "cpu.max").write_text("50000 100000")
    assert device.cpu_budget(tmp_path).cores == 0.5
    assert device.threads_for(device.cpu_budget(tmp_path), 2) == 1


def test_cgroup_v1_is_understood(tmp_path):
    """Older hosts keep the quota in two files; -1 means none."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert device.read_quota(tmp_path) == 1.5
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert device.read_quota(tmp_path) is None


def test_each_rank_gets_a_slice_of_its_own():
    """Two ranks over two slices: one UUID each, and half the threads."""
    budget = CpuBudget(4.0, 4)
    added = [device.child_environment(("MIG-a", "MIG-b"), rank, 2, budget) for rank in range(2)]
    assert [env["CUDA_VISIBLE_DEVICES"] for env in added] == ["MIG-a", "MIG-b"]
    assert added[0]["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize(
    ("held", "environ", "opened"),
    [
        ((GPU, OTHER_GPU), {}, ("0",)),
        ((GPU, OTHER_GPU), {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}, ("GPU-b",)),
        ((GPU,), {}, ()),
        ((CPU,), {}, ()),
    ],
)
def test_a_process_that_needs_one_gpu_opens_no_other(held, environ, opened, monkeypatch):
    """Of several whole GPUs it gets the first it may use; else its environment stays as it is."""
    here = Place(device.tier_of(held), held, "", CpuBudget(2.0, 2), Lease())
    monkeypatch.setitem(place._PLACE, "here", here)
    assert place.only_one(environ) == opened


def test_more_ranks_than_devices_are_cpu_ranks_and_say_so():
    """Three ranks on one slice never share it silently."""
    added = device.child_environment(("MIG-a",), 0, 3, CpuBudget(2.0, 2))
    assert added["CUDA_VISIBLE_DEVICES"] == ""
    assert added["LABKIT_CPU_RANKS"] == "1"


@pytest.mark.parametrize(
    ("slices", "ranks", "given", "backend"),
    [
        ("MIG-a", 2, ["MIG-a", "MIG-a"], "gloo"),
        ("MIG-a,MIG-b", 3, ["MIG-a", "MIG-b", "MIG-a"], "gloo"),
        ("MIG-a,MIG-b", 2, ["MIG-a", "MIG-b"], "gloo"),
        ("", 2, ["", ""], "gloo"),
    ],
)
async def test_ranks_that_may_share_go_around_the_devices(
    slices, ranks, given, backend, monkeypatch
):
    """Only where there are too few; without a GPU they stay on the CPU."""
    monkeypatch.setenv("MIGLAB_SLICES", slices)
    held = (CPU,) if not slices else ()
    here = Place(Tier.CPU, held, "", CpuBudget(2.0, 2), Lease())
    monkeypatch.setitem(place._PLACE, "here", here)
    added, found = await place.spread(ranks, share_device=True)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in added] == given
    assert found == backend


@pytest.mark.parametrize(("sms", "half", "share"), [(14, 6, 14 / 6), (42, 20, 2.1), (132, 66, 2.0)])
def test_half_of_a_slice_is_what_the_driver_gives(sms, half, share):
    """Six of fourteen SMs are no half: what is expected of a part follows from its real size."""
    held = Device("cuda", "A100", 4864, sms=sms, capability="8.0", is_slice=True)
    made = parts.parts_of(Place(Tier.SLICE, (held,), "", CpuBudget(2.0, 2), Lease()))
    assert made.half == half
    assert made.whole / made.half == pytest.approx(share)


def test_a_real_slice_that_torch_cannot_see_stops_with_the_reason():
    """Never a fall back to the CPU: its figures would be taken for the slice's."""
    lease = Lease("7", "1g.5gb", slices=("MIG-a",))
    with pytest.raises(NoRealSlice, match="built without CUDA") as caught:
        device.require_slice(lease, False, "this torch was built without CUDA", {})
    assert "Nothing was measured" in str(caught.value)


def test_simulated_slices_ask_nothing_of_torch():
    """A simulated slice is shown on the card, and the CPU is measured and named."""
    lease = from_environment({"MIGLAB_SLICES": "MIG-a, MIG-b", "MIGLAB_SIMULATED": "1"})
    assert lease.slices == ("MIG-a", "MIG-b")
    assert lease.real_slices == ()
    device.require_slice(lease, False, "no GPU", {})


def test_the_environment_of_a_child_only_grows():
    """What the notebook has in its environment, the child has too."""
    from labkit.run.child import child_env

    own = {"HOME": "/home/jo", "PYTHONPATH": "/mine"}
    env = child_env(own, {"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert env["HOME"] == "/home/jo"
    assert env["PYTHONPATH"].startswith("/mine")
    assert env["CUDA_VISIBLE_DEVICES"] == "MIG-a"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
