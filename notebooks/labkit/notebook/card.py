"""The identity card: what the lease promised and, apart from it, what was measured on."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.arguments import public
from labkit.records import Device, Place
from labkit.shown import Showable, table

OUTSIDE = "no lease: this notebook runs outside the lab"


@public
def card(place: Place) -> Showable:
    """Make a place showable, as a table or as text."""
    rows = _rows(place)
    return Showable(
        "\n".join(f"{name}: {text}" for name, text in rows), table(rows, "What you hold")
    )


def _rows(place: Place) -> list[tuple[str, str]]:
    """What the card says, line by line."""
    lease, cpu = place.lease, place.cpu
    promised = _without_lease(place.lends) if place.lends else lease.shape or OUTSIDE
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


def _without_lease(lends: Sequence[str]) -> str:
    others = f"; other shapes for on=: {', '.join(lends[1:])}" if lends[1:] else ""
    return f"no slice held; measurements borrow {lends[0]}{others}"


def _device_rows(device: Device) -> list[tuple[str, str]]:
    """The lines about one device that figures come from."""
    if device.backend == "cpu":
        return [("Measured on", f"{device.name}, a CPU: nothing here is a statement about a GPU")]
    l2 = f", L2 {device.l2_mib:.3g} MiB" if device.l2_mib else ""
    return [("Measured on", device.label + l2), ("Its UUID", device.uuid or "unknown")]
