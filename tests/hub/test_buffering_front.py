"""The tests' buffering proxy holds streams back, and cuts no answer of a busy hub."""

import asyncio

import pytest

from . import buffering_front

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n\r\n"


@pytest.mark.parametrize(
    ("content_type", "is_whole"),
    [(b"text/html", True), (b"text/event-stream; charset=UTF-8", False)],
)
async def test_only_a_stream_is_passed_on_unfinished(
    monkeypatch: pytest.MonkeyPatch, content_type: bytes, is_whole: bool
) -> None:
    """What comes after its patience is over is part of every answer that ends."""
    monkeypatch.setattr(buffering_front, "PATIENCE_S", 0.0)
    upstream = asyncio.StreamReader()
    answering = asyncio.create_task(buffering_front.whole_answer(upstream))
    head = HEAD % content_type
    upstream.feed_data(head)
    for _ in range(5):
        await asyncio.sleep(0)
    upstream.feed_data(b"late")
    upstream.feed_eof()
    assert await answering == head + (b"late" if is_whole else b"")
