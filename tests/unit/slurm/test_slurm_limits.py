"""What a limit on a person's jobs leaves, read from what slurmctld 22.05.8 has printed."""

import pytest

from miglab_slurm.lab import SlurmShape
from miglab_slurm.limits import (
    AFTER_THE_SERVER,
    NO_FURTHER_JOB,
    WAITS_AS_WELL,
    PersonalRoom,
    room_of_account,
    room_of_qos,
    words_for,
)

LIMITS = """Current Association Manager state

Association Records

ClusterName=miglabtest Account=vision UserName= Partition= Priority=0 ID=3
    GrpJobs=N(8) GrpJobsAccrue=N(1)
    GrpSubmitJobs=N(9) GrpWall=N(0.00)
    MaxJobs=1(0) MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=miglabtest Account=vision UserName=games(5) Partition= Priority=0 ID=4
    GrpJobs=N(0) GrpJobsAccrue=N(1)
    GrpSubmitJobs=N(1) GrpWall=N(0.00)
    MaxJobs=3(1) MaxJobsAccrue= MaxSubmitJobs=4(2) MaxWallPJ=
    MaxTRESPJ=cpu=20

QOS Records

QOS=normal(1)
    GrpJobs=N(0) GrpJobsAccrue=N(1) GrpSubmitJobs=N(1) GrpWall=N(0.00)
    Priority=0
    Account Limits
      vision
        MaxJobsPA=N(0) MaxJobsAccruePA=N(1) MaxSubmitJobsPA=N(1)
        MaxTRESPA=cpu=N(0),mem=N(0),node=N(0)
    User Limits
      15
        MaxJobsPU=9(9) MaxJobsAccruePU=N(1) MaxSubmitJobsPU=9(9)
        MaxTRESPU=cpu=9(9),mem=N(0),node=1(0),gres/gpu=N(0)
      {user}
        MaxJobsPU=1(0) MaxJobsAccruePU=N(1) MaxSubmitJobsPU=7(1)
        MaxTRESPU=cpu=4(1),mem=N(0),node=1(0),gres/gpu=N(0)
QOS=partition(2)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    User Limits
      {user}
        MaxJobsPU=N(0) MaxJobsAccruePU=N(1) MaxSubmitJobsPU=2(2)
        MaxTRESPU=cpu=N(0),mem=N(0)
QOS=unlimited(3)
    User Limits
        No Users
"""
PLAIN = """Current Association Manager state

No associations currently cached in Slurm.


No QOS currently cached in Slurm.

"""


@pytest.mark.parametrize("user", ["5", "games(5)"])
def test_the_room_of_a_qos_is_this_persons(user: str):
    """Whether a version prints a number or a name; another person's limit is not theirs."""
    text = LIMITS.format(user=user)
    assert room_of_qos(text, 5, "normal") == PersonalRoom(jobs=1, submissions=6, cpus=3)
    assert room_of_qos(text, 5, None) == PersonalRoom(jobs=1, submissions=0, cpus=3)
    assert room_of_qos(text, 5, "unlimited") == PersonalRoom()
    assert room_of_qos(text, 6, None) == PersonalRoom()


def test_the_room_of_an_account_is_this_persons():
    """The account's own record, and another account, say nothing of the person."""
    text = LIMITS.format(user="5")
    assert room_of_account(text, "games", "vision") == PersonalRoom(jobs=2, submissions=2)
    assert room_of_account(text, "games", "other") == PersonalRoom()
    assert room_of_account(text, "game", "vision") == PersonalRoom()


def test_a_slurm_without_accounts_limits_nobody():
    """It answers, and has neither associations nor QOS."""
    assert room_of_account(PLAIN, "games", "vision") == PersonalRoom()
    assert room_of_qos(PLAIN, 5, None) == PersonalRoom()


@pytest.mark.parametrize(
    ("room", "words"),
    [
        (PersonalRoom(), ""),
        (PersonalRoom(jobs=2, submissions=1, cpus=6), ""),
        (PersonalRoom(jobs=1), AFTER_THE_SERVER),
        (PersonalRoom(cpus=5), AFTER_THE_SERVER),
        (PersonalRoom(jobs=0), WAITS_AS_WELL),
        (PersonalRoom(cpus=1), WAITS_AS_WELL),
        (PersonalRoom(jobs=1, submissions=0), NO_FURTHER_JOB),
    ],
)
def test_the_words_say_what_happens_to_the_server(room: PersonalRoom, words: str):
    """The server ends first, or cannot run at all; where both fit, nothing is said."""
    shape, without_gpu = SlurmShape(gres="gpu:1g.5gb:1", cpus=4), SlurmShape(cpus=2)
    assert words_for(room, "1g.5gb", shape, without_gpu) == words.format(shape="1g.5gb")
