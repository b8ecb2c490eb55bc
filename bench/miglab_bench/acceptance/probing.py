"""Steps: what a grant, an offer, a page's update and a reclaim take, over HTTP, while nobody works.

The median of a few, said in the report; only a reclaim has a bound (the driver's time is nothing
here).  Whoever holds a slice is a process that only sleeps.
"""

import re
import time
from functools import partial
from statistics import median

from miglab_api.leases import LeaseState, ReleaseRequest
from miglab_api.staff import ActionRequest, ReclaimRequest
from miglab_bench.acceptance.run import Run, expect
from miglab_bench.harness.pool_operator import COURSE
from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab

SAMPLES = 20
RECLAIMS = 3
RECLAIM_BOUND_S = 5.0
LOOK_S = 0.02
USER = "student-1"
WHY = "the acceptance run"


def time_grant(run: Run) -> str:
    """Time a grant: from the request for a free slice to the lease."""
    took_s = []
    for _ in range(SAMPLES):
        started_at = time.perf_counter()
        lease = run.lab.grant(USER)
        took_s.append(time.perf_counter() - started_at)
        release = ReleaseRequest(reason=WHY, generation=lease.generation)
        run.lab.ask(f"/api/leases/{lease.id}/release", release)
    return _median_text(took_s)


def time_offer(run: Run) -> str:
    """Time the request for a course's offers, as the spawn page makes it."""
    took_s = []
    for _ in range(SAMPLES):
        started_at = time.perf_counter()
        run.lab.ask(f"/api/offers?course={COURSE}&user={USER}")
        took_s.append(time.perf_counter() - started_at)
    return _median_text(took_s)


def time_page_update(run: Run) -> str:
    """Time the update of the pool's page after a GPU is drained or undrained."""
    (gpu,) = run.lab.snapshot().gpus
    took_s = []
    for number in range(SAMPLES):
        page = run.lab.ask("/").decode()
        parts = re.findall(r'id="part-([\w-]+)" data-version="(\w+)"', page)
        expect(bool(parts), "the pool's page has no parts")
        have = ",".join(f"{name}.{version}" for name, version in parts)
        verb = "undrain" if number % 2 else "drain"
        run.lab.ask(f"/api/gpus/{gpu.uuid}/{verb}", ActionRequest(reason=WHY))
        started_at = time.perf_counter()
        changed = run.lab.ask(f"/fragment?have={have}")
        took_s.append(time.perf_counter() - started_at)
        expect(f'id="part-gpu-{gpu.index}"'.encode() in changed, "the update shows no change")
    return _median_text(took_s)


def time_reclaim(run: Run) -> str:
    """Time a reclaim: from the decision until the slice is free; the holder ends at once."""
    took_s = []
    for _ in range(RECLAIMS):
        with run.lab.held(USER) as (lease, holder):
            started_at = time.perf_counter()
            ending = ReclaimRequest(reason=WHY, warning_s=0)
            run.lab.ask(f"/api/leases/{lease.id}/reclaim", ending)
            wait_for(partial(_is_ending, run.lab), "the reclaim to begin", pause_s=LOOK_S)
            holder.kill()
            wait_for(lambda: run.is_empty, "the slice to be free", pause_s=LOOK_S)
            took_s.append(time.perf_counter() - started_at)
    longest = f"{max(took_s):.1f} s at most in {len(took_s)}"
    expect(max(took_s) <= RECLAIM_BOUND_S, longest)
    return longest


def _is_ending(lab: TemporaryLab) -> bool:
    return {lease.state for lease in lab.leases().values()} <= {LeaseState.RELEASING}


def _median_text(took_s: list[float]) -> str:
    return f"{median(took_s) * 1000:.1f} ms, the median of {len(took_s)}"
