"""An open lease in a whole lab: it goes on until somebody needs it, and its server without it."""

import json

import pytest
from tests.students import asking, served

from miglab_api.leases import LeaseView, WarningKind
from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

pytestmark = pytest.mark.long

SHAPE = "7g.40gb"  # one fills the lab
POOL = "lease_s = 5\n"
RECLAIM = "[reclaim]\nwarning_s = 20\n"
TESTING = "reclaim.every_s = 1"


def is_over(lab: TemporaryLab, lease: LeaseView) -> bool:
    return lease.guaranteed_until is not None and lab.snapshot().at > lease.guaranteed_until


def test_a_lease_is_open_then_needed_and_its_server_goes_on():
    """Busy beyond its guarantee; warned once somebody waits; then the next has it, and it none."""
    with temporary_lab(
        docker=False, shapes=[SHAPE, "cpu"], pool=POOL, more=RECLAIM, testing=TESTING
    ) as lab:
        ada = served(lab, "ada", SHAPE)
        assert ada.run_cell("print(6 * 7)").strip() == "42"
        ada.compute_on()
        lease = lab.leases()["ada"]
        wait_for(lambda: is_over(lab, lease), "the guarantee to be over")
        ada.page("/services/pool/")  # signs in
        (standing,) = json.loads(ada.page("/services/pool/api/line"))["standings"]
        assert (standing["state"], standing["until"]) == ("holding", None)
        wait_for(lambda: ada.lease()["lease"]["guaranteed_s"] < 0, "her server to be told so")
        assert ada.lease()["warning"] is None

        bo = asking(lab, "bo", SHAPE)
        wait_for(lambda: ada.lease()["warning"] is not None, "the warning in JupyterLab")
        warning = lab.leases()["ada"].warning
        assert warning is not None and warning.kind is WarningKind.NEEDED
        assert warning.reclaim_at - warning.at == pytest.approx(20, abs=0.1)
        assert f"needs room for {SHAPE}" in ada.lease()["warning"]["reason"]

        bo.wait_until_ready()
        assert lab.leases().keys() == {"bo"}
        assert lab.leases()["bo"].granted_at >= warning.reclaim_at
        ada.wait_until_ready()
        assert ada.run_cell("print(6 * 7)").strip() == "42"  # in the server that has come back
        wait_for(lambda: ada.lease()["state"] == "none", "ada's server without a GPU")
        assert lab.broken_invariants() == []
        for student in (ada, bo):
            student.leave()
            student.close()
