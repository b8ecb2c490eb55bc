"""Layout files as mig-parted's: read and written back the same; mistakes told with their line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.maximal_layouts import maximal_layouts

from miglab_api.layouts import GpuLayout
from miglab_pool.gpu.geometry import Geometry, Profile
from miglab_pool.gpu.simulated.models import model_named, models
from miglab_pool.layouts.file import LayoutError, PartitionableGpu, dump, read, resolve
from miglab_pool.layouts.page import examples

A100 = model_named("A100-40GB").geometry
A30 = Geometry(4, (Profile("1g.6gb", 14, 0, 1, 1, 14, 5952, 4, (0, 1, 2, 3)),))
GPUS = [PartitionableGpu(f"GPU-{n}", n, "NVIDIA A100", A100) for n in range(3)]
MIXED = [*GPUS[:1], PartitionableGpu("GPU-a30", 1, "NVIDIA A30", A30)]

WHOLE = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}

  # the GPUs of the practical
  practical:
    - devices: [0, 2]
      mig-enabled: true
      mig-devices:
        "4g.20gb": 1
        "1g.5gb": 3
        "2g.10gb": 0
    - devices: [1]
      mig-enabled: true
      mig-devices: {7g.40gb: 1}

  all-balanced:
    - device-filter: ["0x20B010DE", "0x20B110DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "3g.20gb": 1
"""


def partitions(
    text: str, name: str = "", gpus: list[PartitionableGpu] = GPUS
) -> dict[str, tuple[str, ...]]:
    return resolve(read(text, "practical.yaml", name), gpus)


def test_read() -> None:
    """A configuration means what it says, others' oddities aside; the only one needs no name."""
    small = ("1g.5gb", "1g.5gb", "1g.5gb", "4g.20gb")
    assert partitions(WHOLE, "practical") == {
        "GPU-0": small, "GPU-2": small, "GPU-1": ("7g.40gb",),
    }  # fmt: skip
    assert partitions(WHOLE, "all-enabled") == dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), ())
    text = "version: v1\nmig-configs: {a: [{devices: [1], mig-enabled: true, mig-devices: {}}]}"
    assert (read(text, "a.yaml").name, partitions(text)) == ("a", {"GPU-1": ()})


@pytest.mark.parametrize("model", models())
def test_the_examples_fit_each_model(model: str) -> None:
    """All small fills a GPU, Mixed sizes has more than one, and On demand has none."""
    gpu = PartitionableGpu("GPU-0", 0, model, model_named(model).geometry)
    small, mixed, none = (partitions(text, gpus=[gpu])["GPU-0"] for _, text in examples([gpu]))
    assert len(small) == max(profile.max_count for profile in gpu.geometry.profiles)
    assert 1 < len(set(mixed)) < len(mixed) and none == ()


def test_the_examples_name_each_model_of_a_mixed_lab() -> None:
    """Two models have two groups, each with its own profiles."""
    text = dict(examples(MIXED))["All small"]
    assert partitions(text, gpus=MIXED) == {"GPU-0": ("1g.5gb",) * 7, "GPU-a30": ("1g.6gb",) * 4}


PARTITIONS = sorted(
    {
        tuple(sorted(item.profile.name for item in layout))
        for layout in maximal_layouts(A100, [profile.name for profile in A100.profiles])
    }
)


@given(st.lists(st.sampled_from([(), *PARTITIONS]), min_size=3, max_size=3))
@settings(max_examples=3 * settings.default.max_examples)
def test_round_trip(three: list[tuple[str, ...]]) -> None:
    """What is written of any layouts is read as those very layouts."""
    gpus = [
        GpuLayout(gpu=f"GPU-{n}", index=n, partition=partition, conforms=True)
        for n, partition in enumerate(three)
    ]
    assert partitions(dump(gpus)) == {gpu.gpu: gpu.partition for gpu in gpus}


# -- what is wrong --------------------------------------------------------------------------------

