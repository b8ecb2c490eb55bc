"""The wait estimates that a view bears: made anew now and then, and read by every answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from miglab_api.tickets import WaitEstimate

EstimateKey = int | tuple[str, ...]
"""What an estimate is for: a ticket by its number, or profiles that a newcomer could ask for."""


@dataclass(frozen=True)
class WaitEstimates:
    """The last wait estimates.

    Attributes:
        at: when they were made, seconds since the epoch.
        of: the estimates.
        due: by when the first estimate of each ticket said that its wait would be over.
    """

    at: float = 0.0
    of: Mapping[EstimateKey, WaitEstimate] = field(default_factory=dict)
    due: Mapping[EstimateKey, float] = field(default_factory=dict)
