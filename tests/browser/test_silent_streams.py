"""Where a proxy holds event streams back or refuses them, every page goes on, and none lies."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.browser.people import press_stop, serious_problems, sign_in, start

from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

from .conftest import ARGS, CHROMIUM, Come

pytestmark = [pytest.mark.browser, pytest.mark.long]

PROGRESS, LIVE = re.compile(r"/progress\b"), re.compile(r"/live$")
SILENCE_MS = 40_000
SHAPES = ("7g.40gb", "3g.20gb", "1g.5gb", "cpu")


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    """One A100, of which somebody may ask for all."""
    with temporary_lab(docker=False, shapes=SHAPES) as running:
        yield running


def hold_back(route: Route) -> None:
    """The answer stays in the proxy's buffer."""


def refuse(route: Route) -> None:
    route.fulfill(status=502)


def cut(route: Route) -> None:
    route.abort()


PROXIES = [hold_back, refuse]
FIRST_ONLY = """window.EventSource = class extends EventSource {
  set onmessage(hear) {
    let isFirst = true;
    super.onmessage = event => {
      if (isFirst) hear(event);
      isFirst = false;
    };
  }
};"""


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_start_goes_on(
    page: Page, lab: TemporaryLab, classmate: Student, proxy: Callable[[Route], None]
) -> None:
    """The student waits, is served, and JupyterLab opens, although no event ever arrives."""
    page.route(PROGRESS, proxy)
    sign_in(page, lab, f"ada-{proxy.__name__.replace('_', '')}")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    expect(page.locator(".line-silence")).to_be_hidden()
    classmate.leave()
    page.wait_for_url("**/user/ada-*/lab**", wait_until="commit")
    press_stop(page, lab)
    wait_for(lambda: not lab.leases(), "the slice to be given back")


def test_a_start_goes_on_when_its_stream_falls_silent(
    page: Page, lab: TemporaryLab, classmate: Student
) -> None:
    """A proxy that passes the first event and holds back the others stops no start."""
    page.add_init_script(FIRST_ONLY)
    sign_in(page, lab, "ida")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    classmate.leave()
    page.wait_for_url("**/user/ida/lab**", wait_until="commit")
    press_stop(page, lab)
    wait_for(lambda: not lab.leases(), "the slice to be given back")


def test_a_failed_start_is_told(page: Page, lab: TemporaryLab, classmate: Student) -> None:
    """Staff take the student from the queue; the page says so without a stream."""
    page.route(PROGRESS, refuse)
    sign_in(page, lab, "fay")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    lab.ask(f"/api/tickets/{lab.tickets()['fay'].id}", {}, "DELETE")
    expect(page.get_by_role("heading", name="Your server did not start")).to_be_visible()
    expect(page.get_by_role("link", name="Choose again")).to_be_visible()


@pytest.mark.parametrize("silence", [cut, refuse])
def test_the_waiting_page_says_since_when_it_does_not_know(
    page: Page, lab: TemporaryLab, classmate: Student, silence: Callable[[Route], None]
) -> None:
    """Without an answer for 15 s it says so, and no longer once it is answered; axe agrees.

    A proxy that answers for a hub that is down is no answer.
    """
    sign_in(page, lab, "sue")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    page.route("**/hub/api/**", silence)
    notice = page.get_by_role("status").filter(has_text="The lab has not answered since")
    expect(notice).to_be_visible(timeout=SILENCE_MS)
    assert serious_problems(page) == []
    page.unroute("**/hub/api/**")
    expect(notice).to_be_hidden()
    page.get_by_role("button", name="Leave the queue").click()
    page.wait_for_url("**/hub/spawn/sue")


def test_who_is_signed_out_comes_back_to_the_same_page(
    page: Page, lab: TemporaryLab, classmate: Student
) -> None:
    """The waiting page says so, and its link leads through the sign-in back to it."""
    sign_in(page, lab, "olga")
    start(page, "7g.40gb")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    page.context.clear_cookies()
    notice = page.get_by_role("status").filter(has_text="You are signed out")
    expect(notice).to_be_visible()
    assert serious_problems(page) == []
    notice.get_by_role("link", name="Sign in, and come back here").click()
    page.get_by_label("Username").fill("olga")
    page.get_by_label("Password").fill(lab.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/hub/spawn-pending/olga**")
    expect(page.get_by_role("heading", name="1st of 1")).to_be_visible()
    page.get_by_role("button", name="Leave the queue").click()
    page.wait_for_url("**/hub/spawn/olga")


def test_the_start_page_says_both(page: Page, lab: TemporaryLab) -> None:
    """The page on which a student chooses says that it hears nothing, and that they are out."""
    sign_in(page, lab, "ann")
    page.route("**/hub/spawn", cut)
    notice = page.locator(".line-silence")
    expect(notice).to_contain_text("has not answered since", timeout=SILENCE_MS)
    assert serious_problems(page) == []
    page.unroute("**/hub/spawn")
    expect(notice).to_be_hidden()
    page.context.clear_cookies()
    expect(notice).to_contain_text("You are signed out")
    link = notice.get_by_role("link", name="Sign in, and come back here")
    expect(link).to_have_attribute("href", re.compile(r"login\?next=.*spawn"))


@pytest.mark.parametrize("proxy", PROXIES)
def test_the_pool_page_goes_on(
    page: Page, lab: TemporaryLab, come: Come, proxy: Callable[[Route], None]
) -> None:
    """It shows a slice that somebody gets, and says since when it knows nothing once it does."""
    page.route(LIVE, proxy)
    sign_in(page, lab, "watcher")
    page.goto(f"{lab.settings.public_url}services/pool/", wait_until="domcontentloaded")
    expect(page.locator(".cell", has_text="somebody")).to_have_count(0)
    come("bo")
    expect(page.locator(".cell", has_text="somebody")).to_have_count(1)
    expect(page.locator(".line-silence")).to_be_hidden()
    page.route("**/fragment**", cut)
    expect(page.locator(".line-silence")).to_contain_text("not answered since", timeout=SILENCE_MS)
    assert serious_problems(page) == []


def test_without_cookies_the_sign_in_says_why_it_leads_nowhere(
    chromium: Browser, lab: TemporaryLab, tmp_path: Path
) -> None:
    """Chromium's own switch: a sentence above the form, and on what follows the form."""
    (tmp_path / "Default").mkdir()
    blocked = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    (tmp_path / "Default/Preferences").write_text(json.dumps(blocked))
    window = chromium.browser_type.launch_persistent_context(
        tmp_path, executable_path=CHROMIUM, args=ARGS
    )
    page = window.new_page()
    page.goto(f"{lab.settings.public_url}user/eve/lab")
    notice = page.get_by_role("alert").filter(has_text="This browser keeps no cookies")
    expect(notice).to_be_visible()
    assert serious_problems(page) == []
    page.get_by_label("Username").fill("eve")
    page.get_by_label("Password").fill(lab.password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_load_state("load")
    expect(notice).to_be_visible()
    window.close()
