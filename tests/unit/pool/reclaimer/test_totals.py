"""How long leases worked and did nothing, as the reclaimer saw it, ends up in the ledger."""

from miglab_pool.leases.activity import Spent
from miglab_pool.reclaim.activity import HAND_OVER_S, Activity, ActivityTotals

from .test_round import MakeLab, make_lab

__all__ = ["make_lab"]


def test_it_is_handed_over_once_a_minute() -> None:
    """Each second is counted once; between two hand-overs nothing is due."""
    now = [0.0]
    tally = ActivityTotals(lambda: now[0])
    for activity in (Activity.ACTIVE, Activity.IDLE_FREE, Activity.IDLE_HOLDING, Activity.UNKNOWN):
        tally.add(1, activity, 10.0)
    assert tally.due() == []
    now[0] = HAND_OVER_S
    assert tally.due() == [Spent(1, active_s=10.0, idle_s=20.0, unknown_s=10.0)]
    now[0] = 2 * HAND_OVER_S
    assert tally.due() == []


def test_what_was_seen_is_in_the_ledger(make_lab: MakeLab) -> None:
    """One works, one does nothing, one does not report: each is known for what it is."""
    lab = make_lab()
    busy, idle, silent = (lab.run(user) for user in ("ada", "bob", "cy"))
    lab.busy.add(busy.id)
    lab.silent.add(silent.id)
    for lease in (busy, idle):
        lab.hold(lease)
    lab.live(900)
    looked = {one.lease: one for one in lab.pool.usage_facts(lab.at - 86400, lab.at + 86400).looked}
    assert looked[busy.id].active_s > 600 and looked[busy.id].idle_s == 0
    assert looked[idle.id].idle_s > 600
    assert (looked[silent.id].active_s, looked[silent.id].idle_s) == (0, 0)
