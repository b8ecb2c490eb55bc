"""What the fault harness draws and says, without running a lab."""

from miglab_bench.faults.command import summary
from miglab_bench.faults.kinds import KINDS
from miglab_bench.faults.run import KindResult, order_of


def test_kinds_are_drawn_evenly_and_by_the_seed() -> None:
    """Each round has every kind once; the same seed draws the same."""
    drawn = order_of(7, tuple(KINDS), 3 * len(KINDS))
    assert all(drawn.count(kind) == 3 for kind in KINDS)
    assert drawn == order_of(7, tuple(KINDS), 3 * len(KINDS)) != order_of(8, tuple(KINDS), 33)
    assert len(order_of(7, tuple(KINDS), 5)) == 5


def test_the_summary_counts_and_says_what_did_not_hold() -> None:
    """Per kind the faults, the breaches and the recoveries; the breaches in words beside."""
    results = {
        "kill": KindResult(2, ["fault 1, kill: two on one slice"], [1.0, 3.0]),
        "upgrade": KindResult(),
    }
    found = summary(results)
    assert (found["faults"], found["breaches"]) == (2, 1)
    assert found["said"] == ["fault 1, kill: two on one slice"]
    rows = found["rows"]
    assert isinstance(rows, list)
    assert rows[1] == {"kind": "upgrade", "faults": 0, "breaches": 0, "recovery_p95_s": 0}
