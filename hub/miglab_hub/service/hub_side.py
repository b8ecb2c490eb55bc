"""How a service of the lab reaches the hub, and by which secrets."""

from pathlib import Path

import httpx

from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import SERVICE_NAME, Settings
from miglab_pool.http.access.hub_tokens import HubAccess

HUB_TIMEOUT_S = 30.0


def private(path: Path) -> str:
    """A secret, read from a file that only its owner may read.

    Raises:
        OSError: it cannot be read, or others may read it.
    """
    if path.stat().st_mode & 0o077:
        raise PermissionError(
            f"{path} can be read by others: delete it (it is made anew), or chmod 600"
        )
    return lab_secrets.read(path)


def access_of(settings: Settings, cache_s: int = 30) -> HubAccess:
    """How the service reaches the hub, and as whom."""
    return HubAccess(
        api_url=settings.hub_api_url,
        hub_prefix=f"{settings.lab.base_url}hub/",
        prefix=settings.service_prefix,
        service=SERVICE_NAME,
        token=private(settings.service_token),
        cache_s=cache_s,
        hub_origin=settings.lab.subdomain_host,
        origin=settings.service_origin,
    )


def hub_client(access: HubAccess) -> httpx.AsyncClient:
    """The hub's API, as the service."""
    return httpx.AsyncClient(
        base_url=access.api_url,
        headers={"Authorization": f"token {access.token}"},
        timeout=HUB_TIMEOUT_S,
        trust_env=False,
    )
