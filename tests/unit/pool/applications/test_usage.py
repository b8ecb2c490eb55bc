"""Usage over HTTP and its page: which days and courses, plots, and sheets that nothing runs."""

import csv
import datetime as dt
import html
import io
import re
import unicodedata
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import because
from tests.unit.pool.conftest import World

from miglab_api.usage import BOM, FIGURES, FORMULA, GroupBy, UsageRow, escape_formula, to_csv
from miglab_pool.pool import Pool
from miglab_pool.refused import Refused
from miglab_pool.usage.page import (
    FLOOR,
    OTHERS,
    TOP,
    Columns,
    bars,
    hours_in_words,
    percent,
    scale,
    weeks,
)
from miglab_pool.usage.report import (
    LONGEST_DAYS,
    BadPeriod,
    Event,
    Facts,
    ReportedUse,
    Requester,
    build_report,
    days,
    midnight,
    period_of,
    sum_facts,
)

from .conftest import as_

UTC = ZoneInfo("UTC")
TODAY = dt.date(2026, 11, 21)
TOMORROW = dt.date(2026, 11, 22)
DAY = dt.date(2026, 11, 2)
AT = midnight(DAY, UTC)
QUERY = "since=2026-11-02&until=2026-11-08"


def facts_of(*people: Requester) -> Facts:
    """An hour of each, after a wait of a minute; the first was refused something before."""
    leases = tuple(
        ReportedUse(number, person, 1, AT + 60, 60.0, AT + 3600, AT + 7200)
        for number, person in enumerate(people, 1)
    )
    return Facts(lease_uses=leases, refusals=(Event(people[0], AT),))


@pytest.fixture
def two_courses(world: World) -> None:
    """An hour of alice in ml, after a refusal; half an hour of bob on four in vision."""
    for lease in world.pool.leases.live():
        world.end(lease)
    world.pass_time(AT + 60 - world.at)
    with pytest.raises(Refused, check=because("bad-shape")):
        world.ask("alice", "9g.90gb", course="ml")
    for user, course, shape, hours in (
        ("alice", "ml", "1g.5gb", 1),
        ("bob", "vision", "3g.20gb", 0.5),
    ):
        lease = world.run(user, shape, course=course)
        world.pass_time(hours * 3600)
        world.end(lease)


@pytest.mark.usefixtures("two_courses")
async def test_a_report(client: httpx.AsyncClient) -> None:
    """Rows, all together, and the days they are of.

    As a file to keep in UTF-8 that spreadsheets recognise; what is unknown is empty.
    """
    usage = (await client.get(f"/api/usage?{QUERY}", headers=as_("admin-token"))).json()
    report = (usage["since"], usage["until"], usage["group_by"])
    assert report == ("2026-11-02", "2026-11-08", "course")
    assert [(row["key"], round(row["slice_hours"], 2)) for row in usage["rows"]] == [
        ("vision", 2.0),
        ("ml", 1.0),
    ]
    assert usage["rows"][1] | {"slice_hours": 1.0} == {
        "key": "ml", "slice_hours": 1.0, "leases": 1, "wait_p50_s": 0.0, "wait_p95_s": 0.0,
        "idle_share": None, "known_share": 0.0, "reclaims": 0, "refusals": 1,
    }  # fmt: skip
    total = usage["total"]
    assert (total["slice_hours"], total["leases"]) == (pytest.approx(3.0, abs=0.01), 2)
    sheet = await client.get(f"/api/usage?{QUERY}&format=csv", headers=as_("admin-token"))
    assert sheet.headers["content-type"] == "text/csv; charset=utf-8"
    name = 'filename="usage-by-course-2026-11-02-2026-11-08.csv"'
    assert name in sheet.headers["content-disposition"]
    text = sheet.content.decode()
    assert text.startswith(BOM)
    rows = list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))
    assert list(rows[0]) == ["course", *FIGURES]
    assert (rows[1]["course"], rows[1]["idle_share"], rows[1]["leases"]) == ("ml", "", "1")


