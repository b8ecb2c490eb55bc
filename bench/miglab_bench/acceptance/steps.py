"""The steps of the acceptance run, in order, and the times of the lab that they go through.

Each returns what it saw, or raises `CheckFailed`.  Times are shortened by the lab's own settings.
"""

from collections.abc import Callable

from miglab_bench.acceptance import borrowing, moving, probing, reclaiming, reserving, waiting
from miglab_bench.acceptance.reserving import COURSE, MEMBERS
from miglab_bench.acceptance.run import SHAPE, Run

# The first estimates are made of the ends that are set.
POOL = """
lease_s = 600
extension_s = 300
borrow_s = 120
reserve_lead_s = 20
"""
TESTING = """
pool.borrow_linger_s = 5
reclaim.every_s = 1
reclaim.report_s = 2
reclaim.stale_s = 10
reclaim.cpu_busy_pct = 50
"""
MORE = f"""
[reclaim]
idle_wanted_s = 12
warning_s = 15

[courses.{COURSE}]
title = "Practical"
shapes = ["{SHAPE}"]
default = "{SHAPE}"
lends = ["{SHAPE}"]
members = ["{MEMBERS[0]}"]
"""

STEPS: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("nine students sign in", waiting.sign_in),
    ("seven get a slice each, all different", waiting.seven_get_slices),
    ("each cell prints its own slice", waiting.cells_print_slices),
    ("two wait, with positions 1 and 2 and an estimated wait", waiting.two_wait),
    ("idle students are warned, busy ones are not", reclaiming.idle_are_warned),
    ("“I am still here” keeps a slice", reclaiming.still_here_keeps_it),
    ("one in the queue starts on CPU and keeps the position", moving.starts_on_cpu),
    ("an idle slice goes to the next in the queue", reclaiming.next_is_served),
    ("one stops, and the one on CPU moves to the slice", moving.moves_to_the_slice),
    ("one comes back and waits", moving.one_comes_back),
    ("hub and pool are killed: every lease and position is right", waiting.survives_kill),
    ("a reservation goes before the queue", reserving.class_is_served),
    ("its no-show goes to the queue", reserving.no_show_goes_to_the_queue),
    ("all leave and the GPU is empty", waiting.all_leave),
    ("the slices of a reservation are made before it begins", reserving.promise_is_kept),
    ("twenty start servers that borrow", borrowing.twenty_borrow),
    ("all measure at once, each on a slice of its own", borrowing.all_measure_at_once),
    ("afterwards every slice is free", borrowing.all_is_free),
    ("a grant", probing.a_grant),
    ("an offer", probing.an_offer),
    ("an update of the pool's page", probing.a_pages_update),
    ("a reclaim: from the decision to a free slice", probing.a_reclaim),
)
