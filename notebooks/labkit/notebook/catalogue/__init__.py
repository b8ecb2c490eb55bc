"""What every experiment of the notebooks asks and shows: words, axes, series and figures beside it.

A notebook gives only what is measured. One module a notebook; `EXPERIMENTS` has them all by key,
without steps. Words in braces are filled in by the notebook.
"""

from collections.abc import Mapping
from types import MappingProxyType

from labkit.notebook.catalogue import (
    choosing,
    data_parallel,
    mig,
    mixed_precision,
    model_parallel,
    your_slice,
)
from labkit.panel.experiment import Experiment

ROOMS = (your_slice, mig, mixed_precision, data_parallel, model_parallel, choosing)
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {one.key: one for room in ROOMS for one in room.EXPERIMENTS}
)
