"""How long a wait is likely to last.  Pure: queue, GPUs and history in, ranges out.

The queue is simulated forward many times with the pool's own decision.  In each run every live
lease ends at a time drawn from how long leases lasted lately, given how long it has lasted
already, but not after its last possible end; who is granted slices in the run holds them for as
long as some lease did; and others come as often as they came lately, with the chance of going
ahead that fair share and a small shape give them.  What is reserved for later is kept in every run,
and a share of it, drawn anew for each, is taken up.  One run of forty lies below the range that is
shown, and one above.

Servers keep slices for hours and measurements for seconds, so each kind has a history of its own.
Where a kind that holds slices or waits has none, only the ends that are set are known: the range is
then from now to the wait that results if everybody stays until the last possible end, and what is
borrowed is likely to go back after a usual measurement.  With neither there is no estimate.
"""

import random
from collections.abc import Mapping, Sequence

from miglab_api.tickets import WaitEstimate
from miglab_pool.decisions.wait_simulation.inputs import Scene
from miglab_pool.decisions.wait_simulation.samples import Drawn, Set
from miglab_pool.decisions.wait_simulation.simulation import HORIZON_S, Future
from miglab_pool.model.queue import Waiting
from miglab_pool.rules.queue_order import in_order

RUNS = 60
LOW, HIGH = 0.025, 0.975  # wider than is promised: the model leaves something out


def simulate(scene: Scene, dice: random.Random, runs: int = RUNS) -> dict[int, WaitEstimate]:
    """How long everybody will wait.

    Args:
        scene: the moment.
        dice: seeded by the caller.
        runs: how many futures are drawn.

    Returns:
        The estimate of each ticket and each number of ``asking``; none for whom nothing is known.
    """
    if scene.is_known:
        passing = _who_may_pass(scene)
        waits = [Future(scene, Drawn(scene, dice), passing).waits() for _ in range(runs)]
        return {one: _range(scene, one, waits) for one in _watched(scene)}
    return _by_ends(scene)


def _by_ends(scene: Scene) -> dict[int, WaitEstimate]:
    """From now to the last ends that are set; no measurement waits longer than it may."""
    soon = Future(scene, Set(scene, uses_extensions=False)).waits()
    late = Future(scene, Set(scene, uses_extensions=True)).waits()
    found = {}
    for one in _watched(scene):
        high_s = late.get(one)
        if _is_borrow(scene, one):
            most_s = _most_s(scene, one)
            high_s = min(most_s, late.get(one, most_s))
        if one in soon and high_s is not None:
            said = WaitEstimate(low_s=0.0, likely_s=soon[one], high_s=high_s, basis=_BASIS_ENDS)
            found[one] = said
    return found


_BASIS_ENDS = (
    "if everyone keeps their slice until their time is up; "
    "how long leases really last is not known yet"
)


def _watched(scene: Scene) -> list[int]:
    return [*(one.ticket for one in scene.queued), *scene.asking]


def _queued(scene: Scene, one: int) -> Waiting | None:
    return next((each for each in scene.queued if each.ticket == one), None)


def _is_borrow(scene: Scene, one: int) -> bool:
    asked = _queued(scene, one)
    return asked is not None and asked.is_borrow


def _most_s(scene: Scene, one: int) -> float:
    """How far its wait is looked at: to the horizon, or to when a measurement is refused."""
    asked = _queued(scene, one)
    if asked is None or not asked.is_borrow:
        return HORIZON_S
    return max(0.0, asked.since + scene.longest_wait_s - scene.usage.now)


def _range(scene: Scene, one: int, runs: Sequence[Mapping[int, float]]) -> WaitEstimate:
    most_s = _most_s(scene, one)
    waits = sorted(min(run.get(one, most_s), most_s) for run in runs)
    return WaitEstimate(
        low_s=_at(waits, LOW),
        likely_s=_at(waits, 0.5),
        high_s=_at(waits, HIGH),
        basis=_basis(scene),
    )


def _basis(scene: Scene) -> str:
    servers, borrowed = len(scene.lately.lasted_s), len(scene.lately.borrowed_s)
    known = [f"{servers} leases"] if servers else []
    known += [f"{borrowed} measurements on borrowed slices"] if borrowed else []
    return f"from how long the last {' and '.join(known)} lasted"


def _at(waits: Sequence[float], share: float) -> float:
    """A quantile, between the two nearest."""
    rank = share * (len(waits) - 1)
    below = int(rank)
    above = min(below + 1, len(waits) - 1)
    return waits[below] + (waits[above] - waits[below]) * (rank - below)


def _who_may_pass(scene: Scene) -> frozenset[tuple[str, str]]:
    """The courses and users of those newcomers who would go ahead of somebody who waits now."""
    known = {(one.course, one.user): one for one in scene.lately.comers}
    return frozenset(key for key, one in known.items() if _may_pass(one, scene))


def _may_pass(comer: Waiting, scene: Scene) -> bool:
    """Whether somebody who came now would not be the last in the queue."""
    queued = in_order(
        [*scene.queued, comer._replace(ticket=-1, since=scene.usage.now)], scene.usage
    )
    return bool(scene.queued) and queued[-1].ticket != -1
