"""`./lab bench pages`: what a browser downloads of each page, and how long the page takes.

The same Chromium opens each page of the same lab twice with an empty cache, one right after the
other: as browsers do, and accepting no compressed answer; who goes first changes each round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from miglab_bench.harness.browser import PATIENCE_MS, Download, chromium
from miglab_bench.harness.results import Ratio, ratio_of, say, table_of
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub import lab_secrets

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

MISSING = 2
SHAPE = "1g.5gb"
SLOWER = 1.0  # at most so many times as long as without compression
UNCOMPRESSED = {"Accept-Encoding": "identity"}


@dataclass(frozen=True)
class PageCase:
    """A page that is measured.

    Attributes:
        name: of the row.
        path: below the lab's address.
        person: who opens it; empty for nobody.
        ready: a selector of what is there when the page can be used; empty for its load event.
        first_bound: bytes the first time; 0 for no bound.
        second_bound: the same with a full cache.
    """

    name: str
    path: str
    person: str = ""
    ready: str = ""
    first_bound: int = 0
    second_bound: int = 0


PAGES = (
    PageCase("sign-in", "hub/login", first_bound=120_000),
    PageCase("home", "hub/home", "ada"),
    PageCase("spawn", "hub/spawn/bo", "bo"),
    PageCase("pool", "services/pool/", "instructor"),
    PageCase("JupyterLab", "user/ada/lab", "ada", ".miglab-status", 1_600_000, 60_000),
)


@dataclass(frozen=True)
class Opening:
    """One page, opened with an empty cache and then with a full one.

    Attributes:
        first_bytes: on the wire, with an empty cache.
        first_s: until the page could be used.
        second_bytes: the same with what the browser has kept.
        second_s: the same.
    """

    first_bytes: int
    first_s: float
    second_bytes: int
    second_s: float


@dataclass(frozen=True)
class PageRow:
    """The medians of a page.

    Attributes:
        page: its name.
        plain_bytes: on the wire with an empty cache, nothing compressed.
        first_bytes: the same as browsers ask.
        second_bytes: with what the browser has kept.
        plain_s: until the page could be used, nothing compressed.
        first_s: the same as browsers ask.
        second_s: with what the browser has kept.
    """

    page: str
    plain_bytes: int
    first_bytes: int
    second_bytes: int
    plain_s: float
    first_s: float
    second_s: float


def bench_pages(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    rounds: Annotated[
        int, typer.Option(min=2, help="How often each page is opened in both ways.")
    ] = 5,
) -> None:
    """Pages: bytes on the wire and time of each, beside the same without compression."""
    try:
        with chromium() as browser, temporary_lab(docker=False) as lab:
            openings = measure(lab, browser, rounds)
    except ImportError as error:
        typer.echo(f"{error.name} is not installed here: ./lab install test", err=True)
        raise typer.Exit(MISSING) from error
    rows = [row_of(case, plain, usual) for case, (plain, usual) in openings.items()]
    ratios = {case.name: slowdown(plain, usual) for case, (plain, usual) in openings.items()}
    verdicts = [line for case, row in zip(PAGES, rows, strict=True) for line in sizes(case, row)]
    verdicts += [
        f"{name}: time over plain {ratio}: {ratio.verdict_on(SLOWER, by_low=True)}"
        for name, ratio in ratios.items()
    ]
    method = (
        f"medians of {rounds} rounds in one Chromium on the lab's own {os.cpu_count()} cores; "
        f"load {os.getloadavg()[0]:.1f} at the end"
    )
    table_rows = [asdict(row) for row in rows]
    report = {
        "rows": table_rows,
        "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
        "how": method,
    }
    say(report, table_of(table_rows), *verdicts, method, as_json=as_json)


def measure(
    lab: TemporaryLab, browser: Browser, rounds: int
) -> dict[PageCase, tuple[list[Opening], list[Opening]]]:
    """Open each page without and with compression; the openings in this order."""
    openings: dict[PageCase, tuple[list[Opening], list[Opening]]] = {}
    with closing(lab.signed_in("ada")) as student:
        student.ask(SHAPE)
        student.wait_until_ready()
        for case in PAGES:
            state = signed_in_state(lab, browser, case)
            plain, usual = openings[case] = ([], [])
            for number in range(rounds):
                for openings_of_kind in (plain, usual) if number % 2 == 0 else (usual, plain):
                    headers = UNCOMPRESSED if openings_of_kind is plain else {}
                    window = browser.new_context(storage_state=state, extra_http_headers=headers)
                    with closing(window) as context:
                        openings_of_kind.append(open_twice(context, lab, case))
    return openings


def signed_in_state(lab: TemporaryLab, browser: Browser, case: PageCase) -> Any:
    """Return the cookies of the page's reader, who has seen it before, and no cached file."""
    with closing(browser.new_context()) as context:
        context.set_default_timeout(PATIENCE_MS)
        if case.person:
            passwords = lab_secrets.read_passwords(lab.settings)
            page = context.new_page()
            page.goto(f"{lab.settings.public_url}hub/login")
            page.get_by_label("Username").fill(case.person)
            page.get_by_label("Password").fill(getattr(passwords, case.person, passwords.student))
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(lambda address: "/hub/login" not in address)
            open_page(context, lab, case)
        return context.storage_state()


def open_twice(context: BrowserContext, lab: TemporaryLab, case: PageCase) -> Opening:
    """Open a page in a new browser, close it, and open it again."""
    context.set_default_timeout(PATIENCE_MS)
    first_bytes, first_s = open_page(context, lab, case)
    second_bytes, second_s = open_page(context, lab, case)
    return Opening(first_bytes, first_s, second_bytes, second_s)


def open_page(context: BrowserContext, lab: TemporaryLab, case: PageCase) -> tuple[int, float]:
    """Open a page in a new tab.

    Returns:
        Its bytes on the wire, and seconds until it could be used.
    """
    with closing(context.new_page()) as page:
        download = Download(page)
        started_at = time.perf_counter()
        page.goto(f"{lab.settings.public_url}{case.path}")
        if case.ready:
            page.wait_for_selector(case.ready)
        seconds = time.perf_counter() - started_at
        download.wait_until_quiet()
        return download.total, seconds


# -- what came of it -------------------------------------------------------------------------------


def row_of(case: PageCase, plain: Sequence[Opening], usual: Sequence[Opening]) -> PageRow:
    """Return the medians of a page."""
    return PageRow(
        page=case.name,
        plain_bytes=round(median(opening.first_bytes for opening in plain)),
        first_bytes=round(median(opening.first_bytes for opening in usual)),
        second_bytes=round(median(opening.second_bytes for opening in usual)),
        plain_s=round(median(opening.first_s for opening in plain), 3),
        first_s=round(median(opening.first_s for opening in usual), 3),
        second_s=round(median(opening.second_s for opening in usual), 3),
    )


def slowdown(plain: Sequence[Opening], usual: Sequence[Opening]) -> Ratio:
    """Return the time of the first opening over that without compression."""
    return ratio_of([opening.first_s for opening in usual], [opening.first_s for opening in plain])


def sizes(case: PageCase, row: PageRow) -> Iterator[str]:
    """Say whether the page keeps its bounds."""
    for bound, size, occasion in (
        (case.first_bound, row.first_bytes, "first"),
        (case.second_bound, row.second_bytes, "second"),
    ):
        if bound:
            holds = "holds" if size <= bound else "DOES NOT HOLD"
            yield f"{case.name}: the bound of {bound:,} bytes the {occasion} time {holds}"
