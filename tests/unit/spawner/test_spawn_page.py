"""The spawn page: what is offered, what is chosen beforehand, and what it says."""

from html.parser import HTMLParser
from typing import Any

import pytest
from tests.unit.pool.applications.fakes import ticket_view

from miglab_api.offers import CourseOffers, Offers, QuotaLeft, ShapeOffer
from miglab_api.tickets import Headcount, TicketState, TicketView, WaitEstimate
from miglab_api.wording import gpu_picture, shape_title
from miglab_spawner.pages.spawn_page import (
    SpawnChoice,
    build_page,
    format_gib,
    format_minutes,
    page_without_pool,
    render,
)


def offer(shape: str, free: int = 0, **fields: object) -> ShapeOffer:
    values = {"sm_count": 14, "memory_mib": 4864, "slices": 1, "good_for": "A small net."}
    return ShapeOffer(shape=shape, free_now=free, **{**values, **fields})  # type: ignore[arg-type]


def course(*shapes: ShapeOffer, **fields: object) -> CourseOffers:
    values = {"course": "c", "title": "", "default": "cpu", "shapes": shapes}
    return CourseOffers(**{**values, **fields})  # type: ignore[arg-type]


ML = course(offer("1g.5gb", 3), course="ml", title="Deep <Learning>", default="1g.5gb")
ALL = course(offer("3g.20gb"), course="everyone", default="3g.20gb")


