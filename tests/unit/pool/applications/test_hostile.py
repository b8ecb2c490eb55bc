"""Names, reasons and messages that are markup: shown as they are, on every page and in terminals.

What is looked at is found by following the pages themselves: what is linked below the service's
address, and every dialog that a button opens.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from miglab_hub.cli.pool.output import cell
from miglab_pool.http.errors import CSP

from .conftest import as_, visiting
from .fakes import OWNERS, PREFIX, person
from .full_lab import EVIL, FullLab

PEOPLE = {
    "admin": "admin-token",
    "instructor": "instructor-token",
    "student": "alice-token",
    "hostile student": "evil-token",
    "hostile admin": "evil-admin-token",
}


@dataclass
class Seen(HTMLParser):
    """What a browser would make of a page."""

    tags: set[str] = field(default_factory=set)
    handlers: set[str] = field(default_factory=set)
    scripts: list[str] = field(default_factory=list)
    leads_to: set[str] = field(default_factory=set)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.handlers |= {name for name in attributes if name.startswith("on")}
        if tag == "script":
            self.scripts.append(attributes.get("src", "written in the page"))
        if "data-details" in attributes:
            self.leads_to.add(f"{PREFIX}/details/{attributes['data-details']}")
        if tag == "a" and attributes.get("href", "").startswith(PREFIX):
            self.leads_to.add(attributes["href"])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullLab]:
    lab = FullLab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two whose very names are markup."""
    monkeypatch.setitem(OWNERS, "evil-token", person(EVIL))
    monkeypatch.setitem(OWNERS, "evil-admin-token", person(EVIL, admin=True))


async def pages_of(app: FastAPI, token: str) -> dict[str, Seen]:
    """Every page and dialog that somebody can get to from the first page."""
    seen_pages: dict[str, Seen] = {}
    ahead = {f"{PREFIX}/", f"{PREFIX}/fragment"}
    async with visiting(app, **as_(token)) as client:
        while ahead:
            address = ahead.pop()
            answer = await client.get(f"http://lab{address}")
            assert answer.status_code == 200, (address, answer.text)
            page = seen_pages[address] = Seen()
            if answer.headers["content-type"].startswith("text/html"):
                assert answer.headers["Content-Security-Policy"] == CSP
                page.feed(answer.text)
            ahead |= {link.split("#")[0] for link in page.leads_to} - seen_pages.keys()
    return seen_pages


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize("token", PEOPLE.values(), ids=PEOPLE.keys())
async def test_markup_in_names_and_reasons_is_text_on_every_page(lab: FullLab, token: str):
    """No element, no attribute and no script comes from what somebody wrote.

    An admin reads it as it was written: name, reason, pause, draining, quarantine, reservation.
    """
    pages = await pages_of(lab.management, token)
    for address, page in pages.items():
        assert "miglab-evil" not in page.tags, address
        assert page.handlers == set(), address
        assert all(source.startswith(f"{PREFIX}/static/") for source in page.scripts), address
        assert "49" not in page.text.split(), address
    showing = {address.removeprefix(PREFIX) for address, page in pages.items() if EVIL in page.text}
    kinds = {re.sub(r"[-\w]+-[-\w]+$|\d+$", "", address.split("?")[0]) for address in showing}
    assert token != "admin-token" or kinds >= {
        "/", "/fragment", "/reservations", "/usage", "/log", "/health",
        "/details/pool", "/details/gpu/", "/details/slice/", "/details/ticket/",
        "/details/reservation/",
    }  # fmt: skip


TEXTS = [EVIL, r"\[/]", "[/]", r"\\[red]", "[link=x]", "\x1b[31m", "a\\", "", "Zoë", "\u202e"]


@pytest.mark.parametrize("text", TEXTS)
def test_markup_is_text_in_a_terminal(text: str):
    """A table of the command line shows it sign by sign, without control characters."""
    table = Table(box=None, show_header=False)
    table.add_row(cell(text))
    console = Console(width=200, color_system="truecolor", force_terminal=True)
    with console.capture() as captured:
        console.print(table)
    expected = "".join(sign if sign.isprintable() else "?" for sign in text)
    assert captured.get().strip() == expected
