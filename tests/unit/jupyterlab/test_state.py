"""What the front end is told: durations by one clock, and never more than is known."""

from dataclasses import replace
from typing import Any

import pytest

from miglab_api.leases import LeaseState, LeaseView, ServerStatus
from miglab_api.tickets import TicketState
from miglab_jupyterlab.state import (
    FIRST_LOOKS,
    MOST,
    NO_LEASE,
    History,
    KnownStatus,
    front_end_status,
    pause_s,
)

from .standin import NOW, lease_view, message, ticket_view, warning


def status_with(
    view: LeaseView | None, now: float = 100.0, before: KnownStatus | None = None
) -> KnownStatus:
    status = ServerStatus(lease=view).model_dump(mode="json")
    return (before or KnownStatus("1g.5gb")).with_answer_at(NOW, now).with_status(status)


def test_time_left_is_counted_by_one_clock():
    """The pool's clock is compared with itself alone, then seconds go by here."""
    front_end = front_end_status(status_with(lease_view(left_s=600), now=100.0), 130.0)
    assert front_end["state"] == "held"
    assert front_end["lease"]["left_s"] == 570
    assert front_end["lease"]["guaranteed_s"] is None
    open_ended = front_end_status(
        status_with(lease_view(left_s=None, guaranteed_s=600), now=100.0), 130.0
    )["lease"]
    assert (open_ended["left_s"], open_ended["guaranteed_s"]) == (None, 570)


def test_what_a_button_does_makes_the_line_no_younger():
    """The line comes with the whole status alone; a part of it leaves the line as old as it is."""
    assert front_end_status(KnownStatus("1g.5gb"), 100.0)["line_age_s"] == 0.0
    heard = status_with(lease_view(), now=100.0)
    extended = heard.with_answer_at(NOW + 10, 110.0).with_lease(
        lease_view().model_dump(mode="json")
    )
    requeued = extended.with_answer_at(NOW + 12, 112.0).with_part(ticket=None)
    assert front_end_status(heard, 105.0)["line_age_s"] == 5.0
    assert front_end_status(extended, 110.0)["line_age_s"] == 10.0
    assert front_end_status(requeued, 113.0)["line_age_s"] == 13.0
    again = status_with(lease_view(), now=115.0, before=requeued)
    assert front_end_status(again, 116.0)["line_age_s"] == 1.0


@pytest.mark.parametrize("used", [600, 0, None])
def test_what_is_told_of_a_lease(used: int | None):
    """NVML's None comes through: what is not known is not zero. Why it is warned, and for long."""
    front_end = front_end_status(status_with(lease_view(used_mib=used, warned=warning(60))), 110.0)
    assert (front_end["lease"]["memory_mib"], front_end["lease"]["memory_used_mib"]) == (4864, used)
    warning_fields = {
        "kind": "idle",
        "reason": "Nothing ran for 20 min.",
        "left_s": 50,
        "keepalives_left": 1,
    }
    assert {name: front_end["warning"][name] for name in warning_fields} == warning_fields


def test_while_the_pool_is_silent_what_was_known_ages():
    """Time goes on, and it is said how old it all is; an answer ends that."""
    silent = status_with(lease_view(left_s=600, warned=warning(60))).with_problem("silent")
    front_end = front_end_status(silent, 145.0)
    assert (front_end["problem"], front_end["silent_s"]) == ("silent", 45)
    assert (front_end["state"], front_end["lease"]["left_s"], front_end["warning"]["left_s"]) == (
        "held",
        555,
        15,
    )

    again = status_with(lease_view(), 120.0, silent)
    front_end = front_end_status(again, 120.0)
    assert (front_end["problem"], front_end["silent_s"], again.tried) == ("", None, 0)


OVER = "the class is over"
ENDING = status_with(lease_view(LeaseState.RELEASING, reason=OVER))


@pytest.mark.parametrize(
    ("state", "shows", "reason"),
    [
        (KnownStatus("1g.5gb"), "unknown", ""),
        (KnownStatus("cpu"), "none", ""),
        (status_with(lease_view()), "held", ""),
        (ENDING, "ending", OVER),
        (status_with(lease_view(LeaseState.RELEASED, reason=OVER)), "gone", OVER),
        (status_with(None, 100.0, ENDING), "gone", OVER),
        (status_with(None, 100.0, status_with(lease_view(warned=warning()))), "gone", NO_LEASE),
    ],
)
def test_a_slice_that_goes_keeps_its_reason(state: KnownStatus, shows: str, reason: str):
    """Before it is heard of, on the way, at its end, and when the pool has forgotten the lease."""
    front_end = front_end_status(state, 100.0)
    assert (front_end["state"], front_end["reason"], front_end["warning"]) == (shows, reason, None)
    assert front_end["shape"] == ("cpu" if shows == "none" else "1g.5gb")


