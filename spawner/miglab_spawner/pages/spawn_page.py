"""The spawn page: offers in, HTML out.  Pure but for the template it loads from the package.

The page is a form snippet inside JupyterHub's own page, works without JavaScript, and knows neither
the spawner nor the pool: it is shown a `Page`.  What a student chose, by form, query or API call,
is read without judging it: the pool decides what a user may have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from miglab_api.base import COURSE_MAX, SHAPE_MAX
from miglab_api.offers import BORROW, CPU, CourseOffers, Offers, QuotaLeft, ShapeOffer
from miglab_api.tickets import TicketView
from miglab_api.wording import (
    duration,
    estimated_wait,
    free_in_words,
    gpu_picture,
    ordinal,
    people_in_words,
    shape_title,
)


class BadChoice(ValueError):
    """An option cannot be read; the message says which and why."""


@dataclass(frozen=True)
class SpawnChoice:
    """A shape and a course; an empty one means: the default."""

    shape: str = ""
    course: str = ""


def is_cpu(shape: str) -> bool:
    """Whether a shape needs no GPU, and so no pool."""
    return shape.strip().lower() == CPU


def is_borrow(shape: str) -> bool:
    """Whether a server holds no slice, and its measurements borrow one."""
    return shape.strip().lower() == BORROW


def needs_slice(shape: str) -> bool:
    """Whether a server of this shape holds a slice."""
    return not (is_cpu(shape) or is_borrow(shape))


def from_form(formdata: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Convert form or query data (lists of strings) to the options that JupyterHub stores.

    The shape may carry its course (``1g.5gb@course``): that is how one group of radio buttons
    offers the shapes of several courses.
    """
    shape, _, course = _first(formdata, "shape").partition("@")
    options = {"shape": shape, "course": course or _first(formdata, "course")}
    return {key: value for key, value in options.items() if value}


def parse_choice(options: Mapping[str, Any]) -> SpawnChoice:
    """Parse the choice in a server's options, which an API call may have filled with anything.

    Raises:
        BadChoice: shape or course is not a short text.
    """
    return SpawnChoice(
        shape=_short_text(options, "shape", SHAPE_MAX),
        course=_short_text(options, "course", COURSE_MAX),
    )


