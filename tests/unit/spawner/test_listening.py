"""A new server is noticed as soon as it listens."""

import asyncio
import socket
from typing import Any

import pytest

from miglab_spawner.listening import host_and_port, wait_until_listening

LONG_S = 60.0


@pytest.mark.parametrize(
    ("address", "place"),
    [
        (("127.0.0.1", 8888), ("127.0.0.1", 8888)),
        (("", 8888), ("127.0.0.1", 8888)),
        (("::1", 8888), ("::1", 8888)),
        ("http+unix://%2Fsrv%2Fsocket", None),
        (("127.0.0.1", 0), None),
        (None, None),
    ],
)
def test_where_a_spawner_says_that_its_server_listens(address: Any, place: Any) -> None:
    """What has no host and port is left to JupyterHub."""
    assert host_and_port(address) == place


async def test_a_host_that_cannot_be_is_left_to_the_hub() -> None:
    """Its name is too long for DNS."""
    assert not await wait_until_listening("x" * 64 + ".example", 8888, 0.0)


async def test_a_server_is_noticed_once_it_listens() -> None:
    """It refuses at first; something accepts later, long before the time is over."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # a port that refuses until it listens
        asyncio.get_running_loop().call_later(0.05, bound.listen)
        assert await wait_until_listening(*bound.getsockname(), LONG_S)


async def test_a_server_that_never_listens_is_left_to_the_hub() -> None:
    """No start fails because of this: the hub says what is wrong with it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert not await wait_until_listening(*bound.getsockname(), 0.1)
