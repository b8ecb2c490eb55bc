"""Who is asking?  All of sign-in, in one room; nothing else here reads a cookie or a token.

Three ways in, tried in this order:

- the pool's own secret as a bearer token: the spawner, or the operator on this host;
- a hub API token as a bearer token: people on the command line, and students' servers;
- a session cookie: browsers, after JupyterHub's OAuth with PKCE.

The session lives in this process and the hub's token never leaves it: the cookie is a random name
for the session (HttpOnly, SameSite).  A write that a cookie vouches for must carry the session's
XSRF token in a header, which no page of another origin can read or send.  A page of the *same*
origin can do both.  So students' servers need origins of their own (`HubAccess.origin`): without
them nothing here keeps a student's page from acting as whoever opens it.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.requests import HTTPConnection
from tornado.httputil import url_concat

from miglab_pool.course_roles import RoleBook
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.access.principal import SPAWNER, Principal, PrincipalKind
from miglab_pool.http.access.sessions import PendingSignIns, Session, Sessions
from miglab_pool.http.connection_limits import forwarded_for
from miglab_pool.http.errors import DeniedError

ADMIN_SCOPE = "custom:miglab:admin"
STAFF_SCOPE = "custom:miglab:staff"
LEASE_SCOPE = "custom:miglab:lease"
XSRF_HEADER = "X-XSRFToken"
STATE_LIVES_S = 600
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER = re.compile(r"(?:token|bearer)\s+(\S+)\s*", re.IGNORECASE)


class SignIn:
    """Signs in whoever reaches the management listener.

    Args:
        access: how to reach the hub.
        secret: the pool's own.
        book: the lab's courses and who teaches them.
        tokens: the hub; for tests.
    """

    def __init__(
        self, access: HubAccess, secret: str, book: RoleBook, tokens: HubTokens | None = None
    ) -> None:
        self.access = access
        self.book = book
        self.tokens = tokens or HubTokens(access)
        self.sessions = Sessions()
        self._pending = PendingSignIns(STATE_LIVES_S)
        self._secret = secret.encode()
        cookie = f"{'__Host-' if access.is_host_only else ''}{access.client_id}"
        self._session_cookie = f"{cookie}-session"
        self._state_cookie = f"{cookie}-state"

    async def principal(self, request: Request) -> Principal:
        """Who asks.

        Raises:
            Refused: nobody (401), not allowed in (403), XSRF token missing (403), no hub (503).
        """
        token = bearer(request)
        if token is not None:
            if compare_digest(token.encode(), self._secret):
                return SPAWNER
            return await self._person(token, forwarded_for(request))
        session = self._session(request)
        if session is None:
            raise _nobody()
        self._check_xsrf(request, session)
        return await self._person(session.token, forwarded_for(request), session.xsrf)

    def known(self, request: HTTPConnection) -> str | None:
        """Who pays for a request: "" for the spawner, who is never limited; None if unknown."""
        token, session = bearer(request), self._session(request)
        if token is not None and compare_digest(token.encode(), self._secret):
            return ""
        if token is None:
            token = session.token if session is not None else ""
        return self.tokens.known(token)

    def _session(self, request: HTTPConnection) -> Session | None:
        return self.sessions.get(request.cookies.get(self._session_cookie, ""))

    async def _person(self, token: str, address: str, xsrf: str = "") -> Principal:
        model = await self.tokens.owner(token, address)
        if model is None:
            raise _nobody()
        if not self.tokens.lets_in(model):
            raise DeniedError(403, "forbidden", "This account may not use the pool.")
        return principal_from(model, self.book, xsrf)

    def _check_xsrf(self, request: Request, session: Session) -> None:
        if request.method in SAFE_METHODS:
            return
        sent = request.headers.get(XSRF_HEADER, "")
        if not compare_digest(sent.encode(), session.xsrf.encode()):
            raise DeniedError(403, "xsrf", "This page is out of date. Load it again and repeat.")

    # OAuth, for browsers.

    def begin(self, request: Request) -> Response:
        """Send the browser to the hub, with a state that only this browser can bring back."""
        oauth = self.tokens.oauth
        verifier, challenge, method = oauth.generate_pkce_code_challenge()
        state, cookie = self._pending.begin(verifier, request.url.path)
        query = {"state": state, "code_challenge": challenge, "code_challenge_method": method}
        answer = RedirectResponse(url_concat(oauth.login_url, query), 302)
        self._set_cookie(request, answer, self._state_name(state), cookie, STATE_LIVES_S)
        return answer

    async def finish(self, request: Request) -> Response:
        """Take the browser back from the hub and give it a session.

        Raises:
            Refused: the state is not this browser's, or the hub refuses.
        """
        state = request.query_params.get("state", "")
        name = self._state_name(state)
        pending = self._pending.find(state, request.cookies.get(name, ""))
        if pending is None:
            raise DeniedError(
                403, "sign-in-failed", "This sign-in began in another browser or too long ago."
            )
        code = request.query_params.get("code", "")
        token = await self.tokens.token_for_code(code, pending.verifier)
        self._pending.serve(state, pending)
        person = await self._person(token, forwarded_for(request))
        session = self.sessions.open(person.name, token)
        answer = RedirectResponse(pending.next_url, 303)
        self._set_cookie(request, answer, name, "", 0)
        self._set_cookie(request, answer, self._session_cookie, session, self.sessions.lives_s)
        return answer

    def _state_name(self, state: str) -> str:
        """A cookie for each sign-in under way, so that two tabs do not disturb each other."""
        return f"{self._state_cookie}-{sha256(state.encode()).hexdigest()[:8]}"

    def _set_cookie(
        self, request: Request, answer: Response, name: str, value: str, lives_s: int
    ) -> None:
        """SameSite is Lax: the hub's redirect back is a navigation from another page."""
        answer.set_cookie(
            name,
            value,
            max_age=lives_s,
            path=self.access.cookie_path,
            secure=self.access.is_host_only or _is_https(request),
            httponly=True,
            samesite="lax",
        )