def without_choice(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without shape and course, for the start after a permanent refusal."""
    return {key: value for key, value in options.items() if key not in {"shape", "course"}}


def _first(formdata: Mapping[str, Sequence[str]], key: str) -> str:
    values = formdata.get(key) or [""]
    return values[0].strip()


def _short_text(options: Mapping[str, Any], key: str, longest: int) -> str:
    value = options.get(key) or ""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise BadChoice(f"“{key}” must be a text, not {type(value).__name__}.")
    value = value.strip()
    if len(value) > longest:
        raise BadChoice(f"“{key}” is longer than {longest} characters.")
    return value


_CPU_GOOD_FOR = "Writing, reading, small data. You can move to a slice later."
_PAUSED = "Until staff resume, nobody gets a new slice; you can start without a GPU."
_UNKNOWN_WAIT = "Where no wait is given, it cannot be estimated yet."
_AT_ITS_END = "You are warned before it ends, and your files stay."

_BORROW_GOOD_FOR = (
    "Experiments and short trainings with labkit, on one shape or on several in turn. "
    "Nothing stays in GPU memory between two measurements."
)

_templates = Environment(
    loader=PackageLoader("miglab_spawner.pages"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class ShapeCard:
    """One choice on the page.

    Attributes:
        value: what the form sends back.
        facts: size, in a few words; empty for no GPU.
        now: whether one can have it now, or how long the wait is.
        is_free: whether it would start at once.
        shape: the profiles, as their names are; empty where the title says it all.
        picture: the part of a GPU that it is, as SVG; empty where that is not known.
        action: what the button does when this is chosen.
        is_possible: whether it can be had at all, now or after a wait.
    """

    value: str
    title: str
    facts: str
    good_for: str
    now: str
    is_free: bool
    is_chosen: bool
    shape: str = ""
    picture: str = ""
    action: str = "Start"
    is_possible: bool = True


@dataclass(frozen=True)
class CourseSection:
    """The cards of one course.

    Attributes:
        course: what the form sends back; empty if the cards do.
        conditions: for how long a slice is guaranteed, and what the quotas leave, a sentence each.
    """

    title: str
    course: str
    cards: tuple[ShapeCard, ...]
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """All that the template shows.

    Attributes:
        trouble: why there is no GPU to choose, in words; empty if there is.
        news: what the student should know from the last time; empty if nothing.
        people: how many hold slices and wait, in words; empty where that is not counted.
        unknown_wait: that some waits are not known yet, in words; empty if all are.
    """

    sections: tuple[CourseSection, ...]
    simulated: bool = False
    trouble: str = ""
    news: str = ""
    people: str = ""
    unknown_wait: str = ""

    @property
    def heading(self) -> str:
        """The course's name, for a student of one course."""
        titles = [section.title for section in self.sections if section.title]
        return titles[0] if len(titles) == 1 else "Start a server"

    @property
    def has_slices(self) -> bool:
        """Whether there is a slice to choose."""
        return any(len(section.cards) > 1 for section in self.sections)


def render(page: Page) -> str:
    """Return the page's HTML."""
    return _templates.get_template("spawn_page.html").render(page=page)


def build_page(
    offers: Offers, saved: SpawnChoice, news: str = "", ticket: TicketView | None = None
) -> Page:
    """Build the page for the pool's offers; ``saved`` is the student's last choice.

    What the server waits for is chosen again, or else the last choice, if it is still offered; else
    the first course's default; else no GPU.
    """
    if ticket is not None:
        saved = SpawnChoice(ticket.shape, ticket.course)
    if not offers.courses:
        return page_without_pool("None of your courses offers a GPU.", news)
    course, shape = _preselected(offers.courses, saved)
    sections = tuple(
        _section(course_offers, shape if course_offers.course == course else None, offers)
        for course_offers in offers.courses
    )
    pause_reason = offers.paused.rstrip(".") if offers.paused else ""
    trouble = f"The pool is paused: {pause_reason}. {_PAUSED}" if pause_reason else ""
    people = "" if offers.people is None else people_in_words(offers.people)
    all_shapes = [shape for course_offers in offers.courses for shape in course_offers.shapes]
    unknown_wait = _UNKNOWN_WAIT if any(map(_has_unknown_wait, all_shapes)) else ""
    return Page(sections, offers.simulated, trouble, news, people, unknown_wait)


def page_without_pool(trouble: str, news: str = "", held_up: str = "") -> Page:
    """Build the page with “no GPU” as the only choice, which may be held up as well."""
    card = _cpu_card(CPU, is_chosen=True, held_up=held_up)
    return Page((CourseSection("", "", (card,)),), trouble=trouble, news=news)


def format_minutes(seconds: float) -> str:
    """Return a wait in words, to the minute or the hour."""
    if seconds < 90 * 60:
        return duration(seconds) if round(seconds / 60) < 1 else f"about {duration(seconds)}"
    return f"about {round(seconds / 3600)} hours"


def format_gib(mebibytes: int) -> str:
    """Return memory in GiB: ``4.75 GiB``, ``20 GiB``."""
    return f"{mebibytes / 1024:.2f}".rstrip("0").rstrip(".") + " GiB"


def _preselected(courses: Sequence[CourseOffers], saved: SpawnChoice) -> tuple[str, str]:
    for course in courses:
        if saved.shape in _choices(course) and saved.course in ("", course.course):
            return course.course, saved.shape
    return courses[0].course, courses[0].default


def _choices(offers: CourseOffers) -> list[str]:
    """Return the shapes that a student of a course can choose."""
    borrow = [BORROW] if offers.borrow else []
    return [CPU, *borrow, *(offer.shape for offer in offers.shapes)]


def _section(offers: CourseOffers, chosen_shape: str | None, all_: Offers) -> CourseSection:
    several = len(all_.courses) > 1
    suffix = f"@{offers.course}" if several else ""
    gpu_offers = [offer for offer in offers.shapes if not is_cpu(offer.shape)]
    if chosen_shape is not None and chosen_shape not in _choices(offers):
        chosen_shape = CPU
    cards = [
        _card(offer, offer.shape + suffix, offer.shape == chosen_shape, all_)
        for offer in gpu_offers
    ]
    if offers.borrow:
        cards.append(_borrow_card(offers, BORROW + suffix, chosen_shape == BORROW))
    cpu = next((offer for offer in offers.shapes if is_cpu(offer.shape)), None)
    held_up = (cpu.never or cpu.held_up) if cpu is not None else ""
    slow = cpu.slow if cpu is not None else ""
    cards.append(_cpu_card(CPU + suffix, chosen_shape == CPU, held_up, slow))
    return CourseSection(
        offers.title or offers.course,
        "" if several else offers.course,
        tuple(cards),
        (
            *_guarantee_sentence(offers.guaranteed_s),
            *map(_quota_sentence, offers.left),
        ),
    )


def _guarantee_sentence(guaranteed_s: float | None) -> tuple[str, ...]:
    """Return how long a slice is guaranteed; empty where leases have a fixed end."""
    if guaranteed_s is None:
        return ()
    if not guaranteed_s:
        return (f"A slice is yours as long as nobody needs it. {_AT_ITS_END}",)
    how_long = f"guaranteed for {duration(guaranteed_s)}, then yours as long as nobody needs it"
    return (f"A slice is {how_long}. {_AT_ITS_END}",)


def _quota_sentence(quota: QuotaLeft) -> str:
    """Return a sentence on what a quota leaves."""
    owner = "Left for your course" if quota.is_shared else "Left for you"
    remaining = max(0.0, quota.most - quota.used)
    if quota.limit == "memory_slices":
        return f"{owner}: {remaining:g} of {quota.most:g} memory slices at a time."
    sentence = f"{owner}: {remaining:.1f} of {quota.most:g} slice-hours in seven days"
    if quota.more_in_s is None:
        return sentence + "."
    return f"{sentence}; some are back in {format_minutes(quota.more_in_s)}."


def _card(offer: ShapeOffer, value: str, is_chosen: bool, offers: Offers) -> ShapeCard:
    sms = f"{offer.sm_count} SMs" if offer.sm_count else ""
    memory = f"{format_gib(offer.memory_mib)} of GPU memory" if offer.memory_mib else ""
    facts = ", ".join(filter(None, (sms, memory)))
    if offer.slices > 1:
        facts = ", ".join(filter(None, (f"{offer.slices} slices", facts and f"{facts} each")))
    never = "the pool is paused" if offers.paused else offer.never
    is_free = (offer.free_now or 0) > 0 and not never
    position = (offer.waiting if offers.people is None else offers.people.waiting) + 1
    title = shape_title(offer.shape, offer.compute_slices)
    return ShapeCard(
        value, title, facts, offer.good_for,
        f"Not available: {never}" if never else _availability(offer), is_free, is_chosen,
        shape="" if title == offer.shape else offer.shape,
        picture=gpu_picture(offer.shape, offer.compute_slices),
        action="Start" if is_free or never else f"Join the queue as {ordinal(position)}",
        is_possible=not never,
    )  # fmt: skip


def _availability(offer: ShapeOffer) -> str:
    free = free_in_words(offer.free_now or 0, offer.total)
    if offer.held_up:
        return f"{free}. {offer.held_up}"
    if offer.free_now:
        return ", ".join(filter(None, (free, offer.shortened, offer.slow)))
    sentences = [f"{free}, {_queue_sentence(offer)}.", *_wait_sentence(offer)]
    return " ".join(sentences)


def _queue_sentence(offer: ShapeOffer) -> str:
    waiting = f"{offer.waiting} waiting" if offer.waiting else ""
    if offer.reserved_s is not None:
        free = f"unused slots are free in {format_minutes(offer.reserved_s)}"
        return ", ".join(filter(None, (waiting, f"the free room is reserved for a class; {free}")))
    if offer.is_held:
        return ", ".join(
            filter(None, (waiting, "the free room is held for the first in the queue"))
        )
    return waiting or "nobody waiting yet"


def _wait_sentence(offer: ShapeOffer) -> tuple[str, ...]:
    """Return how long a wait lasts; empty where that is not known, which the page says once."""
    if offer.wait is None:
        return ()
    return (f"Estimated wait: {estimated_wait(offer.wait)}.",)


def _has_unknown_wait(offer: ShapeOffer) -> bool:
    """Whether a student who chooses a shape waits, and nobody knows how long."""
    is_waited_for = offer.free_now == 0 and not offer.never and not offer.held_up
    return is_waited_for and offer.wait is None


def _cpu_card(value: str, is_chosen: bool, held_up: str = "", slow: str = "") -> ShapeCard:
    now = held_up or f"Always free; {slow or 'starts at once'}"
    return ShapeCard(value, "No GPU", "", _CPU_GOOD_FOR, now, not held_up, is_chosen)


def _borrow_card(offers: CourseOffers, value: str, is_chosen: bool) -> ShapeCard:
    """Return the card for borrowing, which starts at once and queues at the first measurement."""
    now = "Starts at once"
    if any(offer.free_now and offer.shape == offers.borrow[0] for offer in offers.shapes):
        now += f"; a {offers.borrow[0]} is free to measure on now"
    lent = f"{', '.join(offers.borrow)}, each only while something runs on it"
    title = "Borrow a slice when measuring"
    return ShapeCard(value, title, lent, _BORROW_GOOD_FOR, now, True, is_chosen)
