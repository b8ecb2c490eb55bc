"""The sockets: answers leave at once, and connections are closed by who asks."""

import socket

from fastapi import FastAPI

from miglab_pool.http.connection_limits import KEEP_ALIVE_S, bind, listener

HTTPX_KEEP_ALIVE_S = 5


def test_the_protocol_is_named() -> None:
    """asyncio switches Nagle's algorithm off only where the socket says that it is TCP."""
    with bind("127.0.0.1", 0, "[pool] port") as taken:
        assert taken.proto == socket.IPPROTO_TCP


def test_the_client_closes_first() -> None:
    """Otherwise a request could meet a connection that the service is just closing."""
    assert listener(FastAPI()).config.timeout_keep_alive == KEEP_ALIVE_S
    assert KEEP_ALIVE_S > HTTPX_KEEP_ALIVE_S
