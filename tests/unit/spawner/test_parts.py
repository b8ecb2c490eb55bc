"""The pure parts of the spawner: choice, limits, labels, words, container settings."""

import re

import pytest
from tests.unit.pool.applications.fakes import ticket_view

from miglab_api import wording
from miglab_api.tickets import WaitEstimate
from miglab_spawner import refusals
from miglab_spawner.containers import host_config
from miglab_spawner.containers.host_config import (
    SavedLease,
    escape_braces,
    gpu_environment,
    hard_host_config,
    soft_host_config,
)
from miglab_spawner.pages import spawn_page, waiting

GRANT = SavedLease(7, 3, "ada", "", ("MIG-a", "MIG-b"))
GIB = 2**30


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({}, {}),
        ({"shape": ["1g.5gb"]}, {"shape": "1g.5gb"}),
        ({"shape": ["1g.5gb@ml@home"]}, {"shape": "1g.5gb", "course": "ml@home"}),
        ({"shape": ["cpu"], "course": [" ml "]}, {"shape": "cpu", "course": "ml"}),
        ({"shape": [""], "other": ["x"]}, {}),
    ],
)
def test_a_form_becomes_options(form: dict[str, list[str]], options: dict[str, str]):
    """Empty fields are left out, and a shape may carry its course."""
    assert spawn_page.from_form(form) == options


BAD = [{"shape": 7}, {"shape": {"a": 1}}, {"course": ["a", "b"]}, {"shape": "1" * 65}]


@pytest.mark.parametrize("bad", BAD)
def test_options_of_another_kind_are_refused(bad: dict[str, object]):
    """An API call may send anything; what is no text, or too long, is refused, naming the key."""
    with pytest.raises(spawn_page.BadChoice, match=next(iter(bad))):
        spawn_page.parse_choice(bad)


def test_forgetting_keeps_the_rest():
    """A hopeless choice is dropped, an image stays chosen."""
    assert spawn_page.without_choice({"shape": "9g", "course": "x", "image": "i"}) == {"image": "i"}


@pytest.mark.parametrize(
    ("shape", "mem_gib", "pids"),
    [("cpu", 4, 1024), ("1g.5gb", 3, 100), ("2x1g.5gb", 6, 200), ("1g.5gb,2x9g", 19, 2148)],
)
def test_limits_follow_the_shape(shape: str, mem_gib: float, pids: int):
    """A shape's own row, its multiple, the sum of its parts; unknown parts take the default."""
    table = {"1g.5gb": {"mem_gib": 3, "pids": 100}}
    limits = host_config.limits_of(shape, table)
    assert (limits.mem_bytes, limits.pids) == (mem_gib * GIB, pids)


@pytest.mark.parametrize("row", [{"memory": 3}, {"pids": 0}])
def test_a_wrong_limit_is_named(row: dict[str, float]):
    """An unknown key and a limit of nothing are refused, naming the shape."""
    with pytest.raises(ValueError, match=r"1g\.5gb"):
        host_config.check_limits({"1g.5gb": row})


def test_labels_bring_the_grant_back():
    """What was written on the container is read back whole."""
    assert host_config.from_labels("lab", host_config.to_labels("lab", GRANT)) == GRANT


@pytest.mark.parametrize(
    "labels",
    [None, {}, host_config.to_labels("other", GRANT), {"miglab.lab": "lab", "miglab.lease": "x"}],
)
def test_labels_of_others_are_nothing(labels: dict[str, str] | None):
    """No labels, another lab's, or spoilt ones name no grant."""
    assert host_config.from_labels("lab", labels) is None


def test_a_container_is_named_by_its_id():
    """The holder's name and back; a process is no container."""
    assert host_config.container_of(host_config.container_holder("ab12")) == "ab12"
    assert host_config.container_of("process:1,2,3") == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (113, "113th")],
)
def test_ordinals(number: int, text: str):
    """Numbers as people say them."""
    assert wording.ordinal(number) == text


def queue_event(**fields: object) -> waiting.ProgressEvent:
    return waiting.queue_event(ticket_view(1, "ada", **{"position": 2, "waiting": 5, **fields}))


ESTIMATE = WaitEstimate(low_s=660, likely_s=900, high_s=1400, basis="from 50 leases")
HELD = "Your course holds 2 of the 2."


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({}, "^You are 2nd of 5 in the queue, waiting for 1g.5gb.((?!likely|Estimated).)*$"),
        ({"estimate": ESTIMATE}, r"Estimated wait: about 10–25 minutes \(from 50 leases\)\."),
        ({"position": None, "waiting": 0}, "is being created"),
        ({"message": HELD}, f"^You are 2nd of 5 .*{HELD} This page"),
        ({"message": HELD, "position": None}, f"^{HELD} This page"),
    ],
)
def test_the_queue_is_said_in_words(fields: dict[str, object], pattern: str):
    """Position, length, and an estimate with what it is from, or what else is waited for."""
    assert re.search(pattern, queue_event(**fields).message)


def test_nearer_the_front_more_of_the_bar_is_full():
    """Whatever the queue's length."""
    assert queue_event(position=1).pct > queue_event().pct > queue_event(position=9, waiting=9).pct