HEAD = "version: v1\nmig-configs:\n  a:\n    - "
FEW = "{devices: all, mig-enabled: true, mig-devices: "
ON = "devices: %s\n      mig-enabled: true\n      mig-devices: {%s}"
AT = "practical.yaml:4: mig-configs.a.0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "practical.yaml:1: it is empty; begin with version: v1."),
        ("# nothing\n", "practical.yaml:1: it is empty"),
        ("just words", "practical.yaml:1: it must be a mapping with the keys version, mig-configs"),
        ("- a\n- b", "practical.yaml:1: it must be a mapping"),
        ("version: v1", "practical.yaml:1: the key mig-configs is missing."),
        ("mig-configs: {}", "practical.yaml:1: the key version is missing."),
        ("version: 1\nlayouts: {}", "practical.yaml:2: layouts: there is no such key; allo"),
        ("version: v2\nmig-configs: {}", "practical.yaml:1: version: this miglab reads version v1"),
        ("version: [1]\nmig-configs: {}", "practical.yaml:1: version: it must be one word"),
        ("version: v1\nmig-configs: {}", "practical.yaml:2: mig-configs: say which configuration "
         "is meant; there are none."),
        ("version: v1\nmig-configs: []", "practical.yaml:2: mig-configs: it must be a mapping"),
        (WHOLE, "say which configuration is meant; there are all-disabled, all-enabled, practical"),
        (HEAD[:-7] + " {}", "practical.yaml:3: mig-configs.a: it must be a list."),
        (HEAD[:-7] + " []", "practical.yaml:3: mig-configs.a: it has no group with devices"),
        (HEAD + "all", f"{AT}: it must be a mapping with the keys devices, mig-enabled, mig-dev"),
        (HEAD + "device: all", f"{AT}.device: there is no such key; allowed here: devices, mig-en"),
        (HEAD + "devices: all", f"{AT}: the key mig-enabled is missing."),
        (HEAD + "{devices: all, mig-enabled: true}", f"{AT}: the key mig-devices is missing."),
        (HEAD + FEW + "{}, device-filter: '0x20B010DE'}", f"{AT}.device-filter: this is not read"),
        (HEAD + "{devices: all, mig-enabled: false}", f"{AT}.mig-enabled: it must be true: the "
         "lab changes no MIG mode."),
        (HEAD + FEW + "7}", f"{AT}.mig-devices: it must be a mapping"),
        (HEAD + FEW + "{1g.5gb: some}}", f"{AT}.mig-devices.1g.5gb: it must be a count such as 7."),
        (HEAD + FEW + "{1g.5gb: -1}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: ¹}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: 1.5}}", "it must be a count"),
        (HEAD + FEW + "{1g.5gb: [1]}}", f"{AT}.mig-devices.1g.5gb: it must be one word or text."),
        (HEAD + FEW + "{1g.5gb: 65}}", f"{AT}.mig-devices: these are more than 64 slices"),
        (HEAD + FEW + "{1g.5gb: 1, 1g.5gb: 2}}", "it stands there already, in line 4."),
        (HEAD + ON % ("all", "4g.20gb: 1, 1g.5gb: 4"), f"{AT}: GPU 0 (NVIDIA A100): 4g.20gb + "
         "4x1g.5gb do not fit on it: beside 4g.20gb + 3x1g.5gb, which would fit, there is no place "
         "for 1g.5gb."),
        (HEAD + ON % ("all", "1c.3g.20gb: 1"), "GPU 0 (NVIDIA A100): it has no 1c.3g.20gb; it can "
         "be cut into 1g.5gb, 2g.10gb"),
        (HEAD + ON % ("[3]", ""), f"{AT}: there is no GPU 3 that can be cut; there are 0, 1, 2."),
        (HEAD + ON % ("[0, 0]", ""), f"{AT}: GPU 0 is named twice."),
        (HEAD + ON % ("all", "") + "\n    - " + ON % ("[2]", ""), "practical.yaml:7: mig-configs.a."
         "1: GPU 2 is named twice."),
        (HEAD + ON % ("none", ""), f"{AT}.devices: it must be a list."),
        (HEAD + ON % ("[]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        (HEAD + ON % ("[GPU-1]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        (HEAD + ON % ("[-1]", ""), f"{AT}.devices: it must be all, or a list of indexes"),
        ("version: v1\nmig-configs: {a/b: []}", "mig-configs.a/b: a name has letters"),
        ("version: v1\nmig-configs: {? [a] : []}", "mig-configs.?: it must be one word"),
        ("version: v1\nmig-configs: {a: &x [], b: *x}", "anchors, aliases and tags"),
        ("version: !!str v1\nmig-configs: {}", "anchors, aliases and tags"),
        ("version: v1\n---\nversion: v1", "practical.yaml:2: a layout file is one document"),
        ("[" * 5000, "practical.yaml:1: a layout file is one document"),
        ("version: v1\nmig-configs:\n\ta: 1", "practical.yaml:3: this is no YAML: found character"),
        ("version: v1\nmig-configs: {a: [", "practical.yaml:2: this is no YAML"),
        ("version: v1\na\x00", "practical.yaml:2: this is no YAML: no text."),
        ("version: 'v1", "this is no YAML"),
    ],
)  # fmt: skip
def test_wrong(text: str, says: str) -> None:
    """Whatever is wrong: file, line, key, why, and what would do."""
    with pytest.raises(LayoutError) as error:
        partitions(text)
    assert says in str(error.value)
    assert str(error.value).startswith("practical.yaml:")


@pytest.mark.parametrize(
    ("text", "name", "gpus", "says"),
    [
        (WHOLE, "other", GPUS, "no configuration 'other'; there are all-disabled, all"),
        (WHOLE, "all-enabled", [], "no GPU that can be cut now"),
        (HEAD + ON % ("all", "1g.5gb: 1"), "", MIXED,
         r"GPU 1 \(NVIDIA A30\): it has no 1g\.5gb"),
    ],
)  # fmt: skip
def test_what_does_not_fit(text: str, name: str, gpus: list[PartitionableGpu], says: str) -> None:
    """A name that is not there, no GPU to cut, a profile that one of the GPUs has not."""
    with pytest.raises(LayoutError, match=says):
        partitions(text, name, gpus)


@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    """No text does anything but be read or be refused."""
    try:
        partitions(text)
    except LayoutError as error:
        assert error.message.startswith("practical.yaml:")


@given(st.lists(st.sampled_from(sorted(set(WHOLE.replace(":", " : ").split()))), max_size=40))
@settings(max_examples=3 * settings.default.max_examples)
def test_any_words_of_a_layout(words: list[str]) -> None:
    """The words of a good file in any order are read or refused, never an error of ours."""
    for between in (" ", "\n"):
        try:
            partitions(between.join(words))
        except LayoutError as error:
            assert str(error)