def bearer(request: HTTPConnection) -> str | None:
    """The token of the Authorization header, if it carries one."""
    match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
    return match[1] if match else None


def principal_from(model: Mapping[str, Any], book: RoleBook, xsrf: str = "") -> Principal:
    """The principal that the hub's description of a token's owner stands for.

    A hub admin, or who has `ADMIN_SCOPE`, is site admin; who has `STAFF_SCOPE` instructs every
    course.  A hub service has roles by its scopes alone: lab.toml and groups name people.
    """
    is_person = model.get("kind") == "user"
    scopes, groups = model.get("scopes", ()), tuple(model.get("groups", ()))
    name = str(model["name"])
    known_as = name if is_person else ""
    return Principal(
        kind=PrincipalKind.PERSON if is_person else PrincipalKind.SERVICE,
        name=name,
        admin=bool(model.get("admin")) or ADMIN_SCOPE in scopes,
        instructs=book.instructed(known_as, groups, in_all=STAFF_SCOPE in scopes),
        assists=book.assisted(known_as, groups),
        xsrf=xsrf,
        course_names=groups,
    )


def server_of(model: Mapping[str, Any]) -> tuple[str, str] | None:
    """The one server whose token this is: (user, server name); None for any other token.

    A server's token carries the lease scope filtered to that server; the hub sets the filter.
    """
    prefix = f"{LEASE_SCOPE}!server="
    servers = [s.removeprefix(prefix) for s in model.get("scopes", ()) if s.startswith(prefix)]
    if model.get("kind") != "user" or len(servers) != 1:
        return None
    user, _, server = servers[0].partition("/")
    return (user, server) if user == model.get("name") else None


def _is_https(request: Request) -> bool:
    forwarded = request.headers.get("X-Forwarded-Proto", "").split(",")[0].strip()
    return (forwarded or request.url.scheme) == "https"


def _nobody() -> Exception:
    return DeniedError(
        401, "not-signed-in", "Nobody is signed in, or the token is not known (any more)."
    )
