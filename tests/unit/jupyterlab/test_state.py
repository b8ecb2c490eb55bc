"""What the front end is told: durations by one clock, and never more than is known."""

from dataclasses import replace
from typing import Any

import pytest

from miglab_api.leases import LeaseState, LeaseView, ServerStatus
from miglab_api.tickets import TicketState
from miglab_jupyterlab.state import FIRST_LOOKS, KnownStatus, pause_s, shown

from .standin import NOW, lease_view, message, ticket_view, warning


def known(
    view: LeaseView | None, now: float = 100.0, before: KnownStatus | None = None
) -> KnownStatus:
    status = ServerStatus(lease=view).model_dump(mode="json")
    return (before or KnownStatus("1g.5gb")).heard(status, NOW, now)


def test_before_the_first_answer_nothing_is_known():
    """The shape is the spawner's word; the rest is not made up."""
    told = shown(KnownStatus("1g.5gb"), 0.0)
    assert (told["state"], told["shape"]) == ("unknown", "1g.5gb")
    assert (told["lease"], told["warning"]) == (None, None)


def test_a_server_without_a_slice():
    """It has none, and none was lost."""
    assert shown(KnownStatus("cpu"), 0.0)["state"] == "none"


def test_time_left_is_counted_by_one_clock():
    """The pool's clock is compared with itself alone, then seconds go by here."""
    told = shown(known(lease_view(left_s=600), now=100.0), 130.0)
    assert told["state"] == "held"
    assert told["lease"]["left_s"] == 570
    assert told["lease"]["guaranteed_s"] is None
    open_ended = shown(known(lease_view(left_s=None, guaranteed_s=600), now=100.0), 130.0)["lease"]
    assert (open_ended["left_s"], open_ended["guaranteed_s"]) == (None, 570)


@pytest.mark.parametrize(("used", "shows"), [(600, 600), (0, 0), (None, None)])
def test_memory_that_is_not_known_is_not_zero(used: int | None, shows: int | None):
    """NVML's None comes through."""
    told = shown(known(lease_view(used_mib=used)), 100.0)["lease"]
    assert (told["memory_mib"], told["memory_used_mib"]) == (4864, shows)


def test_a_warning_says_why_and_how_long():
    """With what still helps against it."""
    told = shown(known(lease_view(warned=warning(60))), 110.0)
    assert told["warning"] == {
        "kind": "idle",
        "reason": "Nothing ran for 20 min.",
        "left_s": 50,
        "keepalives_left": 1,
    }


def test_while_the_pool_is_silent_what_was_known_ages():
    """Time goes on, and it is said how old it all is."""
    silent = known(lease_view(left_s=600, warned=warning(60))).no_news("silent")
    told = shown(silent, 145.0)
    assert (told["problem"], told["silent_s"]) == ("silent", 45)
    assert (told["state"], told["lease"]["left_s"], told["warning"]["left_s"]) == ("held", 555, 15)


def test_an_answer_ends_the_silence():
    """Nothing of the problem is left."""
    again = known(lease_view(), 120.0, known(lease_view()).no_news("silent"))
    told = shown(again, 120.0)
    assert (told["problem"], told["silent_s"], again.tried) == ("", None, 0)


def test_a_slice_that_goes_keeps_its_reason():
    """On the way, at its end, and when the pool has forgotten the lease."""
    ending = known(lease_view(LeaseState.RELEASING, reason="the class is over"))
    assert shown(ending, 100.0)["state"] == "ending"
    for gone in (
        known(lease_view(LeaseState.RELEASED, reason="the class is over")),
        known(None, 100.0, ending),
    ):
        told = shown(gone, 100.0)
        assert (told["state"], told["reason"]) == ("gone", "the class is over")