def test_a_lease_never_seen_is_gone_in_the_pools_words():
    """Without a reason of its own; first it is only unknown, and asked for often."""
    status = ServerStatus(ticket=ticket_view(TicketState.WAITING)).model_dump(mode="json")
    before = KnownStatus("1g.5gb").with_answer_at(NOW, 100.0).with_status(status)
    assert (
        front_end_status(before, 100.0)["state"],
        front_end_status(before, 100.0)["ticket"],
    ) == ("unknown", None)
    assert pause_s(before, 15.0, 5.0, 60.0) == 5.0
    front_end = front_end_status(status_with(None, before=replace(before, unseen=FIRST_LOOKS)), 0.0)
    assert (front_end["state"], front_end["reason"]) == ("gone", NO_LEASE)


def waits(state: TicketState, **fields: Any) -> KnownStatus:
    status = ServerStatus(ticket=ticket_view(state, **fields), messages=(message(),))
    return KnownStatus("cpu").with_answer_at(NOW, 100.0).with_status(status.model_dump(mode="json"))


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
    place = front_end_status(waits(state), 130.0)["ticket"]
    assert (place["state"], place["left_s"]) == (shows, left_s)


def test_messages_end():
    """By the pool's clock; and one that was put away does not come back."""
    queued_status = waits(TicketState.WAITING)
    assert [m["left_s"] for m in front_end_status(queued_status, 130.0)["messages"]] == [570]
    assert front_end_status(queued_status, 701.0)["messages"] == []
    assert front_end_status(queued_status, 130.0, read={3})["messages"] == []


def _after(times: int) -> KnownStatus:
    state = status_with(lease_view())
    for _ in range(times):
        state = state.with_problem("silent")
    return state


@pytest.mark.parametrize(
    ("state", "pause"),
    [
        (status_with(lease_view()), 15),
        (_after(1), 15),
        (_after(2), 30),
        (_after(3), 60),
        (_after(2000), 60),
        (status_with(lease_view(warned=warning())), 5),
        (
            status_with(lease_view(warned=warning())).with_problem("silent").with_problem("silent"),
            5,
        ),
        (status_with(None), 5),
        (status_with(None, before=status_with(lease_view())), 60),
        (waits(TicketState.WAITING), 5),
        (waits(TicketState.WAITING).with_problem("silent").with_problem("silent"), 30),
        (waits(TicketState.OFFERED), 5),
        (waits(TicketState.EXPIRED), 15),
    ],
)
def test_how_soon_the_pool_is_asked_again(state: KnownStatus, pause: Any):
    """Ever later while it is silent, soon while warned whether it answers or not, and in front."""
    assert pause_s(state, 15, 5, 60) == pause


def test_what_measurements_borrow() -> None:
    """A server that borrows says whether a slice is held, or how many are ahead."""
    wait = {"likely_s": 20.0, "high_s": 30.0}
    waits = {"state": "waiting", "shape": "1g.5gb", "position": 4, "estimate": wait}
    server = KnownStatus("borrow")
    assert front_end_status(server, 0.0)["state"] == "none"
    assert front_end_status(server, 0.0)["borrow"] == {"state": "none", "shape": ""}
    borrowing = front_end_status(server.with_status({"borrowing": waits}), 0.0)["borrow"]
    assert borrowing == {"state": "waiting", "shape": "1g.5gb", "ahead": 3, **wait}
    borrowing = front_end_status(server.with_status({"borrowed": {"shape": "3g.20gb"}}), 0.0)[
        "borrow"
    ]
    assert borrowing == {"state": "held", "shape": "3g.20gb"}
    assert front_end_status(KnownStatus("cpu"), 0.0)["borrow"] is None


def used(*slices: tuple[float | None, float | None]) -> dict[str, object]:
    return {"slices": [{"memory_used_mib": used, "activity_pct": pct} for used, pct in slices]}


def test_points_have_an_age_and_what_is_not_known_stays_unknown():
    """Memory is the sum, activity the mean; one slice that tells nothing makes neither zero."""
    history = History()
    history.add(100.0, used((1000, 20.0), (500, 40.0)), runs=True)
    history.add(115.0, used((1000, None), (None, 40.0)), runs=False)
    assert history.points(120.0) == [[20, 1500, 30.0, True], [5, None, None, False]]


def test_a_long_lease_is_thinned_and_keeps_its_beginning():
    """However long it lasts, no more is told than can be drawn."""
    history = History()
    for at in range(5 * MOST):
        history.add(float(at), used((at, None)), runs=False)
    points = history.points(5.0 * MOST)
    assert len(points) <= MOST
    assert points[0][1] == 0 and points[-1][1] >= 5 * MOST - 2


@pytest.mark.parametrize(
    ("ticket", "pause"),
    [
        (ticket_view(position=None), 1.0),
        (ticket_view(position=3), 5.0),
        (ticket_view(position=4), 15.0),
        (ticket_view(position=None, message="Over your quota."), 15.0),
    ],
)
def test_what_comes_soon_is_looked_at_often(ticket: Any, pause: float):
    """A slice that is made is there in seconds; those in front may be offered one at any moment."""
    status = ServerStatus(ticket=ticket).model_dump(mode="json")
    waiting = KnownStatus("cpu").with_answer_at(NOW, 100.0).with_status(status)
    assert pause_s(waiting, 15.0, 5.0, 60.0) == pause