@pytest.mark.usefixtures("two_courses")
@pytest.mark.parametrize(
    ("token", "keys"),
    [("instructor-token", ["alice"]), ("assistant-token", ["alice"]), ("vision-token", ["bob"])],
)
async def test_only_of_the_own_courses(
    client: httpx.AsyncClient, token: str, keys: list[str]
) -> None:
    """Another course's people, and its sums, are not in it."""
    answer = await client.get(f"/api/usage?{QUERY}&by=user", headers=as_(token))
    assert [row["key"] for row in answer.json()["rows"]] == keys
    assert answer.json()["total"]["leases"] == 1


@given(st.text(" \t\n\u200b\ufeff\x00'＝=＋+-@|%x", max_size=6) | st.text())
def test_harmless_text(text: str) -> None:
    """Never a formula, also for a reader that drops spaces; ordinary names stay as they are."""
    cell = escape_formula(text)
    visible = "".join(sign for sign in cell if sign.isprintable() and not sign.isspace())
    assert unicodedata.normalize("NFKC", visible)[:1] not in FORMULA
    assert cell.isprintable()
    if text.isalnum():
        assert cell == text


def test_a_name_of_many_lines_is_one_row() -> None:
    """Quotes, separators and line ends in a name break neither row nor column."""
    person = Requester('a";b,c\r\n"=1', "ml", "1g.5gb")
    period = period_of(DAY, DAY, UTC, AT + 9e9)
    usage = build_report(sum_facts(facts_of(person), period, GroupBy.USER), DAY, DAY, period)
    rows = list(csv.reader(io.StringIO(to_csv(usage).removeprefix(BOM))))
    assert len(rows) == 2 and {len(row) for row in rows} == {1 + len(FIGURES)}
    assert rows[1][0] == 'a";b,c "=1'


@pytest.mark.parametrize(
    ("since", "until", "is_"),
    [
        (None, None, (dt.date(2026, 10, 25), TODAY)),
        (DAY, None, (DAY, TODAY)),
        (None, DAY, (dt.date(2026, 10, 6), DAY)),
        (TOMORROW, None, (TOMORROW, TOMORROW)),
        (None, dt.date(2027, 2, 28), (dt.date(2026, 10, 25), dt.date(2027, 2, 28))),
        (None, dt.date(2000, 1, 2), (dt.date(2000, 1, 1), dt.date(2000, 1, 2))),
    ],
)
def test_the_days_that_are_meant(
    since: dt.date | None, until: dt.date | None, is_: tuple[dt.date, dt.date]
) -> None:
    """Without any: four weeks with today as the last day; with one: up to or from it."""
    assert days(since, until, TODAY) == is_


def test_how_long_a_period_is() -> None:
    """Five years at most; what lives counts until now, and the future is empty, not upside down."""
    days(TODAY - dt.timedelta(days=LONGEST_DAYS - 1), TODAY, TODAY)
    with pytest.raises(BadPeriod, match="at most"):
        days(TODAY - dt.timedelta(days=LONGEST_DAYS), TODAY, TODAY)
    assert period_of(DAY, TODAY, UTC, AT + 1000).until == AT + 1000
    ahead = period_of(TODAY, dt.date.max, UTC, AT + 1000)
    assert ahead.since == ahead.until and ahead.is_empty


@pytest.mark.parametrize("first", [TODAY + dt.timedelta(days=2), dt.date.max])
def test_no_report_begins_in_the_future(first: dt.date) -> None:
    """Tomorrow may be today where somebody asks from; the day after is today nowhere."""
    days(TOMORROW, None, TODAY)
    with pytest.raises(BadPeriod, match=f"begins on {first}, in the future"):
        days(first, None, TODAY)


