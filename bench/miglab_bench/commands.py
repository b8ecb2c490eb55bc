"""`./lab bench`: measure what docs/benchmarks.md says, on the machine at hand.

Each benchmark is a module of its own with one function, registered here; those that need more than
the lab's own parts come by the entry points `miglab.benches`.
"""

from importlib.metadata import entry_points

import typer

from miglab_bench.class_day import run as class_day
from miglab_bench.faults import run as faults
from miglab_bench.measures import labkit, pages, placement, scale, spawn, storm

app = typer.Typer(help="Measure the lab.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Measure the lab: each figure is of one run, and says how it was measured."""


app.command("placement")(placement.bench_placement)
app.command("labkit")(labkit.bench_labkit)
app.command("storm")(storm.bench_storm)
app.command("pages")(pages.bench_pages)
app.command("spawn")(spawn.bench_spawn)
app.command("scale")(scale.bench_scale)
app.command("faults")(faults.bench_faults)
app.command("class")(class_day.bench_class)
for _point in entry_points(group="miglab.benches"):
    app.command(_point.name)(_point.load())
