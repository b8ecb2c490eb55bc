"""A proxy before a hub's own: it ends TLS, and passes an answer on only once it has all of it.

Run as a program: port, port of the hub's proxy, certificate, key.  A stream of events does not end:
it is passed on as far as it has come within `PATIENCE_S`.  Every other answer is waited for, as
long as a busy hub takes for it: one that is cut off is an answer that the hub never gave.
"""

import asyncio
import ssl
import sys
from contextlib import suppress

PATIENCE_S = 3.0


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
    """One request, one answer."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line for line in head.decode("latin-1").split("\r\n") if line]
        headers = [line for line in lines if not line.lower().startswith("connection:")]
        sizes = [line for line in lines if line.lower().startswith("content-length:")]
        body = await reader.readexactly(int(sizes[0].split(":")[1])) if sizes else b""
        upstream, request = await asyncio.open_connection("127.0.0.1", target)
        added_headers = (
            "X-Forwarded-Proto: https",
            "X-Forwarded-For: 127.0.0.1",
            "Connection: close",
        )
        request.write("\r\n".join([*headers, *added_headers, "", ""]).encode("latin-1") + body)
        writer.write(await whole_answer(upstream))
        request.close()
        await writer.drain()
    writer.close()


async def whole_answer(upstream: asyncio.StreamReader) -> bytes:
    """All of it, held back until it has ended."""
    answer = await upstream.readuntil(b"\r\n\r\n")
    is_stream = b"\r\ncontent-type: text/event-stream" in answer.lower()
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S if is_stream else None):
            while part := await upstream.read(65536):
                answer += part
    return answer


async def main(port: str, target: str, certificate: str, key: str) -> None:
    """Serve until ended."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await pass_on(reader, writer, int(target))

    server = await asyncio.start_server(serve, "127.0.0.1", int(port), ssl=tls)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
