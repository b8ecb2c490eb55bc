"""How the pages say things: durations, moments, states.  Pure."""

from datetime import UTC, datetime

from miglab_spawner.messages import SliceState

STATE_WORDS = {
    SliceState.MAKING: "being made",
    SliceState.FREE: "free",
    SliceState.LEASED: "in use",
    SliceState.SCRUBBING: "being cleared",
    SliceState.QUARANTINED: "set aside",
    SliceState.FOREIGN: "not the lab's",
}


def in_words(duration_s: float) -> str:
    """A duration as people say it: the two largest units, never below a minute."""
    minutes = max(0, round(duration_s / 60))
    if minutes < 1:
        return "less than a minute"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "day"), (hours, "hour"), (minutes, "minute")]
    said = [f"{n} {word}{'s' if n != 1 else ''}" for n, word in parts if n]
    return " ".join(said[:2])


def iso(at: float) -> str:
    """A moment for ``<time datetime>``."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "seconds")
