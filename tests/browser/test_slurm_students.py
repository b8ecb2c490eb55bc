"""Two students and their instructor in a real browser, on slices that are jobs of a real Slurm."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import (
    kept_busy,
    serious_problems,
    sign_in,
    sign_in_as_staff,
    start,
    wait_for_kernel,
)

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab
from miglab_slurm_bench.cluster import SlurmCluster, missing
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

pytestmark = [pytest.mark.browser, pytest.mark.slurm, pytest.mark.long]
ROOT = Path(__file__).parents[2]
NOTEBOOK = "lab/tree/notebooks/1_your_slice.ipynb"
LONG_MS = 300_000
HELD = re.compile(r"^1g\.5gb.* · .*(GiB|memory)")
RECLAIM = """
[reclaim]
idle_wanted_s = 5
warning_s = 60
"""
TESTING = (
    "reclaim = {every_s = 1, report_s = 2, stale_s = 10, "
    "holding_factor = 1, unused_s = 15, cpu_busy_pct = 50}"
)


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """One slice on each of two nodes, one of which is drained: two students share one."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    notebooks = tmp_path_factory.mktemp("notebooks")
    maker = [sys.executable, "notebooks/make_notebooks.py", "notebooks/src", str(notebooks)]
    subprocess.run(maker, cwd=ROOT, check=True, capture_output=True)
    with slurm_lab(
        gres={"1g.5gb": 1},
        slurm="offer_s = 600",
        notebooks=str(notebooks),
        tables=RECLAIM,
        testing=TESTING,
    ) as lab:
        node = f"nodename={lab.cluster.nodes[1]}"
        lab.cluster.command("scontrol", "update", node, "state=drain", "reason=broken fan")
        yield lab


def test_two_students_share_a_slice(new_page: Callable[[], Page], on_slurm: SlurmLab) -> None:
    """Choose, notebook 1, wait, start on CPU, idle, warned, taken back; the other has it then."""
    lab = on_slurm.lab
    ada, bo, staff = new_page(), new_page(), new_page()
    sign_in(ada, lab, "ada")
    expect(ada.get_by_text("1 of 2 free")).to_be_visible()
    start(ada, "1g.5gb")
    ada.wait_for_url("**/user/ada/lab**", timeout=LONG_MS)
    with kept_busy(lab, "ada") as works:
        two_share(ada, bo, staff, works, on_slurm)


def two_share(ada: Page, bo: Page, staff: Page, works: Student, on_slurm: SlurmLab) -> None:
    """Ada computes beside her notebook, bo waits, and their instructor looks on."""
    lab, cluster = on_slurm.lab, on_slurm.cluster
    ada.goto(f"{lab.settings.public_url}user/ada/{NOTEBOOK}")
    run_all(ada)
    expect(ada.locator(".miglab-status")).to_contain_text("1g.5gb")

    sign_in(bo, lab, "bo")
    start(bo, "1g.5gb")
    expect(bo.get_by_role("heading", name="1st of 1")).to_be_visible()
    assert serious_problems(bo, ".miglab-waiting") == []
    bo.get_by_role("button", name="Start on CPU now").click()
    bo.wait_for_url("**/user/bo/lab**", timeout=LONG_MS)
    expect(bo.locator(".miglab-status")).to_contain_text("1st in line", timeout=LONG_MS)
    instructor_looks(staff, lab, cluster)

    works.compute_no_more()
    wait_for(lambda: works.lease()["warning"] is not None, "ada to be warned")
    expect(ada.get_by_text("Nothing has happened").first).to_be_visible()
    card = bo.get_by_role("region", name="1g.5gb is ready for you")
    expect(card).to_be_visible(timeout=LONG_MS)
    card.get_by_role("button", name="Save all and restart with it").click()
    # His job runs before he moves to it: only his new server has the slice as its own.
    expect(bo.locator(".miglab-status")).to_have_text(HELD, timeout=LONG_MS)
    wait_for(lambda: holder(cluster) == "bo", "bo's server on the slice")
    ada.goto(f"{lab.settings.public_url}hub/spawn")
    expect(ada.get_by_text("its slice was reclaimed").first).to_be_visible()
    instructor_ends_it(staff, bo, lab)


def run_all(page: Page) -> None:
    """Run the open notebook from top to bottom, and see what it prints."""
    page.get_by_role("heading", name="Your slice").click(timeout=LONG_MS)
    wait_for_kernel(page)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()
    expect(page.locator(".jp-OutputArea-output").first).to_be_visible(timeout=LONG_MS)


def instructor_looks(page: Page, lab: TemporaryLab, cluster: SlurmCluster) -> None:
    """The page of the cluster: who holds, who waits, a drained node, a reservation; axe."""
    reservation = ("reservationname=exam", "starttime=now+2hours", "duration=60", "users=root")
    node = f"nodes={cluster.nodes[0]}"
    cluster.command("scontrol", "create", "reservation", *reservation, node)
    sign_in_as_staff(page, lab, "instructor")
    for text in ("broken fan", "scontrol delete reservationname=exam"):
        expect(page.get_by_text(text)).to_be_visible()
    expect(page.get_by_role("row", name="ada everyone 1g.5gb")).to_be_visible()
    expect(page.get_by_role("row", name="bo everyone 1g.5gb 1")).to_be_visible()
    assert serious_problems(page) == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    cluster.command("scontrol", "delete", "reservationname=exam")


def instructor_ends_it(page: Page, bo: Page, lab: TemporaryLab) -> None:
    """By keyboard, with a reason, which the student reads."""
    button = page.get_by_role("button", name="End the server of bo")
    expect(button).to_be_visible(timeout=LONG_MS)
    button.press("Enter")
    assert serious_problems(page, "dialog") == []
    page.get_by_label("Reason (the student reads it)").fill("The room closes.")
    page.get_by_role("button", name="End the server", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("The server of bo is being stopped.")
    expect(button).not_to_be_visible(timeout=LONG_MS)
    bo.goto(f"{lab.settings.public_url}hub/spawn")
    expect(bo.get_by_text("The room closes.").first).to_be_visible()


def holder(cluster: SlurmCluster) -> str:
    """Whose job runs in the partition of slices; empty for nobody's."""
    listing = cluster.command("squeue", "-h", "-t", "RUNNING", "-p", "lab", "-o", "%k")
    return listing.partition('"user":"')[2].partition('"')[0]
