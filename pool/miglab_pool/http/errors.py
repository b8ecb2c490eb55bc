"""Refusals over HTTP: each has a reason for programs and a sentence for people."""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from miglab_api.base import Refusal
from miglab_pool.ledger.tables import LedgerUnwritable
from miglab_pool.refused import WAYS_ON, Refused

log = logging.getLogger(__name__)

LONGEST_BODY = 64 * 1024  # bytes; no request of the lab is nearly as long
CSP = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REASONS = {
    "bad-disk": "the disk of the lab's state folder is full or fails: nothing was changed",
    "bad-input": "the request cannot be read",
    "forbidden": "it belongs to somebody else, or needs a role",
    "hub-silent": "the hub does not answer",
    "no-such-page": "there is nothing at this address",
    "not-signed-in": "no token or session, or one that is not known (any more)",
    "sign-in-failed": "the way back from the hub was not this browser's",
    "slurm-refused": "Slurm refused a command; the message is what it said",
    "too-often": "a server reports, or somebody asks or sends unknown tokens, faster than they may",
    "too-many-streams": "somebody follows the pool in more windows than anybody reads",
    "unforeseen": "the service failed at something nobody foresaw; its log says at what",
    "wrong-method": "the address does not take this method",
    "xsrf": "a write by a browser without the page's token",
}
"""The reasons with which the service itself refuses, besides those of the pool."""

REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text}
    for status, text in {
        400: "The request cannot be read.",
        401: "Nobody is signed in, or the token is unknown.",
        403: "Not yours, or not allowed.",
        404: "There is no such thing.",
        409: "Its state does not allow it.",
        413: "The request is too long.",
        422: "The request makes no sense.",
        429: "The queue is full, or this comes too often.",
        500: "Something nobody foresaw.",
        503: "The pool or the hub cannot answer now.",
        507: "The lab's disk is full.",
    }.items()
}
"""What the OpenAPI description says of every route."""


UNFORESEEN = (
    "Something went wrong in the pool service, through no fault of yours. Try again in a moment. "
    "If it happens again, tell the lab's operator when: the service's log says what it was."
)


class DeniedError(Exception):
    """The service refuses a request before the pool sees it.

    Attributes:
        status: the HTTP status.
        reason: one of `REASONS`.
        message: what happened, and what the person can do about it.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def install_refusals(app: FastAPI, count: Callable[[str], None]) -> None:
    """Install the refusals, the body limit and the security headers of an application.

    Args:
        app: the application.
        count: called with the reason of every refusal, for the metrics.
    """

    async def refused(_request: Request, error: Exception) -> JSONResponse:
        status, reason, message = _refusal_parts(error)
        count(reason)
        response = _refusal_response(status, reason, message, WAYS_ON.get(reason, ""))
        if reason == "unforeseen":
            response.headers.update(HEADERS)  # this response is made outside of all middleware
        return response

    # An error that is unforeseen is raised again afterwards, for the log.
    for kind in (LedgerUnwritable, Exception, Refused, DeniedError, RequestValidationError):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(AnyHTTPException, http_error)
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)


class BodyLimit:
    """ASGI middleware that reads no more of a request than `LONGEST_BODY`.

    The framework reads a body into memory before the principal is known.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and fail once it is too long."""
        read_bytes = 0

        async def counted() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > LONGEST_BODY:
                raise HTTPException(413, f"A request has at most {LONGEST_BODY} bytes.")
            return message

        await self.app(scope, counted, send)


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS` to every response, streams included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the response back with the headers."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, with_headers)


async def http_error(_request: Request, error: Exception) -> JSONResponse:
    """Return the framework's own errors, such as an unknown address, as refusals."""
    assert isinstance(error, AnyHTTPException)
    reason = {404: "no-such-page", 405: "wrong-method"}.get(error.status_code, "bad-input")
    response = _refusal_response(error.status_code, reason, str(error.detail))
    response.headers.update(error.headers or {})
    return response


def _refusal_parts(error: Exception) -> tuple[int, str, str]:
    """Return the status, reason and message for an error."""
    if isinstance(error, Refused | DeniedError):
        return error.status, error.reason, error.message
    if isinstance(error, RequestValidationError):
        return 422, "bad-input", _describe_invalid(error)
    if isinstance(error, LedgerUnwritable):
        log.error("%s", error)
        return 507, "bad-disk", str(error)
    return 500, "unforeseen", UNFORESEEN


def _refusal_response(status: int, reason: str, message: str, way_on: str = "") -> JSONResponse:
    refusal = Refusal(reason=reason, message=message, way_on=way_on)
    return JSONResponse(refusal.model_dump(), status)


def _describe_invalid(error: RequestValidationError) -> str:
    """Return where a request is invalid and why, without repeating its content."""
    parts = [
        f"{'.'.join(str(step) for step in detail['loc'])}: {detail['msg']}"
        for detail in error.errors()[:5]
    ]
    return "The request cannot be read: " + "; ".join(parts)
