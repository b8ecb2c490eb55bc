"""Out of memory is recognised in all its forms, and what a step holds is counted by kind."""

import pytest

from labkit.errors import LabError
from labkit.machine.parts import MIG_OOM, Emulation
from labkit.machine.profiling import count_step
from labkit.run import source


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        (
            "RuntimeError",
            "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1131",
        ),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        ),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
        ("MemoryError", ""),
        ("RuntimeError", MIG_OOM),
    ],
)
def test_every_form_of_out_of_memory_is_recognised(kind, message):
    """Torch's clean error, MIG's broken one, cuBLAS, and the CPU's."""
    assert source.is_out_of_memory(kind, message)


def test_other_errors_are_not_taken_for_it():
    """A wrong shape, or another internal assertion, stays what it is."""
    assert not source.is_out_of_memory("RuntimeError", "mat1 and mat2 shapes cannot be multiplied")
    assert not source.is_out_of_memory("RuntimeError", "x INTERNAL ASSERT FAILED at graph.cpp")


def test_the_sentence_says_what_to_do_and_explains_migs_form():
    """The student's line first, then what to change."""
    sentence = source.out_of_memory_sentence(
        {"message": MIG_OOM, "line": 3, "text": "x = torch.ones(n)"}
    )
    assert sentence.startswith("line 3 of the cell:   x = torch.ones(n)")
    assert "internal assertion" in sentence
    assert "bigger slice" in sentence


def test_emulation_is_read_or_refused():
    """A make-believe slice is asked for in one form only."""
    assert Emulation.from_environment({"LABKIT_EMULATE": "sms=16,memory_mib=4352"}) == Emulation(
        16, 4352
    )
    assert Emulation.from_environment({}) == Emulation()
    with pytest.raises(LabError, match="sms=16"):
        Emulation.from_environment({"LABKIT_EMULATE": "sms=many"})


def test_a_step_is_counted_by_kind():
    """A temporary is none of the others, and the peak is less than all maxima together."""
    torch = pytest.importorskip("torch")

    network = torch.nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9)

    def step():
        network(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    bytes_by_kind = {
        kind: mib * 2**20 for kind, mib in count_step(step, network, optimizer).items()
    }
    assert (
        bytes_by_kind["parameters"],
        bytes_by_kind["gradients"],
        bytes_by_kind["optimiser"],
    ) == (128, 128, 128)
    assert bytes_by_kind["activations"] == 4 * (2 * 8 + 2 * 4)
    assert bytes_by_kind["peak"] <= sum(
        bytes_by_kind[kind]
        for kind in ("parameters", "gradients", "optimiser", "activations", "temporaries")
    )
    assert bytes_by_kind["peak"] == sum(
        size for name, size in bytes_by_kind.items() if name.startswith("at the peak")
    )