class Form(HTMLParser):
    """The form's fields, as a browser would send them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.radios: list[dict[str, str | None]] = []
        self.hidden: dict[str, str | None] = {}
        self.texts: list[str] = []
        self.buttons: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "button":
            self.buttons.append(attributes["type"])
        elif tag == "input" and attributes["type"] == "radio":
            self.radios.append(attributes)
        elif tag == "input":
            self.hidden[str(attributes["name"])] = attributes["value"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    @property
    def checked(self) -> list[str | None]:
        return [radio["value"] for radio in self.radios if "checked" in radio]


def form(
    *courses: CourseOffers,
    saved: SpawnChoice | None = None,
    news: str = "",
    ticket: TicketView | None = None,
    **fields: object,
) -> Form:
    offers = Offers(simulated=False, courses=courses, **fields)  # type: ignore[arg-type]
    return Form(render(build_page(offers, saved or SpawnChoice(), news, ticket)))


NAMELESS = {"sm_count": 0, "memory_mib": 0, "held_up": "Its nodes are down."}
LEFT = (
    QuotaLeft(quota="each", limit="memory_slices", most=4, used=1),
    QuotaLeft(quota="each", limit="slice_hours_week", most=10, used=10, more_in_s=7200),
    QuotaLeft(quota="all", limit="slice_hours_week", is_shared=True, most=90, used=12.25),
)
OPEN = "yours as long as nobody needs it. You are warned before it ends, and your files stay."
PAUSED = "The pool is paused: maintenance. Until staff resume, nobody"
WAIT = WaitEstimate(low_s=660, likely_s=900, high_s=1400, basis="")
LONGEST = WaitEstimate(low_s=0, likely_s=13_500, high_s=13_500, basis="", is_longest=True)
SAID: dict[str, tuple[tuple[CourseOffers, ...], dict[str, Any], list[str]]] = {
    "size, use and how many are free; titles are escaped": (
        (ML,), {},
        ["14 SMs, 4.75 GiB", "A small net.", "3 free", "Deep <Learning>", "No GPU",
         "What do these names mean?"],
    ),
    "with several courses each has its own heading": ((ML, ALL), {}, ["Deep <Learning>"]),
    "what holds a shape up": (
        (course(offer("2x1g.5gb", **NAMELESS | {"slices": 2})),), {},
        ["2 slices", "Its nodes are down."],
    ),
    "without a GPU too": ((course(offer("cpu", **NAMELESS)),), {}, ["Its nodes are down."]),
    "how many could have it, and who holds and waits": (
        (course(offer("1g.5gb", free=14, total=14)),),
        {"people": Headcount(shape="1g.5gb", free=14, total=14, holding=9, waiting=13)},
        ["14 of 14 free", "All shapes share one queue: 9 hold, 13 wait."],
    ),
    "why the last server ended, and that the pool is paused": (
        (ML,), {"news": "It ran out of memory.", "paused": "maintenance"},
        ["It ran out of memory.", PAUSED, "Not available: the pool is paused"],
    ),
    "what the quotas leave; whose": (
        (ML.model_copy(update={"left": LEFT}),), {},
        ["Left for you: 3 of 4 memory slices at a time.",
         "Left for you: 0.0 of 10 slice-hours in seven days; some are back in about 2 hours.",
         "Left for your course: 77.8 of 90 slice-hours in seven days."],
    ),
    "for how long a slice is guaranteed": (
        (ML.model_copy(update={"guaranteed_s": 5400}),), {},
        [f"A slice is guaranteed for 1 hour 30 minutes, then {OPEN}"],
    ),
    "that it is not": (
        (ML.model_copy(update={"guaranteed_s": 0}),), {}, [f"A slice is {OPEN}"],
    ),
    **{
        text: ((course(offer("1g.5gb", **fields)),), {}, [text])
        for text, fields in {
            "0 free, nobody waiting yet.": {},
            "0 free, 2 waiting.": {"waiting": 2},
            "0 free, the free room is held for the first in the queue.":
                {"is_held": True},
            "is reserved for a class; unused slots are free in about 10 m": {"reserved_s": 600.0},
            "0 free, 2 waiting, the free room is held for the first":
                {"is_held": True, "waiting": 2},
            "Estimated wait: about 10–25 minutes.": {"wait": WAIT},
            "Estimated wait: at most 3 hours 50 minutes, likely sooner.": {"wait": LONGEST},
            "2 free, its node is off.": {"free": 2, "slow": "its node is off."},
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("courses", "offer_fields", "sentences"), SAID.values(), ids=SAID)
def test_what_the_page_says(
    courses: tuple[CourseOffers, ...], offer_fields: dict[str, Any], sentences: list[str]
) -> None:
    """Of shapes, waits, people, quotas and guarantees."""
    text = " ".join(form(*courses, **offer_fields).texts)
    assert [sentence for sentence in sentences if sentence not in text] == []


@pytest.mark.parametrize(
    ("fields", "count"),
    [({}, 1), ({"wait": WAIT}, 0), ({"free": 2}, 0), ({"held_up": "Its nodes are down."}, 0)],
)
def test_an_unknown_wait_is_said_once(fields: dict[str, Any], count: int) -> None:
    """Of however many shapes: in one sentence, and not where every wait is known or over."""
    shapes = [offer(shape, **fields) for shape in ("1g.5gb", "2g.10gb", "3g.20gb")]
    text = " ".join(form(course(*shapes)).texts)
    assert text.count("cannot be estimated yet") == count


def test_a_server_without_a_gpu_may_take_its_time() -> None:
    """Where the nodes of such servers have to be switched on first."""
    page_words = form(course(offer("cpu", slow="its node is off"))).texts
    assert "Always free; its node is off" in page_words
    assert "Always free; starts at once" in form(course(offer("cpu"))).texts


def test_what_is_not_known_is_left_out() -> None:
    """No 0 SMs, no quota, no guarantee; sizes are as short as they can be."""
    nameless = (offer(name, **NAMELESS) for name in ("1g.5gb", "cpu"))
    text = " ".join([*form(course(*nameless)).texts, *form(ML).texts])
    for unsaid in ("0 SMs", "0 GiB", "Left for", "nobody needs it"):
        assert unsaid not in text
    assert [format_gib(mib) for mib in (4864, 20480)] == ["4.75 GiB", "20 GiB"]
    assert "Always free" not in form(course(offer("cpu", **NAMELESS))).texts


@pytest.mark.parametrize(
    ("courses", "saved", "preselected"),
    [
        ((ML,), SpawnChoice(), "1g.5gb"),
        ((ML, ALL), SpawnChoice("3g.20gb", "everyone"), "3g.20gb@everyone"),
        ((ML,), SpawnChoice("cpu", "ml"), "cpu"),
        ((ML,), SpawnChoice("7g.40gb", "ml"), "1g.5gb"),
        ((ML,), SpawnChoice("1g.5gb", "gone"), "1g.5gb"),
        ((ML,), SpawnChoice("borrow"), "1g.5gb"),
    ],
)
def test_trap_7_what_is_chosen_beforehand(
    courses: tuple[CourseOffers, ...], saved: SpawnChoice, preselected: str
):
    """What the student had last, and no other, while it is offered; else the course's default."""
    assert form(*courses, saved=saved).checked == [preselected]


