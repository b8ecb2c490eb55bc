"""Who starts what in `./lab bench spawn`, and what one round of it gives."""

from dataclasses import dataclass

SHAPE = "1g.5gb"
COURSE = "bench"
OURS, PLAIN = "ours", "plain"


@dataclass(frozen=True)
class Round:
    """One start and end of each spawner's servers, all of them at once.

    Attributes:
        ours_s: from asking the hub to a server's first HTTP answer, median of the servers.
        plain_s: the same.
        ours_stop_s: from asking the hub until the engine has none of their containers.
        plain_stop_s: the same.
    """

    ours_s: float
    plain_s: float
    ours_stop_s: float
    plain_stop_s: float


def names(who: str, at_once: int) -> list[str]:
    """The students of one spawner."""
    return [f"{who}-{number}" for number in range(at_once)]
