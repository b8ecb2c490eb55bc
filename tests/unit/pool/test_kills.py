"""Kills at random points of everything: no slice is leased twice, none is lost."""

import random
from pathlib import Path

import pytest

from .class_room import ClassRoom, chance

KILLS_PER_CLASS = 20
MOST_STEPS = 900


def one_class(folder: Path, seed: int) -> int:
    """A class with so many kills, each verified by `ClassRoom`; returns how many there were."""
    dice = random.Random(seed)
    room = ClassRoom(folder)
    for _ in range(MOST_STEPS):
        if room.kills >= KILLS_PER_CLASS:
            break
        die_at = dice.randrange(14) if dice.random() < 0.5 else None
        again = dice.randrange(8) if dice.random() < 0.3 else None
        room.step(chance(room, dice), die_at, again)
    room.finish()
    room.close()
    return room.kills


def test_twenty_kills(tmp_path: Path) -> None:
    """After each of 20 kills everything is as it must be, and in the end nothing is lost."""
    assert one_class(tmp_path, 1) >= KILLS_PER_CLASS


@pytest.mark.long
def test_thousand_kills(tmp_path: Path) -> None:
    """After each of 1,000 kills everything is as it must be, and in the end nothing is lost."""
    kills, seed = 0, 100
    while kills < 1000:
        seed += 1
        kills += one_class(tmp_path / str(seed), seed)
    assert kills >= 1000
