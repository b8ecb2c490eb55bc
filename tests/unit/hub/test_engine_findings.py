"""What doctor says of an engine's version and settings, and of NVIDIA's toolkit on its host."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from miglab_hub.engine_findings import (
    BY_VARIABLE,
    SETTINGS_FOLLOW,
    Toolkit,
    examine_engine,
    examine_engine_settings,
    examine_toolkit_facts,
    explain_hook_refusal,
)

GUIDE = Path(__file__).parents[3] / "docs/howto/gpu-host.md"
GOOD: dict[str, Any] = {"CgroupDriver": "cgroupfs", "DefaultRuntime": "runc", "CDISpecDirs": []}
CDI = ["/etc/cdi", "/var/run/cdi"]


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        ("19.03.15", False),
        ("20.10.24+dfsg1", True),
        ("28.5.2", True),
        ("29.7.2", True),
        ("30.0.0-rc.1", False),
        ("dev", False),
    ],
)
def test_an_engine_outside_the_tested_range_is_refused(version: str, is_tested: bool) -> None:
    """Older, newer, and one that does not say: told in words, with the range."""
    finding = examine_engine(version)
    assert finding.is_wrong is not is_tested
    assert is_tested or ("20.10" in finding.remedy and "30.0" in finding.remedy)


@pytest.mark.parametrize(
    ("version", "changed", "subjects"),
    [
        ("29.7.2", {}, []),
        ("29.7.2", {"CDISpecDirs": CDI}, ["CDI"]),
        ("29.2.0", {"CDISpecDirs": CDI}, ["CDI"]),
        ("29.1.5", {"CDISpecDirs": CDI}, []),
        ("20.10.24", {"CDISpecDirs": None}, []),
        ("28.5.2", {"CgroupDriver": "systemd"}, ["cgroup driver"]),
        ("28.5.2", {"DefaultRuntime": "nvidia"}, ["runtime"]),
        (
            "29.7.2",
            {"CDISpecDirs": CDI, "CgroupDriver": "systemd", "DefaultRuntime": "nvidia-cdi"},
            ["CDI", "cgroup driver", "runtime"],
        ),
    ],
)
def test_what_takes_gpus_away_later_is_found(
    version: str, changed: dict[str, Any], subjects: list[str]
) -> None:
    """CDI first, from 29.2 on; systemd's cgroups; NVIDIA's runtime for everybody."""
    findings = list(examine_engine_settings(version, GOOD | changed))
    assert [finding.subject for finding in findings] == subjects
    assert all(finding.is_wrong and "daemon.json" in finding.remedy for finding in findings)


def trial_of(version: str, settings: str = "") -> Toolkit:
    version_line = (
        f"NVIDIA Container Runtime Hook version {version}\ncommit: 4a2\n" if version else ""
    )
    return Toolkit.of(f"{version_line}{SETTINGS_FOLLOW}\n{settings}")


@pytest.mark.parametrize(
    ("version", "settings", "problems"),
    [
        ("1.20.0", "", []),
        ("1.13.5", f"{BY_VARIABLE} = true\n", []),
        ("1.12.1", "", ["not been tried"]),
        ("1.21.0-rc.1", "", ["not been tried"]),
        ("", "", ["version is unknown"]),
        ("1.19.1", f"{BY_VARIABLE} = false\n", ["no server gets a GPU"]),
        ("1.19.1", f'{BY_VARIABLE} = "no"\n', ["no server gets a GPU"]),
        ("1.19.1", '[nvidia-container-runtime]\nmode = "cdi"\n', ['mode is "cdi"']),
        ("1.19.1", '[nvidia-container-runtime]\nmode = "auto"\n', []),
        ("1.19.1", 'swarm-resource = "DOCKER_RESOURCE_GPU"\n', ["DOCKER_RESOURCE_GPU"]),
    ],
)
def test_a_toolkit_that_hands_nothing_over_or_too_much_is_found(
    version: str, settings: str, problems: list[str]
) -> None:
    """Its version outside the tested range, and each setting that breaks the hand-over."""
    wrong = [
        finding
        for finding in examine_toolkit_facts(trial_of(version, settings))
        if finding.is_wrong
    ]
    assert len(wrong) == len(problems)
    assert all(
        expected in finding.observation and finding.remedy
        for finding, expected in zip(wrong, problems, strict=True)
    )


def test_a_refusal_of_the_engine_is_told_apart() -> None:
    """No hook when the engine started, or a hook that refuses: two things to do."""
    missing = explain_hook_refusal(
        'could not select device driver "nvidia" with capabilities: [[gpu]]'
    )
    assert "install nvidia-container-toolkit" in missing.remedy
    other = explain_hook_refusal("error running hook: exit status 1")
    assert "exit status 1" in other.observation and other.remedy != missing.remedy


def test_the_guide_prints_what_doctor_wants() -> None:
    """Its daemon.json turns CDI off and systemd's cgroups; and it sets nothing of the toolkit."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (daemon,) = [json.loads(text) for language, text in blocks if language == "json"]
    assert daemon["features"] == {"cdi": False}
    assert daemon["exec-opts"] == ["native.cgroupdriver=cgroupfs"]
    assert not any(BY_VARIABLE in text for _, text in blocks)