def test_a_lease_never_seen_is_gone_in_the_pools_words():
    """Without a reason of its own; first it is only unknown, and asked for often."""
    status = ServerStatus(ticket=ticket_view(TicketState.WAITING)).model_dump(mode="json")
    before = KnownStatus("1g.5gb").heard(status, NOW, 100.0)
    assert (shown(before, 100.0)["state"], shown(before, 100.0)["ticket"]) == ("unknown", None)
    assert pause_s(before, 15.0, 5.0, 60.0) == 5.0
    told = shown(known(None, before=replace(before, unseen=FIRST_LOOKS)), 0.0)
    assert (told["state"], told["reason"]) == ("gone", "This server holds no GPU slice.")


def test_gone_outlives_a_warning():
    """Nothing is warned of that has happened."""
    gone = known(None, 100.0, known(lease_view(warned=warning())))
    assert shown(gone, 100.0)["warning"] is None


def waits(state: TicketState, **more: Any) -> KnownStatus:
    status = ServerStatus(ticket=ticket_view(state, **more), messages=(message(),))
    return KnownStatus("cpu").heard(status.model_dump(mode="json"), NOW, 100.0)


@pytest.mark.parametrize(
    ("state", "shows", "left_s"),
    [
        (TicketState.WAITING, "waiting", None),
        (TicketState.OFFERED, "offered", 270),
        (TicketState.TAKEN, "offered", None),  # a move that did not come off: it is still there
        (TicketState.EXPIRED, "over", None),
        (TicketState.REFUSED, "over", None),
        (TicketState.CANCELLED, "over", None),
    ],
)
def test_a_ticket_as_the_student_sees_it(state: TicketState, shows: str, left_s: float | None):
    """Three words, and how long an offer is held yet, by one clock."""
    place = shown(waits(state), 130.0)["ticket"]
    assert (place["state"], place["left_s"]) == (shows, left_s)


def test_messages_end():
    """By the pool's clock; and one that was put away does not come back."""
    told = waits(TicketState.WAITING)
    assert [one["left_s"] for one in shown(told, 130.0)["messages"]] == [570]
    assert shown(told, 701.0)["messages"] == []
    assert shown(told, 130.0, read={3})["messages"] == []


def _after(times: int) -> KnownStatus:
    state = known(lease_view())
    for _ in range(times):
        state = state.no_news("silent")
    return state


@pytest.mark.parametrize(
    ("state", "pause"),
    [
        (known(lease_view()), 15),
        (_after(1), 15),
        (_after(2), 30),
        (_after(3), 60),
        (_after(2000), 60),
        (known(lease_view(warned=warning())), 5),
        (known(lease_view(warned=warning())).no_news("silent").no_news("silent"), 5),
        (known(None), 5),
        (known(None, before=known(lease_view())), 60),
        (waits(TicketState.WAITING), 15),
        (waits(TicketState.OFFERED), 5),
        (waits(TicketState.EXPIRED), 15),
    ],
)
def test_how_soon_the_pool_is_asked_again(state: KnownStatus, pause: Any):
    """Ever later while it is silent, soon while warned whether it answers or not."""
    assert pause_s(state, 15, 5, 60) == pause


def test_what_measurements_borrow() -> None:
    """A server that borrows says whether a slice is held, or how many are ahead."""
    wait = {"likely_s": 20.0, "high_s": 30.0}
    waits = {"state": "waiting", "shape": "1g.5gb", "position": 4, "estimate": wait}
    server = KnownStatus("borrow")
    assert shown(server, 0.0)["state"] == "none"
    assert shown(server, 0.0)["borrow"] == {"state": "none", "shape": ""}
    told = shown(server.heard({"borrowing": waits}, NOW, 0.0), 0.0)["borrow"]
    assert told == {"state": "waiting", "shape": "1g.5gb", "ahead": 3, **wait}
    told = shown(server.heard({"borrowed": {"shape": "3g.20gb"}}, NOW, 0.0), 0.0)["borrow"]
    assert told == {"state": "held", "shape": "3g.20gb"}
    assert shown(KnownStatus("cpu"), 0.0)["borrow"] is None
