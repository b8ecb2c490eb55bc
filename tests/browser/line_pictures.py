"""The line from one real run: what each place says in each state, and how soon it says it.

``python -m tests.browser.line_pictures FOLDER`` starts a lab with one simulated GPU, leads students
through the states of the line and through what can be wrong with their connection, and writes the
tables of docs/reference/line.md, a picture of each place in each state, and one sheet of what each
place's line looks like; a part's name after it, as ``connection``, for that one alone.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, WebSocketRoute, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from tests.browser.conftest import ARGS, CHROMIUM
from tests.browser.people import sign_in, start
from tests.browser.recorder import Heard, Recorder
from tests.students import served

from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

SHAPES = ("7g.40gb", "3g.20gb", "1g.5gb", "cpu")
SHAPE = "7g.40gb"
WINDOW: dict[str, Any] = {"viewport": {"width": 1280, "height": 700}, "locale": "en-GB"}
NARROW: Any = {"width": 640, "height": 700}  # so that the sheet can be read
START, WAITING, HOME, POOL, LAB = (
    "spawn page", "waiting page", "hub home", "pool page", "JupyterLab",
)  # fmt: skip
PLACES = (START, WAITING, HOME, POOL, LAB)
PATHS = {START: "hub/spawn", HOME: "hub/home", POOL: "services/pool/"}
CUTS = {
    START: "#miglab-news, .miglab-cards",
    WAITING: "#miglab-line",
    HOME: "#miglab-line",
    POOL: "#line",
    LAB: ".miglab-card, .miglab-status",
}
"""What of a place the sheet shows."""
SHEET = """<!doctype html><style>
body { margin: 16px; font: 14px sans-serif; }
table { border-collapse: collapse; }
th, td { border: 1px solid #ccc; padding: 8px; text-align: left; vertical-align: top; }
img { display: block; max-width: 300px; margin-bottom: 4px; }
</style><table>"""
STREAMS = re.compile(r"/progress\b|/live$")
WATCH = re.compile(r"/miglab/api/watch")
OFFLINE_S = 60


@dataclass
class Table:
    """Texts by row and place."""

    rows: dict[str, dict[str, str]] = field(default_factory=dict)

    def put(self, row: str, place: str, text: str) -> None:
        """Set a cell."""
        self.rows.setdefault(row, {})[place] = text.replace("|", "/").replace("\n", " ")

    def markdown(self, title: str) -> str:
        """The table; a place that has nothing to say is left out."""
        lines = [f"| {title} | place | it says |", "|---|---|---|"]
        for row, cells in self.rows.items():
            places = [place for place in PLACES if place in cells]
            names = [row, *[""] * len(places)]
            lines += [
                f"| {name} | {place} | {cells[place]} |"
                for name, place in zip(names, places, strict=False)
            ]
        return "\n".join(lines)


class Person:
    """A student in a browser, with a tab for each place."""

    def __init__(self, chromium: Browser, lab: TemporaryLab, name: str, folder: Path) -> None:
        self.lab, self.name, self.folder = lab, name, folder
        self.context = chromium.new_context(**WINDOW)
        self.context.set_default_timeout(120_000)
        self.recorder = Recorder(self.context)
        self.tabs: dict[str, Page] = {}

    def close(self) -> None:
        """Close the browser; the server goes on."""
        self.context.close()

    def sign_in(self) -> None:
        """Past the login form, to the spawn page."""
        self.tabs[START] = self.context.new_page()
        sign_in(self.tabs[START], self.lab, self.name)

    def open(self, place: str) -> float:
        """Open a place in a tab of its own; return when that began."""
        page = self.tabs.setdefault(place, self.context.new_page())
        at = time.time()
        page.goto(f"{self.lab.settings.public_url}{PATHS[place]}", wait_until="commit")
        return at

    def ask(self, shape: str, place: str) -> float:
        """Choose a shape on the spawn page, whose tab then is this place; return when."""
        page = self.tabs[place] = self.tabs.pop(START)
        at = time.time()
        start(page, shape)
        return at

    def says(self, place: str, since: float, line: str, row: str) -> str:
        """What a place says, after how many milliseconds; with a picture."""
        heard = self.recorder.first(self.tabs[place], since, line=line)
        self.picture(place, row)
        return f"{shown(heard)} ({1000 * max(0.0, heard.at - since):,.0f} ms)"

    def picture(self, place: str, row: str) -> None:
        """Keep a picture of a place, and one of its line alone, for the sheet."""
        page, name = self.tabs[place], f"{row}-{place}".replace(" ", "-")
        page.screenshot(path=self.folder / f"{name}.png")
        page.set_viewport_size(NARROW)
        for number, part in enumerate(page.locator(CUTS[place]).filter(visible=True).all()):
            with suppress(PlaywrightError):  # the page has just led elsewhere
                part.screenshot(path=self.folder / f"cut-{name}-{number}.png", timeout=2000)
        page.set_viewport_size(WINDOW["viewport"])


def shown(heard: Heard) -> str:
    """The line of a place, and what it says of the connection."""
    return " · ".join(text for text in (heard.line, heard.notice) if text)


def shapes_offered(page: Page) -> str:
    """The shapes of the spawn page with what is free of each; and that it shows no line."""
    cards = page.locator(".miglab-card")
    cards.first.wait_for()
    texts = [
        f"{card.locator('input').input_value()}: {card.locator('.miglab-now').inner_text()}"
        for card in cards.all()
    ]
    line = "its line is shown" if page.locator(".line-title").is_visible() else "no line"
    return f"{'; '.join(texts)}; {line}"


class States:
    """One lab, and its table of states."""

    def __init__(self, chromium: Browser, lab: TemporaryLab, folder: Path) -> None:
        self.chromium, self.lab, self.folder = chromium, lab, folder
        self.table = Table()

    @contextmanager
    def person(self, name: str) -> Iterator[Person]:
        """A student who has signed in."""
        with closing(Person(self.chromium, self.lab, name, self.folder)) as person:
            person.sign_in()
            yield person

    def note(self, row: str, person: Person, since: float, lines: Mapping[str, str]) -> None:
        """What places say of one event, by the pattern that each is waited for."""
        for place, line in lines.items():
            self.table.put(row, place, person.says(place, since, line, row))

    def note_opened(self, row: str, person: Person, *places: str) -> None:
        """What places say that are opened now."""
        for place in places:
            since = person.open(place)
            text = person.says(place, since, "You hold no slice" if place != START else "", row)
            self.table.put(row, place, text)

    def note_led(self, row: str, person: Person, place: str) -> None:
        """Where a place leads instead of saying something."""
        with closing(person.context.new_page()) as page:
            page.goto(f"{self.lab.settings.public_url}{PATHS[place]}")
            page.wait_for_url(re.compile("spawn-pending|/lab"), wait_until="commit")
            led_to = WAITING if "spawn-pending" in page.url else LAB
        self.table.put(row, place, f"leads to {'the ' if led_to == WAITING else ''}{led_to}")

    def tell(self) -> Table:
        """Lead two students through all states; Bo has the GPU's other half at first."""
        with closing(served(self.lab, "bo", "3g.20gb")) as bo, self.person("ada") as ada:
            self.not_asked(ada)
            self.in_line(ada)
            with self.person("cy") as cy:
                since = cy.ask(SHAPE, WAITING)
                self.note("in line", cy, since, {WAITING: "2nd of 2 in line"})
                self.note_led("in line", cy, START)
                bo.leave()
                self.offered(ada)
                self.held(ada)
                self.released(ada, cy)
        return self.table

    def not_asked(self, ada: Person) -> None:
        """Signed in, and no more; JupyterLab is that of a server without a GPU."""
        row = "not asked"
        self.table.put(row, START, shapes_offered(ada.tabs[START]))
        ada.picture(START, row)
        self.note_opened(row, ada, HOME, POOL)
        since = ada.ask("cpu", LAB)
        self.note(row, ada, since, {LAB: "No GPU"})

    def in_line(self, ada: Person) -> None:
        """She chooses in JupyterLab, and works on."""
        page = ada.tabs[LAB]
        page.locator(".miglab-status").click()
        button = page.get_by_role("listitem").filter(has_text=SHAPE).get_by_role("button")
        button.wait_for()
        since = time.time()
        button.click()
        waits = "1st (of 1 )?in line"
        self.note("in line", ada, since, {LAB: waits, HOME: waits, POOL: waits})

    def offered(self, ada: Person) -> None:
        """From the moment at which the pool offers it."""
        offers = wait_for(lambda: self.lab.snapshot().offered, "an offer")
        since = offers[0].offered_at or 0.0
        ready = "is ready for you|ready, "
        lines = {LAB: "is ready for you", HOME: ready, POOL: ready}
        self.note("offered", ada, since, lines)
        self.note_led("offered", ada, START)

    def held(self, ada: Person) -> None:
        """She takes it; then staff ask for it back."""
        page = ada.tabs[LAB]
        since = time.time()
        page.get_by_role("button", name="Save all and restart with it").click()
        holds = f"You hold {SHAPE}"
        lines = {LAB: f"^{SHAPE}, guaranteed until", HOME: holds, POOL: holds}
        self.note("holds, guaranteed", ada, since, lines)
        self.note_led("holds, guaranteed", ada, START)
        lease, since = self.lab.leases()["ada"], time.time()
        wish = {"reason": "The machine needs a new fan.", "warning_s": 300}
        self.lab.ask(f"/api/leases/{lease.id}/reclaim", wish)
        back = "goes back to the pool soon"
        self.note("asked to give it back", ada, since, {LAB: back, HOME: back, POOL: back})
        self.note_led("asked to give it back", ada, START)

    def released(self, ada: Person, cy: Person) -> None:
        """She gives it back, and Cy is next: his page starts by itself."""
        since = time.time()
        ada.tabs[LAB].get_by_role("button", name="Save all and release now").click()
        none = "You hold no slice"
        lines = {LAB: "You released", HOME: none, POOL: none}
        turn = "your turn|is held for your server|Your server is starting|You hold"
        self.table.put("offered", WAITING, cy.says(WAITING, since, turn, "offered"))
        self.note("released", ada, since, lines)
        opened = cy.recorder.first(cy.tabs[WAITING], since, line=f"{SHAPE}, guaranteed until")
        self.note("released", ada, ada.open(START), {START: "You released"})
        text = f"leads to JupyterLab: {shown(opened)} ({1000 * (opened.at - since):,.0f} ms)"
        self.table.put("holds, guaranteed", WAITING, text)


# -- with other connections ------------------------------------------------------------------------


def abort(route: Route) -> None:
    """Refuse it, as a firewall does."""
    route.abort()


def hold_back(route: Route) -> None:
    """The answer stays in the proxy's buffer."""


def close_socket(socket: WebSocketRoute) -> None:
    """No websocket passes."""
    socket.close()


Way = Callable[[Route], None]
BROKEN: dict[str, Way] = {"event streams blocked": abort, "buffering proxy": hold_back}
KINDS = (WAITING, HOME, POOL, LAB)


class Connections(States):
    """Di waits on the waiting page, Eli works without a GPU while he waits, Fay chooses."""

    def tell(self) -> Table:
        """Each way in which a connection fails, in turn."""
        with ExitStack() as stack:
            stack.enter_context(closing(served(self.lab, "gus", SHAPE)))
            fay, di, eli = (stack.enter_context(self.person(n)) for n in ("fay", "di", "eli"))
            di.ask(SHAPE, WAITING)
            di.recorder.first(di.tabs[WAITING], 0, line="1st of 1 in line")
            eli.ask(SHAPE, LAB)
            eli.tabs[LAB].get_by_role("button", name="Start on CPU now").click()
            eli.recorder.first(eli.tabs[LAB], 0, line="^2nd in line")
            people = {START: fay, WAITING: di, HOME: eli, POOL: eli, LAB: eli}
            for row, way in BROKEN.items():
                self.without_streams(row, way, people)
            self.offline(people)
            self.signed_out(people)
        return self.table

    def without_streams(self, row: str, way: Way, people: Mapping[str, Person]) -> None:
        """Staff put the second first, which each place is to say though nothing is pushed to it."""
        persons = {person.name: person for person in people.values()}.values()
        for person in persons:
            person.context.route(STREAMS, way)
            person.context.route_web_socket(WATCH, close_socket)
        eli = people[LAB]
        opened = {place: eli.open(place) for place in (HOME, POOL)}
        opened |= {WAITING: self.reload(people, WAITING), LAB: self.reload(people, LAB)}
        first, second = sorted(self.lab.tickets().values(), key=lambda ticket: ticket.position or 0)

        def line(place: str, of_first: str, of_second: str) -> str:
            position = of_first if people[place].name == first.user else of_second
            return f"{position} (of 2 )?in line"

        for place in KINDS:
            person = people[place]
            person.recorder.first(person.tabs[place], opened[place], line=line(place, "1st", "2nd"))
        since = time.time()
        self.lab.ask(f"/api/tickets/{second.id}/next", {"reason": "Their talk is today."})
        for place in KINDS:
            self.table.put(
                row, place, people[place].says(place, since, line(place, "2nd", "1st"), row)
            )
        self.lab.ask(f"/api/tickets/{second.id}/next", {}, "DELETE")
        for person in persons:
            person.context.unroute_all()

    def reload(self, people: Mapping[str, Person], place: str) -> float:
        """Load a place anew; returns when."""
        at = time.time()
        people[place].tabs[place].reload(wait_until="commit")
        return at

    def offline(self, people: Mapping[str, Person]) -> None:
        """For a minute: when it is said, and when it is no longer."""
        row = f"offline for {OFFLINE_S} s"
        persons = {person.name: person for person in people.values()}.values()
        since = time.time()
        for person in persons:
            person.context.set_offline(True)
        said = {
            place: person.recorder.first(person.tabs[place], since, notice=".")
            for place, person in people.items()
        }
        for place, person in people.items():
            person.picture(place, row)
        time.sleep(max(0.0, since + OFFLINE_S - time.time()))
        back = time.time()
        for person in persons:
            person.context.set_offline(False)
        for place, person in people.items():
            well = person.recorder.first(person.tabs[place], back, notice="^$")
            after = f"after {said[place].at - since:.0f} s; fine again {well.at - back:.1f} s after"
            self.table.put(row, place, f"{said[place].notice} ({after})")

    def signed_out(self, people: Mapping[str, Person]) -> None:
        """They log out in another tab."""
        row, since = "signed out", time.time()
        for person in {person.name: person for person in people.values()}.values():
            with closing(person.context.new_page()) as page:
                page.goto(f"{self.lab.settings.public_url}hub/logout")
        for place, person in people.items():
            try:
                heard = person.recorder.first(person.tabs[place], since, notice="signed out")
                text = f"{heard.notice} (after {heard.at - since:.0f} s)"
            except TimeoutError as error:
                text = f"nothing: {error}"
            person.picture(place, row)
            self.table.put(row, place, text)


def sheet(table: Table, folder: Path) -> str:
    """The page of what each place's line looks like in each state; a text where it has none."""

    def cell(row: str, place: str) -> str:
        cuts = sorted(folder.glob(f"cut-{row}-{place}-*.png".replace(" ", "-")))
        text = table.rows[row].get(place, "")
        return "".join(f'<img src="{cut.name}">' for cut in cuts) or escape(text)

    rows = [
        f"<tr><th>{row}" + "".join(f"<td>{cell(row, place)}" for place in PLACES)
        for row in table.rows
    ]
    return SHEET + "<tr><th>" + "".join(f"<th>{place}" for place in PLACES) + "".join(rows)


PARTS = {"state": States, "connection": Connections}


def write(folder: Path, title: str) -> None:
    """Write one of the tables, from a lab of its own."""
    with temporary_lab(docker=False, shapes=SHAPES) as lab, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        table = PARTS[title](chromium, lab, folder).tell()
        page = chromium.new_page(viewport={"width": 1700, "height": 900})
        (folder / f"{title}.html").write_text(sheet(table, folder))
        page.goto((folder / f"{title}.html").resolve().as_uri())
        page.screenshot(path=folder / f"{title}.png", full_page=True)
    (folder / f"{title}.md").write_text(table.markdown(title) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for cut in target.glob("cut-*.png"):  # of an earlier run
        cut.unlink()
    for part in sys.argv[2:] or PARTS:
        write(target, part)
