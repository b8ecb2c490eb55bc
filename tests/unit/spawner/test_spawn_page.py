"""The spawn page: what is offered, what is chosen beforehand, and what it says."""

from html.parser import HTMLParser

import pytest
from tests.unit.pool.http.fakes import ticket_view

from miglab_api.offers import CourseOffers, Offers, QuotaLeft, ShapeOffer
from miglab_api.shape_words import gpu_picture, shape_title
from miglab_api.tickets import Headcount, TicketState, WaitEstimate
from miglab_spawner.pages.choice import SpawnChoice
from miglab_spawner.pages.spawn_page import in_gib, in_minutes, page_of, page_without_pool, render


def offer(shape: str, free: int = 0, **more: object) -> ShapeOffer:
    values = {"sm_count": 14, "memory_mib": 4864, "slices": 1, "good_for": "A small net."}
    return ShapeOffer(shape=shape, free_now=free, **{**values, **more})  # type: ignore[arg-type]


ML = CourseOffers(
    course="ml", title="Deep <Learning>", shapes=(offer("1g.5gb", 3),), default="1g.5gb"
)
ALL = CourseOffers(course="everyone", title="", shapes=(offer("3g.20gb"),), default="3g.20gb")


class Form(HTMLParser):
    """The form's fields, as a browser would send them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.radios: list[dict[str, str | None]] = []
        self.hidden: dict[str, str | None] = {}
        self.words: list[str] = []
        self.buttons: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "button":
            self.buttons.append(found["type"])
        elif tag == "input" and found["type"] == "radio":
            self.radios.append(found)
        elif tag == "input":
            self.hidden[str(found["name"])] = found["value"]

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    @property
    def chosen(self) -> list[str | None]:
        return [radio["value"] for radio in self.radios if "checked" in radio]


def form(*courses: CourseOffers, saved: SpawnChoice | None = None, **more: str) -> Form:
    offers = Offers(simulated=False, courses=courses, paused=more.get("paused", ""))
    return Form(render(page_of(offers, saved or SpawnChoice(), more.get("news", ""))))


def test_a_card_says_size_use_and_wait():
    """SMs, memory, what it is good for, how many are free; titles are escaped."""
    text = " ".join(form(ML).words)
    said = ("14 SMs, 4.75 GiB", "A small net.", "3 free", "Deep <Learning>", "No GPU")
    assert [words for words in said if words not in text] == []
    assert [in_gib(mib) for mib in (4864, 20480)] == ["4.75 GiB", "20 GiB"]


def test_what_a_site_does_not_say_is_left_out():
    """No 0 SMs and no 0 GiB; and what holds a shape up is said, without a GPU too."""
    sizes = {"sm_count": 0, "memory_mib": 0, "held_up": "Its nodes are down."}
    bare = [offer(name).model_copy(update=sizes) for name in ("1g.5gb", "2x1g.5gb", "cpu")]
    bare[1] = bare[1].model_copy(update={"slices": 2})
    text = " ".join(form(ML.model_copy(update={"shapes": tuple(bare)})).words)
    assert "0 SMs" not in text and "0 GiB" not in text
    assert "2 slices" in text
    assert text.count("Its nodes are down.") == 3
    assert "Always free" not in text


@pytest.mark.parametrize(
    ("courses", "saved", "chosen"),
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
    courses: tuple[CourseOffers, ...], saved: SpawnChoice, chosen: str
):
    """What the student had last, and no other, while it is offered; else the course's default."""
    assert form(*courses, saved=saved).chosen == [chosen]


def test_the_heading_is_the_course():
    """With several courses each has its own heading below."""
    assert page_of(Offers(simulated=False, courses=(ML,)), SpawnChoice()).heading == ML.title
    both = page_of(Offers(simulated=False, courses=(ML, ALL)), SpawnChoice())
    assert both.heading == "Start a server"
    assert ML.title in form(ML, ALL).words


