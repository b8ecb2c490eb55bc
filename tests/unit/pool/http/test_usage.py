"""Usage over HTTP: which days, which courses, and a table that no spreadsheet runs."""

import csv
import datetime as dt
import io
import unicodedata
from zoneinfo import ZoneInfo

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import because
from tests.unit.pool.conftest import World

from miglab_api.usage import BOM, FIGURES, FORMULA, GroupBy, as_csv, harmless
from miglab_pool.refused import Refused
from miglab_pool.usage.report import (
    LONGEST_DAYS,
    BadPeriod,
    Event,
    Facts,
    Held,
    Who,
    days,
    make,
    midnight,
    period_of,
)

from .conftest import as_

UTC = ZoneInfo("UTC")
TODAY = dt.date(2026, 11, 21)
DAY = dt.date(2026, 11, 2)
AT = midnight(DAY, UTC)
QUERY = "since=2026-11-02&until=2026-11-08"


def used(*people: Who) -> Facts:
    """An hour of each, after a wait of a minute; the first was refused something before."""
    held = tuple(
        Held(number, who, 1, AT + 60, 60.0, AT + 3600, AT + 7200)
        for number, who in enumerate(people, 1)
    )
    return Facts(held=held, refusals=(Event(people[0], AT),))


@pytest.fixture(autouse=True)
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


async def test_a_report(client: httpx.AsyncClient) -> None:
    """Rows, all together, and the days they are of."""
    found = (await client.get(f"/api/usage?{QUERY}", headers=as_("admin-token"))).json()
    assert (found["since"], found["until"], found["by"]) == ("2026-11-02", "2026-11-08", "course")
    assert [(row["key"], round(row["slice_hours"], 2)) for row in found["rows"]] == [
        ("vision", 2.0),
        ("ml", 1.0),
    ]
    assert found["rows"][1] | {"slice_hours": 1.0} == {
        "key": "ml", "slice_hours": 1.0, "leases": 1, "wait_p50_s": 0.0, "wait_p95_s": 0.0,
        "idle_share": None, "known_share": 0.0, "reclaims": 0, "refusals": 1,
    }  # fmt: skip
    assert (
        found["total"]["slice_hours"] == pytest.approx(3.0, abs=0.01)
        and found["total"]["leases"] == 2
    )


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


async def test_the_sheet(client: httpx.AsyncClient) -> None:
    """A file to keep, in UTF-8 that spreadsheets recognise; what is unknown is empty."""
    answer = await client.get(f"/api/usage?{QUERY}&format=csv", headers=as_("admin-token"))
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert (
        'filename="usage-by-course-2026-11-02-2026-11-08.csv"'
        in (answer.headers["content-disposition"])
    )
    text = answer.content.decode()
    assert text.startswith(BOM)
    rows = list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))
    assert list(rows[0]) == ["course", *FIGURES]
    assert rows[1]["course"] == "ml" and rows[1]["idle_share"] == "" and rows[1]["leases"] == "1"


@given(st.text(" \t\n\u200b\ufeff\x00'＝=＋+-@|%x", max_size=6) | st.text())
def test_harmless_text(text: str) -> None:
    """Never a formula, also for a reader that drops spaces; ordinary names stay as they are."""
    told = harmless(text)
    seen = "".join(sign for sign in told if sign.isprintable() and not sign.isspace())
    assert unicodedata.normalize("NFKC", seen)[:1] not in FORMULA
    assert not set("\r\n") & set(told)
    if text.isalnum():
        assert told == text


def test_a_name_of_many_lines_is_one_row() -> None:
    """Quotes, separators and line ends in a name break neither row nor column."""
    who = Who('a";b,c\r\n"=1', "ml", "1g.5gb")
    found = make(used(who), DAY, DAY, period_of(DAY, DAY, UTC, AT + 9e9), GroupBy.USER)
    rows = list(csv.reader(io.StringIO(as_csv(found).removeprefix(BOM))))
    assert len(rows) == 2 and {len(row) for row in rows} == {1 + len(FIGURES)}
    assert rows[1][0] == 'a";b,c "=1'


@pytest.mark.parametrize(
    ("since", "until", "is_"),
    [
        (None, None, (dt.date(2026, 10, 25), TODAY)),
        (DAY, None, (DAY, TODAY)),
        (None, DAY, (dt.date(2026, 10, 6), DAY)),
        (dt.date(2027, 1, 1), None, (dt.date(2027, 1, 1), dt.date(2027, 1, 1))),
        (None, dt.date(2000, 1, 2), (dt.date(2000, 1, 1), dt.date(2000, 1, 2))),
    ],
)
def test_the_days_that_are_meant(
    since: dt.date | None, until: dt.date | None, is_: tuple[dt.date, dt.date]
) -> None:
    """Without any: four weeks with today as the last day; with one: up to or from it."""
    assert days(since, until, TODAY) == is_


def test_too_many_days() -> None:
    """Five years are read, more are refused."""
    days(TODAY - dt.timedelta(days=LONGEST_DAYS - 1), TODAY, TODAY)
    with pytest.raises(BadPeriod, match="at most"):
        days(TODAY - dt.timedelta(days=LONGEST_DAYS), TODAY, TODAY)


def test_a_period_ends_now_at_the_latest() -> None:
    """What lives counts until now; a period in the future is empty, not upside down."""
    now = AT + 1000
    assert period_of(DAY, TODAY, UTC, now).until == now
    ahead = period_of(TODAY, dt.date.max, UTC, now)
    assert ahead.since == ahead.until
