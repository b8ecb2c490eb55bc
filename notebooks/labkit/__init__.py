"""labkit: measure on the slice you hold, and see what the numbers can and cannot say.

The one module that a notebook imports. It touches neither torch nor a widget library; what is
measured runs in child processes. Of its rooms a notebook uses `exercises`, `parts`, `published`,
`sharing`, `stats` and `steps` by their names, so that a changed world (`labkit controls`) reaches
it.
"""

from labkit import errors, exercises, stats
from labkit.evidence import published
from labkit.machine import parts
from labkit.machine.profiling import count_step, profile_of, spans_of
from labkit.measuring import sharing
from labkit.measuring.measure import compare, measure, peak, ranks
from labkit.measuring.place import count_visible, where
from labkit.notebook import steps
from labkit.notebook.catalogue import experiment
from labkit.notebook.drawings import partition, picture, pipeline, pipeline_run, timeline
from labkit.notebook.handing_in import drawn, fresh_copy, hand_in
from labkit.notebook.steps import in_turns
from labkit.notebook.summary import card, cite, evidence_of, recorded_note, recorded_run, summary
from labkit.panel.runner import is_measured_here
from labkit.records import Tier
from labkit.run.jobs import is_quick, rounds
from labkit.run.worker import peak_rss_mib

__version__ = "0.1.0"
__all__ = [
    "Tier",
    "card",
    "cite",
    "compare",
    "count_step",
    "count_visible",
    "drawn",
    "errors",
    "evidence_of",
    "exercises",
    "experiment",
    "fresh_copy",
    "hand_in",
    "in_turns",
    "is_measured_here",
    "is_quick",
    "measure",
    "partition",
    "parts",
    "peak",
    "peak_rss_mib",
    "picture",
    "pipeline",
    "pipeline_run",
    "profile_of",
    "published",
    "ranks",
    "recorded_note",
    "recorded_run",
    "rounds",
    "sharing",
    "spans_of",
    "stats",
    "steps",
    "summary",
    "timeline",
    "where",
]