def test_borrowing_is_a_choice_where_a_course_lends():
    """One card beside the shapes and no GPU, chosen at first if the course says so."""
    lends = ML.model_copy(update={"borrow": ("1g.5gb", "3g.20gb"), "default": "borrow"})
    form = Form(render(page_of(Offers(simulated=False, courses=(lends,)), SpawnChoice())))
    assert [radio["value"] for radio in form.radios] == ["1g.5gb", "borrow", "cpu"]
    assert form.chosen == ["borrow"]
    assert "Starts at once; a 1g.5gb is free to measure on now" in form.words


def test_several_courses_share_one_group():
    """With several courses the shape carries its course, so that no script is needed."""
    page = form(ML, ALL)
    offered = ["1g.5gb@ml", "cpu@ml", "3g.20gb@everyone", "cpu@everyone"]
    assert [radio["value"] for radio in page.radios] == offered
    assert {radio["name"] for radio in page.radios} == {"shape"}
    assert (page.hidden, form(ML).hidden) == ({}, {"course": "ml"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "0 free, nobody waiting yet. The wait cannot be estimated."),
        ({"waiting": 2}, "2 waiting. The wait cannot be estimated."),
        ({"is_held": True}, "0 free, the free room is held for the first in the queue. The wait"),
        ({"reserved_s": 600.0}, "is reserved for a class; unused slots are free in about 10 m"),
        ({"is_held": True, "waiting": 2}, "0 free, 2 waiting, the free room is held for the first"),
        (
            {"wait": WaitEstimate(low_s=660, likely_s=900, high_s=1400, basis="")},
            "Estimated wait: about 10–25 minutes.",
        ),
    ],
)
def test_the_wait_is_said(more: dict[str, object], words: str):
    """Who must wait reads how many wait, for what, and how long that is likely to last."""
    course = CourseOffers(course="c", title="", shapes=(offer("1g.5gb", **more),), default="cpu")
    assert words in " ".join(form(course).words)


def test_counts_are_of_people():
    """How many could have the shape, of how many; and who holds and waits, in the same words."""
    shapes = (offer("1g.5gb", free=14, total=14),)
    course = CourseOffers(course="c", title="", shapes=shapes, default="cpu")
    people = Headcount(shape="1g.5gb", free=14, total=14, holding=9, waiting=13)
    offers = Offers(simulated=True, courses=(course,), people=people)
    page = Form(render(page_of(offers, SpawnChoice())))
    assert "14 of 14 free" in page.words
    assert "All shapes share one queue: 9 hold, 13 wait." in page.words


def test_without_the_pool_there_is_no_gpu_to_choose():
    """The page says why, and “no GPU” is chosen."""
    page = Form(render(page_without_pool("The pool is down.", "")))
    assert page.chosen == ["cpu"]
    assert len(page.radios) == 1
    assert "The pool is down." in page.words
    names = "What do these names mean?"
    assert names not in page.words and names in form(ML).words


def test_news_and_pause_are_shown():
    """Why the last server ended, and that the pool is paused."""
    words = " ".join(form(ML, news="It ran out of memory.", paused="maintenance").words)
    assert "It ran out of memory." in words
    assert "The pool is paused: maintenance. Until staff resume, nobody" in words
    assert "Not available: the pool is paused" in words
    [section] = page_of(Offers(simulated=False, courses=(ML,), paused="so"), SpawnChoice()).sections
    assert {card.action for card in section.cards} == {"Start"}  # no queue can be joined now


def test_one_click_returns():
    """Beside the news one button sends the form, in which the last choice is chosen; else none."""
    page = form(ALL, ML, saved=SpawnChoice("1g.5gb", "ml"), news="Its slice was reclaimed: unused.")
    assert page.buttons == ["submit"] and page.chosen == ["1g.5gb@ml"]
    assert form(ALL, ML, saved=SpawnChoice("1g.5gb", "ml")).buttons == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (5, "less than a minute"),
        (60, "about 1 minute"),
        (3000, "about 50 minutes"),
        (8000, "about 2 hours"),
    ],
)
def test_minutes(seconds: float, words: str):
    """Nobody plans by the second."""
    assert in_minutes(seconds) == words


