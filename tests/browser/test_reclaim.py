"""An unused slice in a real JupyterLab: warned, kept or taken back, and what is seen afterwards.

The lab is the whole one with its times shortened by settings; its students' servers report every
two seconds.  A slice is idle from the moment that the test says so, however long its page takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Response, expect
from tests.browser.people import card, kept_busy, picture, serious_problems, sign_in, start, status
from tests.students import signed_in

from miglab_api.leases import LeaseView, LeaseWarning
from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

POOL = """
lease_s = 3600
"""
RECLAIM = """
[reclaim]
idle_s = 15
idle_wanted_s = 15
warning_s = 45
still_here_s = 20
"""
TESTING = "reclaim = {every_s = 1, report_s = 2, stale_s = 10, unused_s = 5, cpu_busy_pct = 100}"
NOTICED_S = 8.0  # the end of a warning that moves by less than the reclaimer's JUMP_S stays
GONE_MS = 240_000  # JupyterLab asks a server that is silent ever more seldom
TYPED = "this was never saved by hand"
BEGAN = "A beginning."


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """A lab where unused slices go back within a minute."""
    with temporary_lab(docker=False, pool=POOL, more=RECLAIM, testing=TESTING) as running:
        yield running


@pytest.fixture
def leaves(lab: TemporaryLab) -> Iterator[list[str]]:
    """Whose names are put here have no server at the end of the test."""
    names: list[str] = []
    yield names
    for name in names:
        student = signed_in(lab, name)
        student.stop()
        student.close()
    wait_for(lambda: not lab.leases(), "the slices to be given back")


@contextmanager
def at_work(page: Page, lab: TemporaryLab, name: str) -> Iterator[Path]:
    """Sign in, get a slice, and open a text that lies in the home; after the block all is idle."""
    essay: Path = lab.settings.homes / folder_name(name) / "essay.txt"
    essay.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    essay.write_text(f"{BEGAN}\n")
    sign_in(page, lab, name)
    start(page, "1g.5gb")
    with kept_busy(lab, name) as works:
        page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
        page.goto(f"{lab.settings.public_url}user/{name}/lab/tree/essay.txt")
        expect(text(page)).to_contain_text(BEGAN)
        yield essay
        works.compute_no_more()


def text(page: Page) -> Locator:
    """The text that is open."""
    return page.locator(".cm-content")


def question(page: Page) -> Locator:
    """What JupyterLab asks when its server does not answer."""
    return page.get_by_role("dialog", name="Server unavailable or unreachable")


def is_gone(answer: Response) -> bool:
    """Whether the hub says that there is no server to ask."""
    return "/api/" in answer.url and answer.status in {424, 503}


def warned(lab: TemporaryLab, name: str) -> LeaseView:
    """The lease, once it is warned."""
    wait_for(lambda: lab.leases()[name].warning is not None, f"{name} to be warned")
    return lab.leases()[name]


def warning_of(lease: LeaseView) -> LeaseWarning:
    assert lease.warning is not None
    return lease.warning


def is_answered(lab: TemporaryLab, before: LeaseView) -> bool:
    """Whether the lease is there and that warning is over; another may have begun meanwhile."""
    lease = lab.leases()[before.user]
    is_over = lease.warning is None or lease.warning.at > warning_of(before).at
    return lease.id == before.id and is_over


def is_put_off(lab: TemporaryLab, before: LeaseView) -> bool:
    """Whether the same warning ends later than it was to end before."""
    warning, was = lab.leases()[before.user].warning, warning_of(before)
    return warning is not None and warning.at == was.at and warning.reclaim_at > was.reclaim_at


def test_from_idle_to_reclaimed_and_back_with_one_click(
    page: Page, lab: TemporaryLab, leaves: list[str]
):
    """Warned with the reason; unsaved text is saved; the hub says what happened; one click back."""
    with at_work(page, lab, "ada") as essay:
        first = lab.leases()["ada"]
        text(page).click()
        page.keyboard.press("Control+End")
        page.keyboard.type(TYPED)
    expect(card(page)).to_contain_text("Nothing has happened on it for")
    assert TYPED not in essay.read_text()
    expect(card(page)).to_contain_text("You will lose the variables")
    status(page).click()
    picture(page, "jupyterlab-warning")
    for part in (".miglab-card", ".miglab-panel", ".miglab-status"):
        assert serious_problems(page, part) == []
    with page.expect_response(is_gone, timeout=GONE_MS):
        wait_for(lambda: "ada" not in lab.leases(), "the slice to be taken back")
    assert TYPED in essay.read_text()

    expect(card(page)).to_contain_text("Your GPU slice was reclaimed")
    expect(question(page)).to_be_hidden()
    card(page).get_by_role("button", name="Go to the hub page").click()
    news = page.locator("#miglab-news")
    expect(news).to_contain_text("Your server was stopped, because its slice was reclaimed")
    expect(news).to_contain_text("Nothing has happened on it for")
    expect(news).to_contain_text("Your files are kept")
    assert serious_problems(page) == []
    other = page.context.new_page()
    other.goto(f"{lab.settings.public_url}user/ada/lab")
    expect(other.get_by_role("status").first).to_have_text(news.inner_text())
    other.close()

    page.get_by_role("button", name="Start again").click()
    leaves.append("ada")
    with kept_busy(lab, "ada"):
        again = lab.leases()["ada"]
        assert (again.shape, again.course) == (first.shape, first.course) and again.id != first.id
        page.wait_for_url("**/user/ada/lab**", wait_until="commit")
        page.goto(f"{lab.settings.public_url}user/ada/lab/tree/essay.txt")
        expect(text(page)).to_contain_text(TYPED)


def test_a_pool_that_restarts_in_mid_warning_takes_nothing_unanswered(
    page: Page, lab: TemporaryLab, leaves: list[str]
):
    """The card stays while the pool is away; the warning begins anew, and can be answered."""
    leaves.append("cy")
    with at_work(page, lab, "cy"):
        pass
    before = warned(lab, "cy")
    expect(card(page)).to_contain_text("goes back to the pool soon")
    wait_for(lambda: now(lab) > warning_of(before).at + NOTICED_S, "a warning well under way")
    lab.kill("pool")
    wait_for(lambda: is_put_off(lab, before), "the warning to begin anew")
    expect(card(page)).to_contain_text("goes back to the pool soon")
    card(page).get_by_role("button", name="I am still here").click()
    expect(card(page)).to_be_hidden()
    assert is_answered(lab, before)
    wait_for(lambda: now(lab) > warning_of(before).reclaim_at, "the first warning's end")
    assert lab.leases()["cy"].id == before.id


def now(lab: TemporaryLab) -> float:
    """The pool's time."""
    return lab.snapshot().at