def test_the_heading_is_the_course() -> None:
    """The only one there is."""
    for courses, heading in (((ML,), ML.title), ((ML, ALL), "Start a server")):
        offers = Offers(simulated=False, courses=courses)
        assert build_page(offers, SpawnChoice()).heading == heading


def test_borrowing_is_a_choice_where_a_course_lends():
    """One card beside the shapes and no GPU, chosen at first if the course says so."""
    lends = ML.model_copy(update={"borrow": ("1g.5gb", "3g.20gb"), "default": "borrow"})
    page = form(lends)
    assert [radio["value"] for radio in page.radios] == ["1g.5gb", "borrow", "cpu"]
    assert page.checked == ["borrow"]
    assert "Starts at once; a 1g.5gb is free to measure on now" in page.texts


def test_several_courses_share_one_group():
    """With several courses the shape carries its course, so that no script is needed."""
    page = form(ML, ALL)
    offered = ["1g.5gb@ml", "cpu@ml", "3g.20gb@everyone", "cpu@everyone"]
    assert [radio["value"] for radio in page.radios] == offered
    assert {radio["name"] for radio in page.radios} == {"shape"}
    assert (page.hidden, form(ML).hidden) == ({}, {"course": "ml"})


def test_without_the_pool_there_is_no_gpu_to_choose():
    """The page says why, and “no GPU” is chosen."""
    page = Form(render(page_without_pool("The pool is down.", "")))
    assert page.checked == ["cpu"]
    assert len(page.radios) == 1
    assert "The pool is down." in page.texts
    assert "What do these names mean?" not in page.texts


def test_one_click_returns():
    """Beside the news one button sends the form, in which the last choice is chosen; else none."""
    page = form(ALL, ML, saved=SpawnChoice("1g.5gb", "ml"), news="Its slice was reclaimed: unused.")
    assert page.buttons == ["submit"] and page.checked == ["1g.5gb@ml"]
    assert form(ALL, ML, saved=SpawnChoice("1g.5gb", "ml")).buttons == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "less than a minute"),
        (60, "about 1 minute"),
        (3000, "about 50 minutes"),
        (8000, "about 2 hours"),
    ],
)
def test_minutes(seconds: float, text: str):
    """Nobody plans by the second."""
    assert format_minutes(seconds) == text


@pytest.mark.parametrize(
    ("state", "position"),
    [
        (TicketState.WAITING, 2),
        (TicketState.WAITING, None),  # being made
        (TicketState.OFFERED, None),
        (TicketState.TAKEN, None),  # for a start that broke off
    ],
)
def test_a_ticket_that_outlived_its_start(state: TicketState, position: int | None):
    """Its shape is chosen whatever was chosen last; the line says the rest, and goes on with it."""
    ticket_fields = {"course": "everyone", "shape": "3g.20gb", "state": state}
    ticket = ticket_view(1, "ada", **ticket_fields, position=position, waiting=5)
    page = form(ML, ALL, saved=SpawnChoice("1g.5gb", "ml"), ticket=ticket)
    assert page.checked == ["3g.20gb@everyone"]


@pytest.mark.parametrize(
    ("shape", "of", "title", "lit"),
    [
        ("1g.5gb", 7, "Small: 1/7 of a GPU, 5 GB", 1),
        ("2x1g.5gb", 7, "2 × small: 1/7 of a GPU, 5 GB each", 2),
        ("4g.24gb", 4, "Whole GPU: 24 GB", 4),
        ("full", 7, "Whole GPU", 7),
        ("3g.20gb", 0, "Large: 20 GB", 0),  # of how many is not known: no picture
        ("big", 7, "big", 0),
    ],
)
def test_a_shape_in_words_and_as_a_picture(shape: str, of: int, title: str, lit: int):
    """What part of a GPU it is; nothing is made up where that is not known."""
    assert shape_title(shape, of) == title
    assert gpu_picture(shape, of).count('fill="currentColor"') == lit


def test_the_button_says_what_it_does() -> None:
    """Start what is free; else join the queue of all who wait, at its end, unless it is paused."""
    shapes = course(offer("1g.5gb", 3), offer("3g.20gb", waiting=2))
    people = Headcount(shape="1g.5gb", free=3, total=14, holding=9, waiting=11)
    for paused, second in (("", "Join the queue as 12th"), ("so", "Start")):
        offers = Offers(simulated=True, courses=(shapes,), people=people, paused=paused)
        (section,) = build_page(offers, SpawnChoice()).sections
        assert [card.action for card in section.cards] == ["Start", second, "Start"]
