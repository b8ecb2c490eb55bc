"""The ends that come whatever anybody does, as people write them."""

from datetime import UTC, datetime

import pytest

from miglab_api.leases import WarningKind
from miglab_hub.service.process import rules_of
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.reclaim.policy import closed_now, ends_of
from miglab_pool.schedule import BadTime, window
from miglab_pool.settings import Reclaim

TUESDAY = datetime(2026, 11, 24, tzinfo=UTC)


def at(hour: int, minute: int = 0, day: int = 24) -> float:
    return TUESDAY.replace(hour=hour, minute=minute, day=day).timestamp()


@pytest.mark.parametrize(
    ("text", "zone", "held_since", "ends_at"),
    [
        ("tue 11:00-12:00", "UTC", at(10), at(11)),
        ("tue 11:00-13:00", "UTC", at(12), at(11)),  # it slipped in
        ("tue 11:00-12:00", "UTC", at(12), at(11) + 7 * 86400),
        ("Mon-Fri 18:00-19:00", "UTC", at(10), at(18)),
        ("sat-mon 18:00-19:00", "UTC", at(10), at(18, day=28)),
        ("2026-11-25 09:30-10:00", "UTC", at(10), at(9, 30, day=25)),
        ("tue 12:00-13:00", "Europe/Berlin", at(9), at(11)),
    ],
)
def test_maintenance(text: str, zone: str, held_since: float, ends_at: float) -> None:
    """The first window since the lease is held ends it, by the clock on the lab's wall."""
    (end,) = ends_of(held_since, None, (window(text, zone),))
    assert (end.at, end.kind) == (ends_at, WarningKind.MAINTENANCE)
    assert text.split()[1][:5] in end.reason


def test_closed_now() -> None:
    """From the window's start until its end, and it says so."""
    windows = (window("tue 06:00-08:00", "UTC"),)
    assert closed_now(windows, at(5, 59)) == closed_now(windows, at(8)) == ""
    assert closed_now(windows, at(6)) == "Maintenance of the lab from 06:00 UTC to 08:00 UTC."


def test_the_leases_own_end() -> None:
    """What is borrowed, and a job of Slurm, has that end too."""
    (end,) = ends_of(at(5), at(9), ())
    assert (end.at, end.kind) == (at(9), WarningKind.TIME)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tue",
        "tue 06:00",
        "tue 8:00-9:00",
        "tues 12:00-13:00",
        "2026-13-01 12:00-13:00",
        "tue 08:00-06:00",
        "tue 08:00-08:00",
        "tue 23:00-24:00",
    ],
)
def test_a_wrong_window_is_explained(text: str) -> None:
    """A window has a start before its end, on one day."""
    with pytest.raises(BadTime, match="write"):
        window(text, "UTC")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"lab": {"maintenance": ["now"]}}, "no window"),
        ({"lab": {"timezone": "Mars/Olympus"}}, "not known"),
        ({"reclaim": {"idle_wanted_s": 9000}}, "longer than idle_s"),
    ],
)
def test_settings_are_checked(table: dict[str, object], words: str) -> None:
    """lab.toml with a time that cannot be read does not start."""
    whole = {"courses": {"everyone": {"shapes": ["cpu"]}}, **table}
    with pytest.raises(ValueError, match=words):
        Settings.model_validate(whole)


def test_settings_become_rules() -> None:
    """What lab.toml says reaches the policy, in its own words."""
    table = {"dry_run": True, "idle_s": 50, "idle_wanted_s": 20, "unused_s": 70, "stale_s": 30}
    lab = {"timezone": "Europe/Berlin", "maintenance": ["tue 06:00-08:00"]}
    courses = {"everyone": {"shapes": ["cpu"]}}
    rules = rules_of(Settings.model_validate({"reclaim": table, "lab": lab, "courses": courses}))
    assert rules.limits == Reclaim(**table)
    assert closed_now(rules.maintenance, at(5)) and not closed_now(rules.maintenance, at(7))


@pytest.mark.parametrize(("gpus", "shows"), [({}, False), ({"uuids": ["GPU-1"]}, True)])
def test_only_real_gpus_are_believed_to_show_who_computes(
    gpus: dict[str, object], shows: bool
) -> None:
    """The rules of a lab know which GPUs it has."""
    whole = {"gpus": gpus, "courses": {"everyone": {"shapes": ["cpu"]}}}
    assert rules_of(Settings.model_validate(whole)).shows_holders is shows
