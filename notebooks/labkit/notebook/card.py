"""The identity card: what the lease promised and, apart from it, what was measured on."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.arguments import public
from labkit.records import Device, Place
from labkit.shown import table

OUTSIDE = "no lease: this notebook runs outside the lab"


@dataclass(frozen=True)
class Card:
    """A place to be shown in a notebook, as a table or as text."""

    place: Place

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What the card says, line by line."""
        lease, cpu = self.place.lease, self.place.cpu
        promised = self._without_lease() if self.place.lends else lease.shape or OUTSIDE
        simulated = " (simulated: there is no real slice)" if lease.simulated else ""
        quota = "no quota" if cpu.quota is None else f"quota {cpu.quota:g}"
        lines = [("Your lease", promised + simulated)]
        lines += [("Leased slice", uuid) for uuid in lease.slices]
        borrowed = self.place.borrowed
        slices = () if borrowed is None else borrowed.slices
        lines += [("Borrowed slice", f"{uuid}, borrowed for this card only") for uuid in slices]
        lines += [line for device in self.place.devices for line in device_rows(device)]
        return [
            *lines,
            ("Tier", self.place.tier.value),
            ("Link", self.place.link),
            ("CPU budget", f"{cpu.cores:g} cores (affinity {cpu.affinity}, {quota})"),
            ("Versions", ", ".join(f"{name} {text}" for name, text in self.place.versions.items())),
        ]

    def _without_lease(self) -> str:
        lends = self.place.lends
        others = f"; other shapes for on=: {', '.join(lends[1:])}" if lends[1:] else ""
        return f"no slice held; measurements borrow {lends[0]}{others}"

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.rows)

    def _repr_html_(self) -> str:
        return table(self.rows, "What you hold")


def device_rows(device: Device) -> list[tuple[str, str]]:
    """The lines about one device that figures come from."""
    if device.backend == "cpu":
        return [("Measured on", f"{device.name}, a CPU: nothing here is a statement about a GPU")]
    l2 = f", L2 {device.l2_mib:.3g} MiB" if device.l2_mib else ""
    return [("Measured on", device.label + l2), ("Its UUID", device.uuid or "unknown")]


@public
def card(place: Place) -> Card:
    """Make a place showable."""
    return Card(place)
