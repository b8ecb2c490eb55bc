"""What each Xid concerns, against NVIDIA's catalogue, written down a second time."""

import pytest

from miglab_pool.gpu.xids import PROGRAM_WORDS, XidScope, scope_of

PROGRAM, INSTANCE, NOTICE, CARD = XidScope
CHECK_APP = "RESTART_APP, then CHECK_APP or a workflow of the application's"
SUPPORT = "RESTART_APP, then CONTACT_SUPPORT or INVESTIGATE_SW"
IGNORE = "IGNORE"
RESET = "RESET_GPU"
OTHER = "RESTART_BM, RESTART_VM, CHECK_MECHANICALS, UPDATE_SWFW, CONTACT_SUPPORT, CHECK_UVM"
WORKFLOW = "a workflow of NVIDIA's that may end in a reset"
NONE = "no action given"
UNUSED = "unused"
CATALOGUE = {
    CHECK_APP: "11 13 25 31 32 69 80",
    SUPPORT: "8 39-41 60 68 70-72 75-77 82-86 88 89 96-105 126-135 139",
    IGNORE: "14 38 44 63 66 67 92 93 106-108 121 137 141 152 153 157 160 161",
    RESET: "46 62 64 95 109 110 119 120 136 140 143 155 156 158",
    OTHER: "54 78 79 142 151 159",
    WORKFLOW: "48 74 144-150",
    NONE: "162-172",
    UNUSED: "1-7 9 10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90 91 111-118 122-125 "
    "138",
}
"""docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, release 610: Xids by action."""
APART = {37: PROGRAM, 43: PROGRAM, 45: NOTICE, 94: PROGRAM, 154: NOTICE}
"""37 asks to check the application; 43 is a program's and leaves the GPU healthy; 45 follows a
program's end; 94 is contained to one program; 154 tells of a changed recovery action."""
SCOPES = {CHECK_APP: PROGRAM, SUPPORT: INSTANCE, IGNORE: NOTICE}
SMOOTHING = range(162, 166)  # power smoothing tells of its own state


def numbers(text: str) -> list[int]:
    spans = [[int(end) for end in span.split("-")] for span in text.split()]
    return [number for span in spans for number in range(span[0], span[-1] + 1)]


TABLE = {
    number: SCOPES.get(action, CARD)
    for action, text in CATALOGUE.items()
    for number in numbers(text)
}
TABLE |= APART | dict.fromkeys(SMOOTHING, NOTICE)


def test_the_catalogue_is_whole() -> None:
    """Every Xid from 1 to 172 stands in the table exactly once."""
    listed = [number for text in CATALOGUE.values() for number in numbers(text)]
    assert sorted([*listed, *APART]) == list(range(1, 173))


@pytest.mark.parametrize("number", range(400))
def test_what_an_xid_concerns(number: int) -> None:
    """As the catalogue says; a number that it does not have is the card's until somebody looked."""
    assert scope_of(number) is TABLE.get(number, CARD)


def test_a_program_reads_what_it_did() -> None:
    """Every fault of a program has words for its student, and nothing else has."""
    assert set(PROGRAM_WORDS) == {number for number, scope in TABLE.items() if scope is PROGRAM}
