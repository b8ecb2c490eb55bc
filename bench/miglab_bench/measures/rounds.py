"""Who starts what in `./lab bench spawn`, and what one round of it gives."""

from dataclasses import dataclass

SHAPE = "1g.5gb"
COURSE = "bench"
OURS, PLAIN = "ours", "plain"


@dataclass(frozen=True)
class Round:
    """One start of each, seconds from asking the hub to the server's first HTTP answer."""

    ours_s: float
    plain_s: float
