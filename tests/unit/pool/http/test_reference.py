"""The reference says what there is: every route, metric and reason, and no other."""

import re
from pathlib import Path

from fastapi import FastAPI

from miglab_pool.http import management_app
from miglab_pool.http.metrics import GPU_STATES, Metrics
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.ledger import rows
from miglab_pool.worker.jobs import JobKind

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"


def test_every_metric_is_described() -> None:
    """The table of metrics lists exactly the metrics there are, with their labels."""
    text = (REFERENCE / "metrics.md").read_text()
    rows = re.findall(r"^\| `(miglab_\w+)` \|([^|]*)\|", text, re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    collectors = set(Metrics().registry._collector_to_names)
    assert listed == {one._name: set(one._labelnames) for one in collectors}  # type: ignore[attr-defined]
    for value in (*GPU_STATES, *JobKind):
        assert f"`{value}`" in text


def test_every_state_of_a_gpu_is_counted() -> None:
    """The pool's states of a GPU are the metric's, and there is none that nothing sets."""
    states = {value for name, value in vars(rows).items() if name.startswith("GPU_")}
    assert states == set(GPU_STATES) == {"ok", "unknown", "lost"}


def test_the_openapi_description_is_whole(runner: PoolRunner, sign_in: object) -> None:
    """Both applications describe themselves, refusals included."""
    app: FastAPI = management_app.management_app(runner, sign_in, default_course="x")  # type: ignore[arg-type]
    paths = app.openapi()["paths"]
    assert "409" in paths["/services/pool/api/tickets"]["post"]["responses"]
    assert all(route.get("description") for path in paths.values() for route in path.values())