def test_nobody_waits_in_a_period_that_has_not_begun() -> None:
    """Whoever waits now is in the figures of a period that goes on, and not of a later one."""
    facts = Facts(waiting=(Event(Requester("ada", "ml", "1g.5gb"), AT),))
    for first, waits in ((DAY, [600.0]), (TOMORROW, [])):
        period = period_of(first, TOMORROW, UTC, AT + 600)
        groups = sum_facts(facts, period, GroupBy.COURSE).groups
        assert [wait for group_sum in groups.values() for wait in group_sum.waits] == waits


async def test_the_future_is_refused_over_http(client: httpx.AsyncClient) -> None:
    """Also the last day that there is, and a period that would go on for thousands of years."""
    for query in ("since=9999-12-31", "until=9999-12-31"):
        answer = await client.get(f"/api/usage?{query}", headers=as_("admin-token"))
        assert (answer.status_code, answer.json()["reason"]) == (422, "bad-input")


async def test_links_to_other_periods_lead_to_one(client: httpx.AsyncClient) -> None:
    """Also from a page whose last day is the end of the semester, far ahead."""
    today = dt.datetime.now(UTC).date()
    since, until = today - dt.timedelta(days=10), today + dt.timedelta(days=100)
    page = await client.get(f"/usage?since={since}&until={until}", headers=as_("admin-token"))
    addresses = re.findall(r'href="[^"]*(?<!/api)(/usage\?since=[^"]*)"', page.text)
    assert len(addresses) == 3
    for address in addresses:
        answer = await client.get(html.unescape(address), headers=as_("admin-token"))
        assert answer.status_code == 200 and 'role="alert"' not in answer.text


LAST = dt.date(2026, 11, 29)
PERIOD = period_of(DAY, LAST, UTC, AT + 9e9)
WEEK_S = 7 * 86400.0
SHOWN = f"/usage?since={DAY}&until={LAST}"
SHOWN_NOW = "/usage?since=2026-06-01&until=2026-06-07"


def held_lease(
    number: int, course: str, week: int = 0, hours: float = 1.0, user: str = "ada"
) -> ReportedUse:
    at = AT + week * WEEK_S + 3600
    return ReportedUse(
        number, Requester(user, course, "1g.5gb"), 1, at, 60.0, at, at + 3600 * hours
    )


def chart_of(*lease_uses: ReportedUse) -> Columns:
    return weeks(sum_facts(Facts(lease_uses=lease_uses), PERIOD, GroupBy.COURSE), PERIOD)


def row(key: str = "ml", **fields: Any) -> UsageRow:
    values = {
        "slice_hours": 10.0, "leases": 1, "wait_p50_s": 30.0, "wait_p95_s": 60.0,
        "idle_share": 0.5, "known_share": 0.8, "reclaims": 0, "refusals": 0,
    }  # fmt: skip
    return UsageRow(key=key, **(values | fields))


@given(st.floats(1e-3, 1e7))
def test_a_scale_holds_what_it_measures(highest: float) -> None:
    """Few ticks at round figures, the highest no lower than the highest column."""
    step, top = scale(highest)
    assert top >= highest * (1 - 1e-6) and 1 <= round(top / step) <= 5
    assert f"{step:e}"[0] in "125"


@pytest.mark.parametrize(
    ("hours", "label"), [(0.0009, "0.0005"), (0.03, "0.03"), (0.7, "0.6"), (9, "5"), (90, "50")]
)
def test_no_two_ticks_read_the_same(hours: float, label: str) -> None:
    """However little or much was used, an axis counts upwards."""
    ticks = chart_of(held_lease(1, "ml", hours=hours)).ticks
    labels = [text for _, text in ticks]
    assert len(set(labels)) == len(labels) and label in labels


def test_columns_stand_on_each_other() -> None:
    """Two courses in one week: one box on the other, together as high as the sum."""
    chart = chart_of(held_lease(1, "ml", hours=3), held_lease(2, "vision", hours=1))
    below, above = chart.boxes
    assert below.y + below.height == pytest.approx(FLOOR, abs=0.02)
    assert above.y + above.height == pytest.approx(below.y, abs=0.02)
    assert above.y == pytest.approx(TOP, abs=0.02)
    assert below.tooltip == "2026-W45, ml: 3 slice-hours"
    assert chart.description.startswith(
        "From 2026-W45 to 2026-W48; most in 2026-W45, 4 slice-hours"
    )


