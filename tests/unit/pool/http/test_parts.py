"""Parts are drawn anew when what they are made of is another, and for each viewer."""

from miglab_pool.http.access.principal import Principal, PrincipalKind
from miglab_pool.http.pages.pool_page import AGED_S, PagePart, PartsCache, Shelves

ALICE = Principal(PrincipalKind.PERSON, "alice")


class Counter:
    """Draws an empty line, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> object:
        self.times += 1
        return type("Line", (), {"rows": [], "shapes": []})


def part(shelf: PartsCache, made_of: object, draw: Counter, now: float = 0.0) -> PagePart[object]:
    return shelf.part("queue", "part_queue.html", made_of, draw, now)


def test_the_same_is_not_drawn_again() -> None:
    """What compares equal is the same, though it is another object."""
    shelf, draw = PartsCache({}), Counter()
    first = part(shelf, [1, 2], draw)
    assert part(shelf, [1, 2], draw) is first
    assert draw.times == 1
    part(shelf, [1, 3], draw)
    assert draw.times == 2


def test_words_about_time_do_not_grow_old() -> None:
    """After half a minute it is drawn again; with the same HTML it has the same version."""
    shelf, draw = PartsCache({}), Counter()
    first = part(shelf, [1], draw)
    again = part(shelf, [1], draw, AGED_S + 1)
    assert (draw.times, again.version) == (2, first.version)


def test_everybody_has_their_own() -> None:
    """The same name with another role is another viewer; another browser of theirs is not."""
    shelves = Shelves({})
    assert shelves.of(ALICE) is shelves.of(Principal(PrincipalKind.PERSON, "alice", xsrf="other"))
    others = [
        Principal(PrincipalKind.PERSON, "alice", admin=True),
        Principal(PrincipalKind.PERSON, "alice", assists=frozenset({"ml"})),
        Principal(PrincipalKind.SERVICE, "alice"),
        Principal(PrincipalKind.PERSON, "bob"),
    ]
    assert all(shelves.of(other) is not shelves.of(ALICE) for other in others)


def test_there_is_an_end_to_shelves() -> None:
    """Who has not looked for the longest time gives way."""
    shelves = Shelves({}, limit=2)
    first = shelves.of(ALICE)
    shelves.of(Principal(PrincipalKind.PERSON, "bob"))
    assert shelves.of(ALICE) is first
    shelves.of(Principal(PrincipalKind.PERSON, "carla"))
    assert shelves.of(ALICE) is first
    shelves.of(Principal(PrincipalKind.PERSON, "dora"))
    shelves.of(Principal(PrincipalKind.PERSON, "emil"))
    assert shelves.of(ALICE) is not first
