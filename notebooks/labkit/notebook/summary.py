"""Tables at a notebook's ends: on what it measures, what the student found, and the sources.

Reads records and evidence and makes words; measures nothing.
"""

from __future__ import annotations

import textwrap
from html import escape
from pathlib import Path

from labkit.arguments import public
from labkit.errors import EvidenceDamaged, WrongArgument
from labkit.evidence import evidence as store
from labkit.evidence import published
from labkit.evidence.evidence import Evidence
from labkit.panel.panel import WIDE
from labkit.records import Device, Place
from labkit.shown import Showable, table

OUTSIDE = "no lease: this notebook runs outside the lab"


@public
def card(place: Place) -> Showable:
    """Make a place showable, as a table or as text."""
    rows = _held(place)
    return Showable(
        "\n".join(f"{name}: {text}" for name, text in rows), table(rows, "What you hold")
    )


def _held(place: Place) -> list[tuple[str, str]]:
    """What the card says, line by line."""
    lease, cpu = place.lease, place.cpu
    promised = lease.shape or OUTSIDE
    if place.lends:
        usual, *others = place.lends
        more = f"; other shapes for on=: {', '.join(others)}" if others else ""
        promised = f"no slice held; measurements borrow {usual}{more}"
    simulated = " (simulated: there is no real slice)" if lease.simulated else ""
    quota = "no quota" if cpu.quota is None else f"quota {cpu.quota:g}"
    lines = [("Your lease", promised + simulated)]
    lines += [("Leased slice", uuid) for uuid in lease.slices]
    slices = () if place.borrowed is None else place.borrowed.slices
    lines += [("Borrowed slice", f"{uuid}, borrowed for this card only") for uuid in slices]
    lines += [line for device in place.devices for line in _device_rows(device)]
    return [
        *lines,
        ("Tier", place.tier.value),
        ("Link", place.link),
        ("CPU budget", f"{cpu.cores:g} cores (affinity {cpu.affinity}, {quota})"),
        ("Versions", ", ".join(f"{name} {text}" for name, text in place.versions.items())),
    ]


def _device_rows(device: Device) -> list[tuple[str, str]]:
    """The lines about one device that figures come from."""
    if device.backend == "cpu":
        return [("Measured on", f"{device.name}, a CPU: nothing here is a statement about a GPU")]
    l2 = f", L2 {device.l2_mib:.3g} MiB" if device.l2_mib else ""
    return [("Measured on", device.label + l2), ("Its UUID", device.uuid or "unknown")]


HEADS = ("experiment", "you predicted", "measured", "verdict", "where")


@public
def summary(*keys: str, folder: Path = store.FOLDER) -> Showable:
    """The evidence of some experiments as a table; a missing one says "measure first"."""
    rows = [_row(key, evidence_of(key, folder)) for key in keys]
    text = "\n".join(" | ".join(row) for row in (HEADS, *rows))
    return Showable(text, table(rows, "Your numbers", HEADS))


@public
def evidence_of(key: str, folder: Path = store.FOLDER) -> Evidence | str:
    """An experiment's evidence, or the sentence to show instead of a traceback."""
    try:
        return store.load(folder / f"{key}.json")
    except EvidenceDamaged as error:
        return str(error)


@public
def recorded_run(key: str) -> Evidence | None:
    """The run on a real GPU that is shipped, never the student's own; None where none is."""
    return store.recorded(key) if store.is_recorded(key) else None


def _row(key: str, found: Evidence | str) -> tuple[str, ...]:
    if isinstance(found, str):
        return (key, "", found, "", "")
    said = str(found.prediction) if found.prediction else "no prediction (headless)"
    points = "; ".join(f"{point.label}: {point.value:.3g}" for point in found.points)
    verdict = _verdict(found)
    stopped = f"; stopped: {found.stopped}" if found.stopped else ""
    measured = f"{points} {found.unit}".rstrip() + stopped
    return (f"{key} {found.title}", said, measured, verdict, found.place)


def _verdict(found: Evidence) -> str:
    """The verdict beside the student's claim; before that only the question."""
    judged = found.judgement
    if judged is None:
        return "none"
    if found.is_open_to_claims:
        return "make your claim in the panel first"
    if judged.expected == store.NOT_APPLICABLE:
        return store.NOT_APPLICABLE
    own = f"you: {found.verdict_read}; data: " if found.verdict_read else ""
    return f"{own}{judged.verdict.value} (expected here: {judged.expected})"


@public
def recorded_note(*keys: str) -> str:
    """Which of these experiments can be seen as recorded on a real GPU, in a sentence each."""
    return "\n".join(map(_note, keys))


def _note(key: str) -> str:
    if not store.is_recorded(key):
        return f"{key}: no run on a GPU is recorded; what you measure here is all there is to see."
    place = store.recorded(key).place
    said = f"{key}: recorded on {place}, not yours. Predict, then press “Show recorded run”."
    return textwrap.fill(said, WIDE)


@public
def cite(*names: str) -> Showable:
    """The sources of published figures: "cern5", "cern6", "dettmers", "habr", "nvidia".

    Raises:
        WrongArgument: there is no such source.
    """
    known = published.publications()
    for name in names:
        if name not in known:
            raise WrongArgument(f"No source {name!r} is known; there are {', '.join(known)}.")
    cited = [one for name in names for one in known[name]]
    lines = "".join(
        f"<li>{escape(one.author)}: <a href='{escape(one.link)}'>{escape(one.title)}</a>"
        f"{escape(one.where)}</li>"
        for one in cited
    )
    return Showable("\n".join(map(str, cited)), f"<p>Sources:</p><ul>{lines}</ul>")
