"""What must hold after each fault, seen from outside: servers and GPUs against the pool's words."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from miglab_bench.faults.engine import SeenServer
from miglab_bench.faults.students import FaultClass

USING = frozenset({"attached", "running", "warned"})


def unsettled(lesson: FaultClass) -> str:
    """What the lab has still to do until it is well again, in words; empty if it is.

    A server must be reached, unless the hub has given its start up or lost its database since.
    """
    health, leases = lesson.lab.get("/health"), lesson.lab.get("/leases")
    if health is None or leases is None or not lesson.lab.answers():
        return "to answer"
    if not health["ok"]:
        return f"health: {health}"
    there = lesson.servers.all()
    for lease in leases:
        if lease["state"] == "releasing":
            return f"to release lease {lease['id']}"
        if lease["state"] in USING and lease["holder"] not in there:
            return f"to notice the end of {lease['user']}'s server"
    return _unsettled_servers(lesson, there)


def _unsettled_servers(lesson: FaultClass, there: Mapping[str, SeenServer]) -> str:
    lesson.look()
    lesson.lab.hub_log.read()
    if forgotten := lesson.servers.forgotten(lesson.lab.hub_log.to_start):
        return f"to end {min(forgotten)}, which the engine has forgotten"
    for student in lesson.students:
        server = student.server
        seen = there.get(server.holder) if server is not None else None
        if seen is not None and seen.is_running and not student.is_reached():
            return f"to reach {student.name}'s server"
    return ""


def breaches(lesson: FaultClass, *, is_ledger_older: bool) -> list[str]:
    """What does not hold, in words.

    Args:
        lesson: the class.
        is_ledger_older: whether the ledger is from before some servers were started: it may not
            know them, but must not touch them, nor give away what they hold.
    """
    before = lesson.servers.all()
    leases = {lease["holder"]: lease for lease in lesson.lab.must_get("/leases")}
    view = lesson.lab.machine.view()
    broken = lesson.lab.must_get("/invariants")
    after = lesson.servers.all()
    # What ran before the ledger was read and runs after it ran when it was read.
    running = {
        holder: server
        for holder, server in after.items()
        if server.is_running and holder in before and before[holder].is_running
    }
    slices = {item["uuid"] for gpu in view["gpus"] for item in gpu["slices"]}
    return [
        *_two_on_one_slice(running),
        *_of_servers(running, leases, slices, is_ledger_older=is_ledger_older),
        *broken,
        *(f"{user}'s server was ended by nobody" for user in lesson.ends_unannounced()),
        *(
            f"of {student.name}'s notes {len(lost)} are lost"
            for student in lesson.students
            if (lost := set(student.written) - set(lesson.servers.notes(student.name)))
        ),
        *lesson.without_words,
    ]


def _two_on_one_slice(running: Mapping[str, SeenServer]) -> Iterator[str]:
    """1 and 2, whatever the ledger says."""
    held = Counter(uuid for server in running.values() for uuid in server.uuids)
    for uuid, count in held.items():
        if count > 1:
            yield f"{count} servers run on slice {uuid}"


def _of_servers(
    running: Mapping[str, SeenServer],
    leases: Mapping[str, dict[str, Any]],
    slices: set[str],
    *,
    is_ledger_older: bool,
) -> Iterator[str]:
    """3 and 4: each has its lease, and nothing was destroyed under it."""
    for holder, server in running.items():
        lease = leases.get(holder)
        if lease is None and server.uuids and not is_ledger_older:
            yield f"{server.user}'s server runs, and no lease is its"
        elif lease is not None and tuple(lease["uuids"]) != server.uuids:
            yield f"{server.user}'s server has other slices than its lease"
        for uuid in set(server.uuids) - slices:
            yield f"slice {uuid} is gone under {server.user}'s server"