def test_the_fifth_course_is_among_the_others() -> None:
    """Only as many are told apart as can be; the rest is one, and nothing is left out."""
    chart = chart_of(*(held_lease(n, f"course-{n}", hours=9 - n) for n in range(7)))
    assert [name for _, name in chart.legend] == [f"course-{n}" for n in range(4)] + [OTHERS]
    assert sum(box.height for box in chart.boxes) == pytest.approx(
        (FLOOR - TOP) * sum(9 - n for n in range(7)) / scale(42)[1], abs=0.1
    )


def test_nothing_used_draws_nothing() -> None:
    """No box, no division by zero, and it says so."""
    chart = chart_of()
    assert chart.boxes == () and chart.description == "Nothing was used in any week."
    assert bars([row(slice_hours=0.0, wait_p50_s=None, wait_p95_s=None, idle_share=None)])


def test_a_bar_is_worked_idle_and_not_known() -> None:
    """Together as long as the slice-hours are beside the longest."""
    long, short = bars([row(), row(slice_hours=5.0, idle_share=None, known_share=0.0)])
    assert (long.worked, long.idle, long.unknown) == (40.0, 40.0, 20.0)
    assert (short.worked, short.idle, short.unknown) == (0.0, 0.0, 50.0)
    assert (long.wait_from, long.wait_to) == (50.0, 100.0)


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "not known"), (0.0, "0 %"), (0.001, "<1 %"), (0.256, "26 %"), (1.0, "100 %")],
)
def test_shares_in_words(share: float | None, text: str) -> None:
    """What is not known is no number; little is not nothing."""
    assert percent(share) == text
    assert (
        hours_in_words(0.0),
        hours_in_words(0.04),
        hours_in_words(12.34),
        hours_in_words(1234.5),
    ) == ("0", "<0.1", "12.3", "1,234")


async def test_figures_and_their_drawing(client: httpx.AsyncClient, world: World) -> None:
    """All together on top, a row for each, and the sheet of the very same days."""
    world.pass_time(3600.0)
    page = (await client.get(SHOWN_NOW, headers=as_("admin-token"))).text
    assert ">3</td>" in page and ">ml</th>" in page and ">vision</th>" in page
    assert "/api/usage?since=2026-06-01&amp;until=2026-06-07&amp;by=course&amp;format=csv" in page
    assert "of the GPUs’ capacity" in page
    assert re.search(r'<svg class="columns" role="img" aria-labelledby="weeks-title', page)


@pytest.mark.parametrize(
    "query",
    [
        "since=soon",
        "since=2026-11-08&until=2026-11-02",
        "since=1066-10-14",
        "since=9999-12-31",
        "by=<b>",
        "until=2027-12-31",
    ],
)
async def test_what_cannot_be_read_is_said(client: httpx.AsyncClient, query: str) -> None:
    """The page comes all the same, and nothing of what was typed is in it as markup."""
    answer = await client.get(f"/usage?{query}", headers=as_("admin-token"))
    assert answer.status_code == 200 and "<b>" not in answer.text
    assert ('role="alert"' in answer.text) == query.startswith("since=")


async def test_a_long_list_is_cut_and_says_so(
    client: httpx.AsyncClient, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two hundred students; the sheet has them all."""
    term = Facts(lease_uses=tuple(held_lease(n, "ml", user=f"student{n}") for n in range(250)))
    monkeypatch.setattr(
        pool, "sum_usage", lambda period, group_by, _: sum_facts(term, period, group_by)
    )
    page = (await client.get(f"{SHOWN}&by=user", headers=as_("admin-token"))).text
    assert page.count('<th scope="row">student') == 200 and "The first 200 of 250" in page
