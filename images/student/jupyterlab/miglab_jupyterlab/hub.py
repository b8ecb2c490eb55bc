"""What this server asks of the hub: to be restarted with the slice offered, or without one."""

from urllib.parse import quote

from miglab_jupyterlab.asking import ApiClient, PoolSilent


class HubClient(ApiClient):
    """The hub's API, at ``JUPYTERHUB_API_URL``.

    Args:
        url: where it listens.
        token: the server's own.
        patience_s: how long one answer may take.
        user: whose server this is.
        server: its name; empty for the default one.
    """

    def __init__(self, url: str, token: str, patience_s: float, user: str, server: str) -> None:
        super().__init__(url, token, patience_s)
        self._path = f"/miglab/move/{quote(user, safe='')}/{quote(server, safe='')}"

    async def move(self, shape: str = "") -> str:
        """Take the offer and restart this server with it; or with this shape, which is ``cpu``.

        Returns:
            The path of the hub's page that leads to the new server.

        Raises:
            PoolRefused: nothing is offered (any more); nothing was stopped.
            PoolSilent: the hub did not answer.
        """
        url = (await self.post(self._path, {"shape": shape} if shape else {})).body.get("url")
        if not isinstance(url, str) or not url.startswith("/"):
            raise PoolSilent("the hub's answer names no page")
        return url
