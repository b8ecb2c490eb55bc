"""What an Xid concerns, by NVIDIA's Xid catalogue; pure.

Source: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (release 610), the columns
"Resolution Bucket (Immediate Action)" and "(Investigatory Action)" for A100 and newer cards.

| scope | immediate action | investigatory action |
|---|---|---|
| `PROGRAM` | restart the application | look for the fault in the application, or none |
| `INSTANCE` | restart the application | contact support if it comes back: an engine of the slice |
| `NOTICE` | ignore | any |
| `CARD` | reset the GPU, reboot, a workflow of NVIDIA's, or none at all | any |

94, a contained memory error, ends one program and nothing else.  43 and 45 stand apart from the
catalogue's columns: its description of 43 is a fault of the application's own that leaves the GPU
healthy, and 45 is the driver's cleaning up after a program that ended, for whatever reason.

What is in no list here is the card's: a number that a later driver raises for the first time stops
new leases until somebody has looked at it, where the driver itself does not say what it needs.
"""

from enum import StrEnum


class XidScope(StrEnum):
    """What a fault concerns: a program, its slice's engines, nothing, or the card."""

    PROGRAM = "program"
    INSTANCE = "instance"
    NOTICE = "notice"
    CARD = "card"


PROGRAM_WORDS = {
    11: "it sent the GPU an invalid command",
    13: "it executed an illegal instruction or accessed memory out of bounds",
    25: "it sent the GPU an invalid command",
    31: "it accessed GPU memory that it had not allocated",
    32: "it sent the GPU a corrupted command",
    37: "it asked the GPU for what this one cannot do",
    43: "it failed on the GPU and had to end",
    69: "it sent the GPU an invalid command",
    80: "it sent the GPU a corrupted command",
    94: "a memory error of the GPU hit its data, and no other program",
}
"""What a program did or met, to follow "Xid N: "."""

COPY_ENGINES = {39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)}
VIDEO_ENGINES = {68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139}
INSTANCE_XIDS = frozenset({8, 60, *COPY_ENGINES, *VIDEO_ENGINES})
SMBPBI_TESTS = {106, 107}
RETIREMENTS = {63, 157, 160, 161}
POWER_SMOOTHING = set(range(162, 166))
NOTICES = frozenset(
    {14, 38, 44, 45, 66, 67, 92, 93, 108, 121, 137, 141, 152, 153, 154}
    | SMBPBI_TESTS
    | RETIREMENTS
    | POWER_SMOOTHING
)


def scope_of(number: int) -> XidScope:
    """What an Xid of this number concerns."""
    if number in PROGRAM_WORDS:
        return XidScope.PROGRAM
    if number in INSTANCE_XIDS:
        return XidScope.INSTANCE
    return XidScope.NOTICE if number in NOTICES else XidScope.CARD
