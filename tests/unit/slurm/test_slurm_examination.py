"""What doctor says of a Slurm site, from what its daemons say; two versions' output."""

import pytest

from miglab_slurm.doctor import (
    CHECKS,
    minutes,
    of_accounts,
    of_backfill,
    of_devices,
    of_kill_wait,
    of_limits,
    of_tracking,
    of_version,
    partitions_in,
    settings_in,
)

GOOD = """
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = job_comment
EnforcePartLimits       = ALL
KillWait                = 10 sec
ProctrackType           = proctrack/cgroup
SchedulerParameters     = bf_interval=10,bf_window=2880
SLURM_VERSION           = {version}
TaskPlugin              = task/affinity,task/cgroup

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
BAD = """
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = (null)
EnforcePartLimits       = NO
KillWait                = 30 sec
ProctrackType           = proctrack/linuxproc
SchedulerParameters     = (null)
SLURM_VERSION           = 21.08.8
TaskPlugin              = task/cgroup
ConstrainDevices        = no
"""


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_a_good_site(version: str) -> None:
    """Nothing is wrong with what the guide asks for."""
    config = settings_in(GOOD.format(version=version))
    assert not [check(config) for check in CHECKS if check(config).is_wrong]


@pytest.mark.parametrize(
    ("check", "value", "advice"),
    [
        (of_version, "21.08.8", "22.05"),
        (of_tracking, "linuxproc", "ProctrackType=proctrack/cgroup"),
        (of_devices, "ConstrainDevices=no", "ConstrainDevices=yes"),
        (of_kill_wait, "30 s", "KillWait=10"),
        (of_backfill, "bf_interval=30", "bf_interval=10"),
        (of_limits, "NO", "EnforcePartLimits=ALL"),
        (of_accounts, "slurmdbd, AccountingStoreFlags=(null)", "AccountingStoreFlags=job_comment"),
    ],
)
@pytest.mark.parametrize("text", [BAD, ""])
def test_a_bad_or_silent_site(check, value: str, advice: str, text: str) -> None:
    """Each lack is told with what to set; what is not said is never fine."""
    finding = check(settings_in(text))
    assert finding.is_wrong
    assert advice in finding.remedy
    assert value in finding.observation or not text


def test_partitions_and_limits() -> None:
    """One line each; a limit in minutes, or none."""
    scontrol_output = (
        "PartitionName=lab State=UP MaxTime=1-02:30:00\nPartitionName=x MaxTime=UNLIMITED\n"
    )
    lab, other = partitions_in(scontrol_output).values()
    assert minutes(lab["MaxTime"]) == 26 * 60 + 30
    assert minutes(other["MaxTime"]) is None