async def test_every_reader_gets_every_event():
    """Two open pages read the same events, from the first; the same words twice are one event."""
    events = waiting.ProgressEvents()
    events.add(5, "one")
    events.add(5, "one")
    first = events.read()
    assert (await anext(first)).message == "one"
    events.add(9, "two")
    events.close()
    assert [event.message async for event in first] == ["two"]
    assert [event.message async for event in events.read()] == ["one", "two"]


@pytest.mark.parametrize(
    ("state", "message_part"),
    [
        ({"Running": True, "OOMKilled": True}, ""),
        ({"Running": False, "Status": "created"}, ""),
        ({"Running": False, "ExitCode": 0}, ""),
        ({"Running": False, "OOMKilled": True, "ExitCode": 137}, "more than its 2 GiB"),
        ({"Running": False, "ExitCode": 137}, "signal 9"),
        ({"Running": False, "ExitCode": 3}, "exit code 3"),
    ],
)
def test_an_end_is_explained(state: dict[str, object], message_part: str):
    """Out of memory, a signal, an exit code; nothing for an end in peace."""
    message = refusals.container_end_message(state, 2 * GIB)
    assert message_part in message
    assert bool(message) == bool(message_part)


def test_the_environment_grants_no_gpu_by_itself():
    """Whatever a site sets, without a lease it is ``void``, with one the device request decides."""
    site = {"NVIDIA_VISIBLE_DEVICES": "all", "A": "b"}
    assert gpu_environment(site, None) == {"A": "b", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert gpu_environment(site, GRANT) == {"A": "b", "NVIDIA_VISIBLE_DEVICES": "MIG-a,MIG-b"}


def test_a_lease_is_a_device_request_and_no_restart():
    """The slices in order; neither auto-removal nor a restart behind our back."""
    host = hard_host_config(GRANT, "hook")
    assert host["device_requests"] == [
        {"driver": "hook", "device_ids": ["MIG-a", "MIG-b"], "capabilities": [["gpu"]]}
    ]
    assert host["auto_remove"] is False
    assert host["restart_policy"] == {"Name": "no"}
    assert hard_host_config(None, "hook") == {}


@pytest.mark.parametrize(
    ("host", "traits", "mem_bytes", "cpus"),
    [
        ({}, {}, 4 * GIB, 1),
        ({}, {"mem_limit": 2 * GIB, "cpu_limit": 2.5}, 2 * GIB, 2.5),
        ({}, {"mem_limit": "2G"}, 2 * GIB, 1),
        ({"mem_limit": "512mb"}, {}, GIB // 2, 1),
        ({"mem_limit": "1g"}, {"mem_limit": 2 * GIB}, GIB, 1),
        ({"mem_limit": 0}, {}, 0, 1),
        ({"mem_limit": -1}, {}, 0, 1),
        ({"nano_cpus": 1_500_000_000}, {}, 4 * GIB, 1.5),
        ({"cpu_quota": 50_000}, {"cpu_limit": 3.0}, 4 * GIB, 0.5),
        ({"cpu_quota": 50_000, "cpu_period": 25_000}, {}, 4 * GIB, 2),
        ({"cpu_quota": -1}, {}, 4 * GIB, 0),
        ({"cpu_period": 50_000}, {}, 4 * GIB, 1),
    ],
)
def test_a_sites_limits_take_the_place_of_the_shapes(host, traits, mem_bytes, cpus):
    """Its host configuration before its traits, as in DockerSpawner; there is never any swap."""
    limits = host_config.limits_of("cpu", {}).with_site_limits(host, **traits)
    assert (limits.mem_bytes, limits.cpus) == (mem_bytes, cpus)
    soft = soft_host_config(limits, host)
    assert soft["memswap_limit"] == (mem_bytes or -1)
    assert soft["cpu_quota"] == (cpus * soft["cpu_period"] or -1)
    assert "nano_cpus" not in soft


def test_braces_in_a_name_stay_braces():
    """DockerSpawner formats these values; a user called ``{prefix}`` keeps the name."""
    assert (
        escape_braces({"miglab.user": "{prefix}"})["miglab.user"].format(prefix="x") == "{prefix}"
    )


@pytest.mark.parametrize(
    ("low_s", "high_s", "text"),
    [
        (0, 40, "less than a minute"),
        (0, 400, "at most 7 minutes"),
        (250, 400, "about 4–7 minutes"),
        (660, 1400, "about 10–25 minutes"),
        (600, 600, "about 10 minutes"),
        (0, 1500, "at most 25 minutes"),
        (4000, 9000, "about 1–2.5 hours"),
        (5700, 5700, "about 1.5–2 hours"),
        (20000, 20000, "about 5–6 hours"),
        (0, 3600 * 1.9, "at most 2 hours"),
    ],
)
def test_a_range_in_words(low_s, high_s, text):
    """A range is rounded outwards, to what people plan by."""
    estimate = WaitEstimate(low_s=low_s, likely_s=high_s, high_s=high_s, basis="")
    assert wording.estimated_wait(estimate) == text
