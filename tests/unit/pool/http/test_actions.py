"""What staff may do: who finds which, what they say, and that the API takes each as it is sent."""

from collections.abc import Callable, Sequence

import httpx
import pytest

from miglab_api.gpus import GpuView, SliceState
from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.http.access.principal import Principal, PrincipalKind
from miglab_pool.http.pages.buttons import Action, on_gpu, on_lease, on_pool, on_slice, on_ticket

from .conftest import as_
from .fakes import lease_view, slice_view

ML = frozenset({"ml"})
ADMIN = Principal(PrincipalKind.PERSON, "root", admin=True)
INSTRUCTOR = Principal(PrincipalKind.PERSON, "ilse", instructs=ML)
ASSISTANT = Principal(PrincipalKind.PERSON, "timo", assists=ML)
OTHER = Principal(PrincipalKind.PERSON, "vera", instructs=frozenset({"vision"}))
ALICE = Principal(PrincipalKind.PERSON, "alice")
LEASE = lease_view(1, "alice", guaranteed_until=5000.0, extensions_left=2, extension_s=3600.0)
GPU = GpuView(
    index=0, uuid="GPU-0", name="A100", memory_slices=8, memory_mib=40960, mig=True, state="ok"
)


def ticket(**more: object) -> TicketView:
    values = {
        "id": 1, "user": "alice", "server": "", "course": "ml", "shape": "1g.5gb", "position": 1,
        "state": TicketState.WAITING, "created_at": 1.0,
    }  # fmt: skip
    return TicketView(**(values | more))


def keys(found: Sequence[Action]) -> list[str]:
    return [action.key for action in found]


def of_slice(state: SliceState, **more: object) -> Callable[[Principal], Sequence[Action]]:
    """What is found on a slice of a GPU of no course."""
    item = slice_view(1, 0, state=state, **more)
    return lambda who: on_slice(item, GPU, who)


def of_lease(**more: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda who: on_lease(LEASE.model_copy(update=more), who)


def of_ticket(**more: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda who: on_ticket(ticket(**more), who)


def of_gpu(**more: object) -> Callable[[Principal], Sequence[Action]]:
    return lambda who: on_gpu(GPU.model_copy(update=more), who)


ALL = "message extend reclaim"
QUEUE = "next message cancel"
FREE, OVER = SliceState.FREE, (LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED)


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (of_lease(), {ADMIN: ALL, INSTRUCTOR: ALL, ASSISTANT: "message extend", OTHER: "",
                      ALICE: "extend release"}),  # one's own is released, not taken back
        (of_lease(extensions_left=0), {ADMIN: ALL, ALICE: "release"}),
        *((of_lease(state=state), {ADMIN: ""}) for state in OVER),
        (of_ticket(), {ADMIN: QUEUE, INSTRUCTOR: QUEUE, ASSISTANT: "message", OTHER: "",
                       ALICE: "cancel"}),
        (of_ticket(is_next=True), {ADMIN: QUEUE.replace("next", "back"), ASSISTANT: "message"}),
        (of_slice(FREE), {ADMIN: "drain quarantine", INSTRUCTOR: ""}),
        (of_slice(FREE, draining="dust"), {ADMIN: "undrain quarantine", INSTRUCTOR: ""}),
        (of_slice(FREE, profile="full"), {ADMIN: "quarantine", INSTRUCTOR: ""}),
        (of_slice(SliceState.LEASED), {ADMIN: "drain", INSTRUCTOR: ""}),
        (of_slice(SliceState.QUARANTINED), {ADMIN: "clear", INSTRUCTOR: ""}),
        (of_slice(SliceState.FOREIGN), {ADMIN: "adopt", INSTRUCTOR: ""}),
        (of_gpu(), {ADMIN: "drain", INSTRUCTOR: ""}),
        (of_gpu(course="ml"), {INSTRUCTOR: "drain", ASSISTANT: "", OTHER: ""}),
        (of_gpu(course="ml", draining="dust"), {INSTRUCTOR: "undrain"}),
    ],
)  # fmt: skip
def test_who_finds_what(
    found: Callable[[Principal], Sequence[Action]], may: dict[Principal, str]
) -> None:
    """As the table of rights says, and nothing that would be refused."""
    assert {who: keys(found(who)) for who in may} == {who: may[who].split() for who in may}


def test_what_can_be_done_to_all() -> None:
    """Pausing is for admins; courses are written to by their own staff."""
    courses = ["ml", "vision"]
    assert keys(on_pool("", courses, ADMIN)) == ["message-course", "message-all", "pause"]
    assert keys(on_pool("Repairs.", courses, ADMIN))[-1] == "resume"
    (action,) = on_pool("", courses, ASSISTANT)
    assert action.fields[0].options == (("ml", "ml"),)
    assert on_pool("", courses, ALICE) == []


def test_the_words_say_what_happens_to_whom() -> None:
    """By name, with what is lost and who gains."""
    reclaim = on_lease(LEASE.model_copy(update={"others_wait": 3}), ADMIN)[-1]
    assert (
        "alice sees your reason" in reclaim.says and "3 in the queue could use it" in reclaim.says
    )
    assert "memory of running notebooks is lost" in reclaim.says and reclaim.is_grave
    held = GPU.model_copy(update={"slices": (slice_view(1, 0, "bob"), slice_view(2, 1, "eva"))})
    assert "The 2 leases on it go on" in on_gpu(held, ADMIN)[0].says
    drain = on_slice(slice_view(1, 0, "bob"), GPU, ADMIN)[0]
    assert drain.says.startswith("bob keeps it")


def every_action() -> list[Action]:
    """One of each that a site admin or a student can find."""
    states = [slice_view(1, 0, state=state) for state in SliceState]
    drained = slice_view(1, 0, draining="dust")
    found = [action for item in (*states, drained) for action in on_slice(item, GPU, ADMIN)]
    found += on_gpu(GPU, ADMIN) + on_gpu(GPU.model_copy(update={"draining": "dust"}), ADMIN)
    found += on_ticket(ticket(), ADMIN) + on_ticket(ticket(is_next=True), ADMIN)
    found += on_pool("", ["ml"], ADMIN) + on_pool("Repairs.", ["ml"], ADMIN)
    found += on_lease(LEASE, ADMIN) + on_lease(LEASE, ALICE)
    return list({(action.key, action.path): action for action in found}.values())


@pytest.mark.parametrize("action", every_action(), ids=lambda action: f"{action.key} {action.path}")
async def test_the_api_takes_what_the_form_sends(client: httpx.AsyncClient, action: Action) -> None:
    """There is such a route, and it understands every key; what the pool says is another matter."""
    answer = await client.request(
        action.method, f"/api/{action.path}", json=sent(action), headers=as_("admin-token")
    )
    if not answer.is_success:
        assert answer.status_code in (404, 409), answer.text
        assert answer.json()["reason"] != "no-such-page"


def sent(action: Action) -> dict[str, object] | None:
    """What details.js makes of the form as it opens, with words where words are needed."""
    if action.method == "DELETE":
        return None
    body: dict[str, object] = dict(action.fixed)
    if "by_s" in body:
        body["by_s"] = float(str(body["by_s"]))
    if "all" in body:
        body["all"] = True
    for field in action.fields:
        value = field.options[0][0] if field.options else field.value or "because"
        body[field.name] = float(value) * field.times if field.times else value
    return body
