"""labkit: measure on the slice you hold, and see what the numbers can and cannot say.

Importing it touches neither torch nor a widget library; what is measured runs in child processes.
"""

from labkit.errors import LabError
from labkit.measuring.measure import compare, measure, peak, ranks
from labkit.measuring.place import where
from labkit.notebook.fresh import fresh_copy
from labkit.notebook.handing_in import HandIn, hand_in
from labkit.records import METHOD_VERSION, Comparison, Measurement, Place, Tier, Verdict

__version__ = "0.1.0"
__all__ = [
    "METHOD_VERSION",
    "Comparison",
    "HandIn",
    "LabError",
    "Measurement",
    "Place",
    "Tier",
    "Verdict",
    "__version__",
    "compare",
    "fresh_copy",
    "hand_in",
    "measure",
    "peak",
    "ranks",
    "where",
]
