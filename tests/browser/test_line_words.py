"""What the line says: each state in one table, by a clock that runs one way, and in silence."""

import itertools
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from miglab_api import WEB
from miglab_api.line import LineAct, StandingState
from miglab_api.tickets import WaitEstimate
from miglab_api.wording import estimated_wait

from .served import MARKS

pytestmark = MARKS
NOW = 1_780_300_800.0  # 8:00 UTC
ADDRESS = "http://lab.invalid/"
HOUR_S = 3600.0
RANGE = {"low_s": 660, "likely_s": 900, "high_s": 1400, "is_late": False, "is_longest": False}
LONGEST = {**RANGE, "low_s": 0, "high_s": 13_800, "is_longest": True}
BLANK: dict[str, Any] = {
    "server": "", "course": "ml", "shape": "1g.5gb", "ticket": 1, "lease": None, "position": None,
    "waiting": 0, "estimate": None, "message": "", "since": None, "until": None,
    "guaranteed_until": None, "others_wait": 0, "extension_s": 0, "acts": [],
}  # fmt: skip
TABLE = [
    (
        "waiting",
        {"position": 3, "waiting": 7, "estimate": RANGE},
        "3rd of 7 in line for 1g.5gb. About 10–25 min.",
    ),
    (
        "waiting",
        {"position": 1, "waiting": 1, "estimate": LONGEST},
        "1st of 1 in line for 1g.5gb. At most 3 h 50 min, likely sooner.",
    ),
    (
        "waiting",
        {"position": 12, "waiting": 21},
        "12th of 21 in line for 1g.5gb. The wait cannot be estimated yet.",
    ),
    (
        "waiting",
        {"position": 2, "waiting": 2, "message": "The pool is paused."},
        "2nd of 2 in line for 1g.5gb. The pool is paused.",
    ),
    (
        "waiting",
        {"message": "Your quota is used up."},
        "In line for 1g.5gb. Your quota is used up.",
    ),
    (
        "waiting",
        {},
        "It is your turn. 1g.5gb is being made for you.",
    ),
    (
        "asked",
        {"until": NOW + 271},
        "Are you still waiting for 1g.5gb? Without an answer you step aside: you keep "
        "your position, and are offered nothing until you return.",
    ),
    (
        "aside",
        {},
        "You have stepped aside. Your position for 1g.5gb is kept; you are offered "
        "nothing until you return.",
    ),
    (
        "offered",
        {"since": NOW - 29, "until": NOW + 271},
        "1g.5gb is ready for you. It goes to the next in line if you do not take it.",
    ),
    (
        "starting",
        {},
        "1g.5gb is held for your server, which starts with it.",
    ),
    (
        "holding",
        {"guaranteed_until": NOW + 8 * HOUR_S, "others_wait": 3},
        "You hold 1g.5gb. Guaranteed until 16:00, then yours as long as nobody needs it.",
    ),
    (
        "holding",
        {"guaranteed_until": NOW - 1, "others_wait": 3},
        "You hold 1g.5gb. Yours as long as nobody needs it. In line for it: 3.",
    ),
    (
        "holding",
        {"until": NOW + 8 * HOUR_S},
        "You hold 1g.5gb. Until 16:00.",
    ),
    (
        "warned",
        {"message": "Nothing runs.", "since": NOW - 29, "until": NOW + 271},
        "1g.5gb goes back to the pool soon. Nothing runs.",
    ),
    (
        "releasing",
        {},
        "1g.5gb is being released. All files are kept.",
    ),
]
SHORT = [
    ("holding", {"guaranteed_until": NOW + 8 * HOUR_S}, "1g.5gb, guaranteed until 16:00"),
    ("holding", {"guaranteed_until": NOW - 1}, "1g.5gb"),
    ("holding", {"until": NOW + 8 * HOUR_S}, "1g.5gb until 16:00"),
    (
        "holding",
        {"until": NOW + 9 * HOUR_S, "guaranteed_until": NOW + 8 * HOUR_S},
        "1g.5gb until 17:00",
    ),
]
TIMES = {
    "asked": "4:31 left to answer",
    "offered": "held for 4:31",
    "warned": "4:31 left",
}


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty page of the lab's address, which serves the component and nothing else."""
    context = await browser.new_context(locale="en-GB", timezone_id="UTC")
    page = await context.new_page()

    async def serve(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        if name.startswith("line."):
            await route.fulfill(path=WEB / name)
        else:
            body = "<!doctype html><main id=line></main>"
            await route.fulfill(body=body, content_type="text/html")

    await page.route(f"{ADDRESS}**", serve)
    await page.goto(ADDRESS)
    yield page
    await context.close()


async def said(
    page: Page, standing: dict[str, Any] | None, last_end: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What the component makes of a standing at `NOW`, and of what was held last."""
    script = """async ([standing, now, lastEnd]) =>
      (await import('/line.js')).inWords(standing ?? undefined, now, undefined, lastEnd)"""
    words: dict[str, Any] = await page.evaluate(script, [standing, NOW, last_end])
    return words


async def test_the_words_of_each_state(page: Page) -> None:
    """No state is without words, and what runs out says how long it lasts."""
    assert {state for state, _, _ in TABLE} == set(StandingState)
    for state, fields, sentence in TABLE:
        words = await said(page, {**BLANK, "state": state, **fields})
        assert words["sentence"] == sentence
        assert words["time"] == TIMES.get(state, "")
    assert (await said(page, None))["sentence"] == "You hold no slice, and wait for none."


@pytest.mark.parametrize("is_longest", [False, True])
async def test_a_wait_reads_the_same_wherever_it_is_written(page: Page, is_longest: bool) -> None:
    """The spawn page and the command line have it from Python, with units in full."""
    ranges = itertools.pairwise((0.0, 40, 200, 590, 700, 3_500, 9_000, 15_000, 80_000, 95_000))
    for low_s, high_s in ranges:
        estimate = WaitEstimate(
            low_s=low_s, likely_s=high_s, high_s=high_s, basis="", is_longest=is_longest
        )
        script = "async (wait) => (await import('/line.js')).expected(wait)"
        in_short: str = await page.evaluate(script, estimate.model_dump())
        in_full = re.sub(" h$| h(?=[, ])", " hour", re.sub(r" min\b", " minute", in_short))
        assert in_full == re.sub(r"(hour|minute)s", r"\1", estimated_wait(estimate))


@pytest.mark.parametrize(
    ("is_given_back", "detail"),
    [
        (True, "You released 1g.5gb at 08:00."),
        (False, "1g.5gb went back to the pool at 08:00: Nothing ran for 40 min."),
    ],
)
async def test_who_holds_nothing_reads_what_became_of_their_slice(
    page: Page, is_given_back: bool, detail: str
) -> None:
    """The reason is for those who did not give it back themselves."""
    end = {"shape": "1g.5gb", "ended_at": NOW, "reason": "Nothing ran for 40 min."}
    words = await said(page, None, {**end, "is_given_back": is_given_back})
    assert words["sentence"] == f"You hold no slice, and wait for none. {detail}"


async def test_each_act_has_a_label_and_each_state_a_short_form(page: Page) -> None:
    """Nothing is drawn as ``undefined``."""
    script = "async () => (await import('/line.js')).labels({ extension_s: 5400 })"
    labels = await page.evaluate(script)
    assert labels.keys() >= set(LineAct) and labels["extend"] == "Extend by 90 min"
    script = "async ([standing, now]) => (await import('/line.js')).inShort(standing, now)"
    for state, fields, _ in TABLE:
        short = await page.evaluate(script, [{**BLANK, "state": state, **fields}, NOW])
        assert short and "undefined" not in short and len(short) < 50
    for state, fields, short in SHORT:
        standing = {**BLANK, "state": state, **fields}
        assert await page.evaluate(script, [standing, NOW]) == short


async def test_time_runs_one_way(page: Page) -> None:
    """A late answer does not fill a bar again; the browser's clock plays no part."""
    script = """async () => {
      const { inWords, serviceClock } = await import('/line.js');
      let tick = 50;
      const clock = serviceClock(() => tick);
      const standing = { state: 'offered', shape: '1g.5gb', since: 1000, until: 1300 };
      const share = () => inWords(standing, clock.now()).share;
      clock.set(1100);
      const shares = [share()];
      tick += 60; shares.push(share());
      clock.set(1157); shares.push(share());  // three seconds under way
      Date.now = () => 0; shares.push(share());
      clock.set(1050); shares.push(share());  // the service's own clock was set
      return shares.map((value) => Math.round(value * 300));
    }"""
    assert await page.evaluate(script) == [200, 140, 140, 140, 250]


@pytest.mark.parametrize(
    ("since", "until", "share"),
    [
        (NOW - 90, NOW + 30, 0.25),
        (NOW + 10, NOW + 130, 1),
        (NOW - 120, NOW - 1, 0),
        (NOW, None, None),
        (None, NOW + 30, None),
    ],
)
async def test_a_bar_is_as_long_as_the_service_says(
    page: Page, since: float | None, until: float | None, share: float | None
) -> None:
    """It does not fill again when its page is loaded late; without a length there is none."""
    offer = {**BLANK, "state": "offered", "since": since, "until": until}
    assert (await said(page, offer))["share"] == share


FOLLOW = """async (answers) => {
  const { drawLine, follow } = await import('/line.js');
  const signIn = (here) => `/login?next=${here}`;
  const drawn = drawLine(document.getElementById('line'), { signIn });
  window.follower = follow({ url: '/api/line', hear: drawn.hear, tell: drawn.tell });
}"""


async def follows(page: Page, answer: dict[str, Any], *, cookies: bool = True) -> None:
    """Mount the line in a page whose clock is the test's, over an address that answers so."""
    await page.clock.install()
    await page.goto(ADDRESS)
    await page.route(f"{ADDRESS}api/line", lambda route: route.fulfill(**answer))
    if not cookies:
        await page.evaluate("Object.defineProperty(navigator, 'cookieEnabled', { value: false })")
    await page.evaluate(FOLLOW)


WAITS = {**BLANK, "state": "waiting", "position": 3, "waiting": 7}
ANSWER = {
    "status": 200,
    "body": json.dumps({"now": NOW, "standings": [WAITS]}),
    "content_type": "application/json",
}
SILENT = "The lab has not answered since"
SIGNED_OUT = "You are signed out, so this no longer changes. Sign in, and come back here."


@pytest.mark.parametrize(
    ("answer", "cookies", "sentence"),
    [
        (ANSWER, True, ""),
        ({"status": 502, "body": "Bad gateway"}, True, SILENT),
        ({"status": 200, "body": "<p>Sign in to the Wi-Fi"}, True, SILENT),
        ({"status": 401, "body": "{}"}, True, SIGNED_OUT),
        ({"status": 403, "body": "{}"}, True, SIGNED_OUT),
        (ANSWER, False, "This browser keeps no cookies for this site"),
    ],
    ids=["answers", "proxy's error", "not ours", "401", "403", "no cookies"],
)  # fmt: skip
async def test_it_never_lies_by_silence(
    page: Page, answer: dict[str, Any], cookies: bool, sentence: str
) -> None:
    """After 15 s without an answer it says so; signed out or without cookies at once."""
    await follows(page, answer, cookies=cookies)
    await page.clock.run_for(21_000)
    begins = "(text) => document.querySelector('.line-silence')?.textContent.startsWith(text)"
    await page.wait_for_function(begins, arg=sentence)
    notice = page.locator(".line-silence")
    assert await notice.is_visible() is bool(sentence)
    if "signed out" in sentence:
        assert await notice.get_by_role("link").get_attribute("href") == "/login?next=/"


STREAM = """() => {
  window.EventSource = class extends EventTarget {
    static CLOSED = 2;
    readyState = 1;
    constructor() {
      super();
      window.source = this;
      setTimeout(() => this.dispatchEvent(new Event('message')), 100);
    }
    close() { this.readyState = 2; }
  };
}"""


@pytest.mark.parametrize(("is_hidden", "rest_ms"), [(False, 28_000), (True, 18_000)])
async def test_a_rest_between_two_questions_is_no_silence(
    page: Page, is_hidden: bool, rest_ms: int
) -> None:
    """While a stream works or nobody looks it asks rarely; a stopped one leaves no stream open."""
    await page.clock.install()
    await page.goto(ADDRESS)
    await page.route(f"{ADDRESS}api/line", lambda route: route.fulfill(**ANSWER))
    await page.evaluate(STREAM)
    if is_hidden:
        await page.evaluate("Object.defineProperty(document, 'hidden', { value: true })")
    await page.evaluate(FOLLOW.replace("url:", "events: '/live', url:"))
    await page.clock.run_for(1_000)
    await page.wait_for_function("document.querySelector('.line-title')?.textContent")
    await page.clock.run_for(rest_ms)
    assert not await page.locator(".line-silence").is_visible()
    await page.route(f"{ADDRESS}api/line", lambda route: route.fulfill(status=502))
    await page.clock.run_for(31_000)
    await page.wait_for_function(
        "(text) => document.querySelector('.line-silence').textContent.startsWith(text)", arg=SILENT
    )
    await page.evaluate("window.follower.stop()")
    assert await page.evaluate("window.source.readyState") == 2


async def test_a_screen_reader_hears_no_seconds(page: Page) -> None:
    """The status changes with the state, and not with the clock."""
    offer = {**BLANK, "state": "offered", "since": NOW, "until": NOW + 300}
    await follows(page, {**ANSWER, "body": json.dumps({"now": NOW, "standings": [offer]})})
    status = page.locator("#line > .unseen[role=status]")
    await page.clock.run_for(1_000)
    await page.wait_for_function("document.querySelector('.line-time')?.textContent")
    before, time = await status.inner_text(), await page.locator(".line-time").inner_text()
    await page.clock.run_for(3_000)
    differs = "(time) => document.querySelector('.line-time').textContent !== time"
    await page.wait_for_function(differs, arg=time)
    assert await status.inner_text() == before