def test_the_page_says_what_the_quotas_leave():
    """Slices at a time, hours of the week and when some are back; whose."""
    left = (
        QuotaLeft(quota="each", limit="memory_slices", most=4, used=1),
        QuotaLeft(quota="each", limit="slice_hours_week", most=10, used=10, more_in_s=7200),
        QuotaLeft(quota="all", limit="slice_hours_week", is_shared=True, most=90, used=12.25),
    )
    text = " ".join(form(ML.model_copy(update={"left": left})).words)
    for words in (
        "Left for you: 3 of 4 memory slices at a time.",
        "Left for you: 0.0 of 10 slice-hours in seven days; some are back in about 2 hours.",
        "Left for your course: 77.8 of 90 slice-hours in seven days.",
    ):
        assert words in text
    assert "Left for" not in " ".join(form(ML).words)


OPEN = "yours as long as nobody needs it. You are warned before it ends, and your files stay."


@pytest.mark.parametrize(
    ("guaranteed_s", "words"),
    [
        (5400, f"A slice is guaranteed for 1 hour 30 minutes, then {OPEN}"),
        (0, f"A slice is {OPEN}"),
    ],
)
def test_the_page_says_for_how_long_a_slice_is_guaranteed(guaranteed_s: float, words: str):
    """Before the start; and nothing where leases end when they are set to."""
    text = " ".join(form(ML.model_copy(update={"guaranteed_s": guaranteed_s})).words)
    assert words in text
    assert "nobody needs it" not in " ".join(form(ML).words)


@pytest.mark.parametrize(
    ("state", "position", "words"),
    [
        (TicketState.WAITING, 2, "You are 2nd of 5 in the queue, waiting for 3g.20gb. Your posi"),
        (TicketState.WAITING, None, "A 3g.20gb is held for you"),  # being made
        (TicketState.OFFERED, None, "A 3g.20gb is held for you"),
        (TicketState.TAKEN, None, "A 3g.20gb is held for you"),  # for a start that broke off
    ],
)
def test_a_ticket_that_outlived_its_start(state: TicketState, position: int | None, words: str):
    """It is said, its shape is chosen whatever was chosen last, and one button goes on with it."""
    mine = {"course": "everyone", "shape": "3g.20gb", "state": state}
    ticket = ticket_view(1, "ada", **mine, position=position, waiting=5)
    offers = Offers(simulated=False, courses=(ML, ALL))
    page = Form(render(page_of(offers, SpawnChoice("1g.5gb", "ml"), "", ticket)))
    assert words in " ".join(page.words)
    assert page.chosen == ["3g.20gb@everyone"]
    assert page.buttons == ["submit"]


@pytest.mark.parametrize(
    ("shape", "of", "words", "lit"),
    [
        ("1g.5gb", 7, "Small: 1/7 of a GPU, 5 GB", 1),
        ("2x1g.5gb", 7, "2 × small: 1/7 of a GPU, 5 GB each", 2),
        ("4g.24gb", 4, "Whole GPU: 24 GB", 4),
        ("full", 7, "Whole GPU", 7),
        ("3g.20gb", 0, "Large: 20 GB", 0),  # of how many is not known: no picture
        ("big", 7, "big", 0),
    ],
)
def test_a_shape_in_words_and_as_a_picture(shape: str, of: int, words: str, lit: int):
    """What part of a GPU it is; nothing is made up where that is not known."""
    assert shape_title(shape, of) == words
    assert gpu_picture(shape, of).count('fill="currentColor"') == lit


def test_the_button_says_what_it_does():
    """Start what is free; else join the queue of all who wait, at its end."""
    shapes = (offer("1g.5gb", 3), offer("3g.20gb", waiting=2))
    course = CourseOffers(course="c", title="", shapes=shapes, default="cpu")
    people = Headcount(shape="1g.5gb", free=3, total=14, holding=9, waiting=11)
    page = page_of(Offers(simulated=True, courses=(course,), people=people), SpawnChoice())
    actions = [card.action for card in page.sections[0].cards]
    assert actions == ["Start", "Join the queue as 12th", "Start"]
