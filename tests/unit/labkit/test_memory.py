"""Out of memory is recognised in all its forms."""

import pytest

from labkit.errors import LabError
from labkit.machine import memory
from labkit.machine.emulate import MIG_OOM, Emulation


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
    assert memory.is_out_of_memory(kind, message)


def test_other_errors_are_not_taken_for_it():
    """A wrong shape, or another internal assertion, stays what it is."""
    assert not memory.is_out_of_memory("RuntimeError", "mat1 and mat2 shapes cannot be multiplied")
    assert not memory.is_out_of_memory("RuntimeError", "x INTERNAL ASSERT FAILED at graph.cpp")


def test_the_sentence_says_what_to_do_and_explains_migs_form():
    """The student's line first, then what to change."""
    said = memory.out_of_memory_sentence(
        {"message": MIG_OOM, "line": 3, "text": "x = torch.ones(n)"}
    )
    assert said.startswith("line 3 of the cell:   x = torch.ones(n)")
    assert "internal assertion" in said
    assert "bigger slice" in said


def test_emulation_is_read_or_refused():
    """A make-believe slice is asked for in one form only."""
    assert Emulation.from_environment({"LABKIT_EMULATE": "sms=16,memory_mib=4352"}) == Emulation(
        16, 4352
    )
    assert Emulation.from_environment({}) == Emulation()
    with pytest.raises(LabError, match="sms=16"):
        Emulation.from_environment({"LABKIT_EMULATE": "sms=many"})
