"""What must hold after each fault, seen from outside: servers and GPUs against the pool's words."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from miglab_bench.faults.students import WORK, FaultClass

USING = frozenset({"attached", "running", "warned"})


def is_settled(lesson: FaultClass) -> bool:
    """Whether the pool is well again, and knows of every server that has ended."""
    health, leases = lesson.lab.get("/health"), lesson.lab.get("/leases")
    if health is None or leases is None or not health["ok"]:
        return False
    return all(
        lesson.servers.is_alive(lease["holder"])
        for lease in leases
        if lease["state"] in USING and lease["holder"] in known_holders(lesson, leases)
    ) and not any(lease["state"] == "releasing" for lease in leases)


def known_holders(lesson: FaultClass, leases: list[dict[str, Any]]) -> set[str]:
    """The holders in the ledger, but for one that its student has made and not yet started."""
    unstarted = {one.holder for one in lesson.students if not one.has_started}
    return {lease["holder"] for lease in leases} - unstarted


def breaches(lesson: FaultClass, *, is_restored: bool) -> list[str]:
    """What does not hold, in words.

    Args:
        lesson: the class.
        is_restored: whether the ledger is a copy from before some servers were started: it may not
            know them, but must not touch them, nor give away what they hold.

    Raises:
        CheckFailed: the pool does not say what must hold.
    """
    return [
        *_two_on_one_slice(lesson),
        *_servers_and_leases(lesson, is_restored=is_restored),
        *_slices_are_there(lesson),
        *lesson.lab.told("/invariants"),
        *_files(lesson),
        *lesson.words,
    ]


def _two_on_one_slice(lesson: FaultClass) -> Iterator[str]:
    """1 and 2, whatever the ledger says."""
    held = Counter(
        uuid for one in lesson.running().values() for uuid in (one.lease or {}).get("uuids", ())
    )
    for uuid, count in held.items():
        if count > 1:
            yield f"{count} servers run on slice {uuid}"


def _servers_and_leases(lesson: FaultClass, *, is_restored: bool) -> Iterator[str]:
    leases = {lease["holder"]: lease for lease in lesson.lab.told("/leases") if lease["holder"]}
    for holder, student in lesson.running().items():
        lease = leases.get(holder)
        if lease is None and not is_restored:
            yield f"{student.name}'s server runs, and no lease is its"
        elif lease is not None and lease["uuids"] != (student.lease or {})["uuids"]:
            yield f"{student.name}'s server has other slices than its lease"
    for student in lesson.students:
        if student.has_started and not lesson.servers.is_alive(student.holder):
            yield f"{student.name}'s server was ended by nobody"


def _slices_are_there(lesson: FaultClass) -> Iterator[str]:
    """3: nothing was destroyed under a server."""
    view = lesson.lab.machine.view()
    there = {item["uuid"] for gpu in view["gpus"] for item in gpu["slices"]}
    for student in lesson.running().values():
        for uuid in (student.lease or {})["uuids"]:
            if uuid not in there:
                yield f"slice {uuid} is gone under {student.name}'s server"


def _files(lesson: FaultClass) -> Iterator[str]:
    for student in lesson.students:
        file = student.home / "work.txt"
        if not file.exists() or file.read_text() != f"{WORK} of {student.name}":
            yield f"{student.name}'s file is lost"
