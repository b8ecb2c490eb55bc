"""What the pool promised this server, and whether it still holds it.

Reads the environment the spawner set and asks the pool's student listener; imports neither torch
nor the hub.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from labkit.records import Lease

LIVE_STATES = frozenset({"granted", "attached", "running", "warned"})
ASK_S = 2.0


def from_environment(environ: Mapping[str, str]) -> Lease:
    """Read the lease from the MIGLAB_ variables that the spawner sets."""
    slices = tuple(
        part.strip() for part in environ.get("MIGLAB_SLICES", "").split(",") if part.strip()
    )
    return Lease(
        lease=environ.get("MIGLAB_LEASE") or None,
        shape=environ.get("MIGLAB_SHAPE") or None,
        course=environ.get("MIGLAB_COURSE") or None,
        slices=slices,
        simulated=environ.get("MIGLAB_SIMULATED") == "1",
        api=environ.get("MIGLAB_API") or None,
    )


def is_held(lease: Lease, environ: Mapping[str, str]) -> bool | None:
    """Ask the pool whether the lease is live.

    Returns:
        None when there is no lease or the pool does not answer: unknown is not "gone".
    """
    if not (lease.lease and lease.api):
        return None
    request = urllib.request.Request(  # noqa: S310  the spawner's own http address, not user input
        f"{lease.api.rstrip('/')}/api/lease",
        headers={"Authorization": f"Bearer {environ.get('JUPYTERHUB_API_TOKEN', '')}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:  # noqa: S310  as above
            view = json.load(answer)
    except urllib.error.HTTPError as error:
        return False if error.code in (404, 410) else None
    except (OSError, ValueError):
        return None
    return str(view.get("id")) == lease.lease and view.get("state") in LIVE_STATES


def gone_sentence(lease: Lease, kept: int) -> str:
    """What the student is told when the slice went away in mid-measurement."""
    return (
        f"The pool took back {lease.shape or 'your slice'} (lease {lease.lease}) meanwhile. "
        f"{kept} samples taken before are kept, and marked as such. "
        "Ask for a slice again on the hub's page; the saved evidence stays readable meanwhile."
    )
