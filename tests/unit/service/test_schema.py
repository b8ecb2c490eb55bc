"""Requests made up from the API's own description get no answer that it does not describe."""

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks

from miglab_hub.service.auth import SignIn
from miglab_hub.service.host import PoolHost
from miglab_hub.service.management import management_app
from miglab_hub.service.metrics import Metrics

from .fakes import ACCESS, BOOK, SECRET, FakePool, FakeTokens, lease_view

load_all_checks()
EXCLUDED = "/(events|health|metrics)$"


def build() -> object:
    pool = FakePool(held={1: lease_view(1, "alice")})
    pool.request_of_alice()
    host = PoolHost(pool, Metrics())  # type: ignore[arg-type]
    return management_app(
        host, SignIn(ACCESS, SECRET, BOOK, FakeTokens(ACCESS)), default_course="ml"
    )


schema = schemathesis.openapi.from_asgi("/services/pool/api/openapi.json", build())


@schema.exclude(path_regex=EXCLUDED).parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_described(case: schemathesis.Case) -> None:
    """No crash, and only the described statuses and bodies, whatever is sent."""
    case.call_and_validate(headers={"Authorization": f"Bearer {SECRET}"})
