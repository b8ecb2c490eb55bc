"""What programs read of the service: its metrics' states, and its description in OpenAPI."""

from fastapi import FastAPI

from miglab_pool.http import management_app
from miglab_pool.http.metrics import GPU_STATES
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.ledger import rows


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
