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
    rows = _card_rows(place)
    return Showable(
        "\n".join(f"{name}: {text}" for name, text in rows), table(rows, "What you hold")
    )


def _card_rows(place: Place) -> list[tuple[str, str]]:
    """The rows of the card: a label and a text each."""
    lease, cpu = place.lease, place.cpu
    promised = lease.shape or OUTSIDE
    if place.lends:
        usual, *other_shapes = place.lends
        others_text = f"; other shapes for on=: {', '.join(other_shapes)}" if other_shapes else ""
        promised = f"no slice held; measurements borrow {usual}{others_text}"
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
    """The rows of one device: a label and a text each."""
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
    """The shipped run of a real GPU, never the student's own; None where none is shipped."""
    return store.recorded(key) if store.is_recorded(key) else None


def _row(key: str, evidence: Evidence | str) -> tuple[str, ...]:
    if isinstance(evidence, str):
        return (key, "", evidence, "", "")
    prediction = str(evidence.prediction) if evidence.prediction else "no prediction (headless)"
    if evidence.later_answers:
        later_answers = "; ".join(map(str, evidence.later_answers))
        prediction += f". Later answers, which do not count: {later_answers}"
    points = "; ".join(f"{point.label}: {point.value:.3g}" for point in evidence.points)
    verdict = _verdict(evidence)
    stop_note = f"; stopped: {evidence.stopped}" if evidence.stopped else ""
    results = f"{points} {evidence.unit}".rstrip() + stop_note
    return (f"{key} {evidence.title}", prediction, results, verdict, evidence.place)


def _verdict(evidence: Evidence) -> str:
    """The verdict beside the student's claim; before a claim, a request for one."""
    judgement = evidence.judgement
    if judgement is None:
        return "none"
    if evidence.is_open_to_claims:
        return "make your claim in the panel first"
    if judgement.expected == store.NOT_APPLICABLE:
        return store.NOT_APPLICABLE
    claim_text = f"you: {evidence.verdict_read}; data: " if evidence.verdict_read else ""
    mismatch = f"; not what the title says: {judgement.mismatch}" if judgement.mismatch else ""
    return f"{claim_text}{judgement.verdict.value} (expected here: {judgement.expected}){mismatch}"


@public
def recorded_note(*keys: str) -> str:
    """Which of these experiments can be seen as recorded on a real GPU, in a sentence each."""
    return "\n".join(map(_recorded_note, keys))


def _recorded_note(key: str) -> str:
    if not store.is_recorded(key):
        return f"{key}: no run on a GPU is recorded; what you measure here is all there is to see."
    place = store.recorded(key).place
    sentence = f"{key}: recorded on {place}, not yours. Predict, then press “Show recorded run”."
    return textwrap.fill(sentence, WIDE)


@public
def cite(*names: str) -> Showable:
    """The sources of published figures: "cern5", "cern6", "dettmers", "habr", "nvidia".

    Raises:
        WrongArgument: there is no such source.
    """
    sources = published.publications()
    for name in names:
        if name not in sources:
            raise WrongArgument(f"No source {name!r} is known; there are {', '.join(sources)}.")
    cited = [source for name in names for source in sources[name]]
    lines = "".join(
        f"<li>{escape(source.author)}: <a href='{escape(source.link)}'>{escape(source.title)}</a>"
        f"{escape(source.where)}</li>"
        for source in cited
    )
    return Showable("\n".join(map(str, cited)), f"<p>Sources:</p><ul>{lines}</ul>")
