"""What an act of staff makes of a row: pure decisions, and the sentences of their refusals."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, WarningKind
from miglab_api.tickets import TicketState
from miglab_pool.ledger.rows import GpuRow, LeaseRow, Row, SliceRow, TicketRow
from miglab_pool.refused import Refused
from miglab_pool.staff import rules as staff_actions

INA = "person:ina"
GPU = GpuRow("GPU-0", 3, "A100", 40960, 8, 108, mig=True, state="ok")
FREE = SliceRow(31, "GPU-0", 7, "1g.5gb", 0, 1, 14, 4864, SliceState.FREE)
LEASE = LeaseRow(
    5, 4, 7, "ada", "", "ml", "1g.5gb", LeaseState.RUNNING, 1.0,
    holder="container:aa", guaranteed_until=100.0,
)  # fmt: skip
TICKET = TicketRow(9, "bob", "", "ml", "1g.5gb", "1g.5gb", TicketState.WAITING, 1.0, 1.0)


@pytest.mark.parametrize(
    ("row", "standing"),
    [
        (GPU, "ok"),
        (replace(GPU, state="unknown"), "unknown"),
        (replace(GPU, draining="Fan."), "draining"),
        (replace(GPU, state="lost", draining="Fan."), "draining"),
        (FREE, "free"),
        (replace(FREE, state="leased", draining="Fan."), "draining"),
        (replace(FREE, state="quarantined", draining="Fan."), "quarantined"),
        (LEASE, "running"),
        (TICKET, "waiting"),
        (replace(TICKET, next_at=1.0), "next"),
        (replace(TICKET, state=TicketState.OFFERED, next_at=1.0), "offered"),
    ],
)
def test_how_a_thing_stands(row: Row, standing: str) -> None:
    """In the one word that pages show and send back; then it is as it was seen."""
    assert staff_actions.status_of(row) == standing
    assert staff_actions.is_as_expected(row, standing) and staff_actions.is_as_expected(row, None)
    assert not staff_actions.is_as_expected(row, "elsewhere")


@pytest.mark.parametrize(
    ("row", "expected", "said"),
    [
        (replace(GPU, draining="Fan."), "ok",
         "GPU 3 is draining now, not ok: ina did it. Nothing was done: look again, then decide."),
        (replace(FREE, generation=8), "7",
         "Slice 31 is free now, not 7: ina did it. Nothing was done: look again, then decide."),
        (LEASE, "running",
         "Lease 5 is another by now: ina did it. Nothing was done: look again, then decide."),
    ],
)  # fmt: skip
def test_who_comes_second_is_told(row: Row, expected: str, said: str) -> None:
    """What it is now, what was seen, who did what; nobody's own words are changed."""
    assert staff_actions.changed(row, expected, "ina did it").message == said
    assert "“my gpu”" in staff_actions.changed(row, expected, "ina (“my gpu”)").message


@pytest.mark.parametrize("state", list(SliceState))
def test_which_slices_are_drained_and_which_quarantined(state: SliceState) -> None:
    """Drained is what somebody may yet get; set aside what is free; a refusal names the slice."""
    row = replace(FREE, state=state, lease=5 if state is SliceState.LEASED else None)
    can_drain = state in (
        SliceState.FREE, SliceState.LEASED, SliceState.MAKING, SliceState.SCRUBBING,
    )  # fmt: skip
    acts: list[tuple[Callable[[], SliceRow], bool]] = [
        (lambda: staff_actions.drained(row, "Fan.", ""), can_drain),
        (lambda: staff_actions.quarantine(row, "Fan.", ""), state is SliceState.FREE),
    ]
    for decide, can in acts:
        if can:
            assert decide() != row
        else:
            with pytest.raises(Refused, match="Slice 31"):
                decide()
    if state is SliceState.FREE:  # whoever drained the place ends that: clearing does not
        aside = staff_actions.quarantine(replace(row, draining="Fan."), "Errors.", "")
        assert (aside.draining, aside.reason) == ("Fan.", "Errors.")


@pytest.mark.parametrize("state", list(LeaseState))
@pytest.mark.parametrize("warning_s", [0.0, 60.0])
def test_which_leases_are_taken_back(state: LeaseState, warning_s: float) -> None:
    """Warned while in use, released at once without a server or a warning, refused when over."""
    row = replace(LEASE, state=state, holder="" if state is LeaseState.GRANTED else LEASE.holder)
    if state in (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED):
        with pytest.raises(Refused) as caught:
            staff_actions.reclaimed(row, INA, "Exam.", warning_s, 50.0)
        assert caught.value.reason == "already-done"
        return
    warned = staff_actions.reclaimed(row, INA, "Exam.", warning_s, 50.0)
    assert (warned is None) == (state is LeaseState.GRANTED or not warning_s)
    if warned is not None:
        assert (warned.warn_kind, warned.reclaim_at, warned.warn_by) == ("staff", 110.0, INA)


@pytest.mark.parametrize(
    ("reclaim_at", "is_due"), [(None, False), (59.0, True), (60.0, True), (61.0, False)]
)
@pytest.mark.parametrize("kind", ["staff", "idle"])
def test_when_a_warning_is_over(kind: str, reclaim_at: float | None, is_due: bool) -> None:
    """Only staff end what staff alone began."""
    row = replace(LEASE, state=LeaseState.WARNED, warn_kind=kind, reclaim_at=reclaim_at)
    assert staff_actions.is_due(row, 60.0) == (is_due and kind == "staff")


times = st.floats(0, 1e6, allow_nan=False)


@given(
    guaranteed_until=times,
    by_s=st.floats(1, 1e6),
    at=times,
    kind=st.sampled_from(["", *WarningKind]),
)
def test_time_is_only_ever_given(
    guaranteed_until: float, by_s: float, at: float, kind: str
) -> None:
    """No extension shortens a guarantee, and none is left warned."""
    state = LeaseState.WARNED if kind else LeaseState.RUNNING
    row = replace(
        LEASE, state=state, guaranteed_until=guaranteed_until, warn_kind=kind, warn_reason="Why."
    )
    try:
        after = staff_actions.given_time(row, by_s, at, 60.0)
    except Refused as refused:
        assert refused.reason == "no-extension"
        assert kind in staff_actions.FIXED_ENDS
        return
    assert after.state is LeaseState.RUNNING and not after.warn_kind
    assert after.guaranteed_until >= max(guaranteed_until, at + by_s)
    assert after.extensions == row.extensions


def test_put_in_front_and_back() -> None:
    """And what was done twice is told, by whom."""
    first = staff_actions.put_in_front(TICKET, 60.0, "")
    assert first.next_at == 60.0 and staff_actions.put_back(first, "") == TICKET
    with pytest.raises(Refused, match="Ticket 9 is in front already: ina put it in front"):
        staff_actions.put_in_front(first, 61.0, "ina put it in front")
    with pytest.raises(Refused, match="Ticket 9 is not in front any more: jo put it back"):
        staff_actions.put_back(TICKET, "jo put it back")
