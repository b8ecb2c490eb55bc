"""What staff may do: who finds which, what they say, and that the API takes each as it is sent."""

from collections.abc import Callable, Sequence

import httpx
import pytest

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, LeaseWarning, WarningKind
from miglab_pool.http.access.principal import Principal
from miglab_pool.http.pages.buttons import (
    Action,
    gpu_actions,
    lease_actions,
    pool_actions,
    slice_actions,
    ticket_actions,
)

from .conftest import as_
from .fakes import ALICE, ILSE, ROOT, TIMO, VERA, gpu_view, lease_view, slice_view, ticket_view

GPU = gpu_view()
LEASE = lease_view(1, "alice", guaranteed_until=5000.0, extensions_left=2, extension_s=3600.0)


def keys(actions: Sequence[Action]) -> list[str]:
    return [action.key for action in actions]


def of_slice(state: SliceState, **fields: object) -> Callable[[Principal], Sequence[Action]]:
    """What is found on a slice of a GPU of no course."""
    slice_ = slice_view(1, 0, state=state, **fields)
    return lambda principal: slice_actions(slice_, GPU, principal)


def of_lease(**fields: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda principal: lease_actions(LEASE.model_copy(update=fields), principal)


def idle(keepalives_left: int) -> LeaseWarning:
    return LeaseWarning(
        at=1.0, reclaim_at=2.0, reason="Unused.", kind=WarningKind.IDLE,
        keepalives_left=keepalives_left,
    )  # fmt: skip


def of_ticket(**fields: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda principal: ticket_actions(ticket_view(1, "alice", **fields), principal)


def of_gpu(**fields: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda principal: gpu_actions(GPU.model_copy(update=fields), principal)


ALL = "message extend reclaim"
QUEUE = "next message cancel"
FREE, OVER = SliceState.FREE, (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED)


@pytest.mark.parametrize(
    ("offered_to", "may"),
    [
        (of_lease(), {ROOT: ALL, ILSE: ALL, TIMO: "message extend", VERA: "",
                      ALICE: "extend release"}),  # one's own is released, not taken back
        (of_lease(extensions_left=0), {ROOT: ALL, ALICE: "release"}),
        (of_lease(warning=idle(2)), {ROOT: ALL, ALICE: "keepalive extend release"}),
        (of_lease(warning=idle(0)), {ALICE: "extend release"}),
        *((of_lease(state=state), {ROOT: ""}) for state in OVER),
        (of_ticket(), {ROOT: QUEUE, ILSE: QUEUE, TIMO: "message", VERA: "",
                       ALICE: "cancel"}),
        (of_ticket(is_next=True), {ROOT: QUEUE.replace("next", "back"), TIMO: "message"}),
        (of_slice(FREE), {ROOT: "drain quarantine", ILSE: ""}),
        (of_slice(FREE, draining="dust"), {ROOT: "undrain quarantine", ILSE: ""}),
        (of_slice(FREE, profile="full"), {ROOT: "quarantine", ILSE: ""}),
        (of_slice(SliceState.LEASED), {ROOT: "drain", ILSE: ""}),
        (of_slice(SliceState.QUARANTINED), {ROOT: "clear", ILSE: ""}),
        (of_slice(SliceState.FOREIGN), {ROOT: "adopt", ILSE: ""}),
        (of_gpu(), {ROOT: "drain", ILSE: ""}),
        (of_gpu(course="ml"), {ILSE: "drain", TIMO: "", VERA: ""}),
        (of_gpu(course="ml", draining="dust"), {ILSE: "undrain"}),
    ],
)  # fmt: skip
def test_who_finds_what(
    offered_to: Callable[[Principal], Sequence[Action]], may: dict[Principal, str]
) -> None:
    """As the table of rights says, and nothing that would be refused."""
    assert {principal: keys(offered_to(principal)) for principal in may} == {
        principal: may[principal].split() for principal in may
    }


def test_what_can_be_done_to_all() -> None:
    """Pausing is for admins; courses are written to by their own staff."""
    courses = ["ml", "vision"]
    assert keys(pool_actions("", courses, ROOT)) == ["message-course", "message-all", "pause"]
    assert keys(pool_actions("Repairs.", courses, ROOT))[-1] == "resume"
    (action,) = pool_actions("", courses, TIMO)
    assert action.fields[0].options == (("ml", "ml"),)
    assert pool_actions("", courses, ALICE) == []


def test_the_words_say_what_happens_to_whom() -> None:
    """By name, with what is lost and who gains."""
    reclaim = lease_actions(LEASE.model_copy(update={"others_wait": 3}), ROOT)[-1]
    assert (
        "alice sees your reason" in reclaim.explanation
        and "3 in the queue could use it" in reclaim.explanation
    )
    assert "memory of running notebooks is lost" in reclaim.explanation and reclaim.is_grave
    leased_gpu = GPU.model_copy(
        update={"slices": (slice_view(1, 0, "bob"), slice_view(2, 1, "eva"))}
    )
    assert "The 2 leases on it go on" in gpu_actions(leased_gpu, ROOT)[0].explanation
    drain = slice_actions(slice_view(1, 0, "bob"), GPU, ROOT)[0]
    assert drain.explanation.startswith("bob keeps it")


def test_a_gpu_with_a_fault_can_be_marked_as_repaired() -> None:
    """Where the driver does not say that it was reset, a person does, who may drain it."""
    faulty = GPU.model_copy(update={"state": "unfit", "fault": "Xid 95", "draining": "dust"})
    (repaired,) = gpu_actions(faulty, ROOT)
    assert (repaired.key, repaired.title) == ("undrain", "Mark as repaired")
    assert gpu_actions(faulty, ALICE) == []


def every_action() -> list[Action]:
    """One of each that a site admin or a student can find."""
    states = [slice_view(1, 0, state=state) for state in SliceState]
    drained = slice_view(1, 0, draining="dust")
    actions = [
        action for slice_ in (*states, drained) for action in slice_actions(slice_, GPU, ROOT)
    ]
    actions += gpu_actions(GPU, ROOT) + gpu_actions(
        GPU.model_copy(update={"draining": "dust"}), ROOT
    )
    for ticket in (ticket_view(1, "alice"), ticket_view(1, "alice", is_next=True)):
        actions += ticket_actions(ticket, ROOT)
    actions += pool_actions("", ["ml"], ROOT) + pool_actions("Repairs.", ["ml"], ROOT)
    actions += lease_actions(LEASE, ROOT) + lease_actions(LEASE, ALICE)
    return list({(action.key, action.path): action for action in actions}.values())


@pytest.mark.parametrize("action", every_action(), ids=lambda action: f"{action.key} {action.path}")
async def test_the_api_takes_what_the_form_sends(client: httpx.AsyncClient, action: Action) -> None:
    """There is such a route, and it understands every key; what the pool says is another matter."""
    answer = await client.request(
        action.method, f"/api/{action.path}", json=body_of(action), headers=as_("admin-token")
    )
    if not answer.is_success:
        assert answer.status_code in (404, 409), answer.text
        assert answer.json()["reason"] != "no-such-page"


def body_of(action: Action) -> dict[str, object] | None:
    """What details.js makes of the form as it opens, with words where words are needed."""
    if action.method == "DELETE":
        return None
    body: dict[str, object] = dict(action.constants)
    if "by_s" in body:
        body["by_s"] = float(str(body["by_s"]))
    if "all" in body:
        body["all"] = True
    for field in action.fields:
        value = field.options[0][0] if field.options else field.value or "because"
        body[field.name] = float(value) * field.times if field.times else value
    return body
