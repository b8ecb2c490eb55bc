"""Sign-in: finds the principal of a request; no other module reads a cookie or a token.

Three ways in, tried in this order:

- the pool's own secret as a bearer token: the spawner, or the operator on this host;
- a hub API token as a bearer token: people on the command line, and students' servers;
- a session cookie: browsers, after JupyterHub's OAuth with PKCE.

The session lives in this process and the hub's token never leaves it: the cookie is a random name
for the session (HttpOnly, SameSite).  A write that a cookie vouches for must carry the session's
XSRF token in a header, which no page of another origin can read or send.  A page of the *same*
origin can do both.  So students' servers need origins of their own (`HubAccess.origin`): without
them nothing here keeps a student's page from acting as whoever opens it.

A sign-in under way is kept by the browser that began it, so it costs no memory here.  The browser's
cookie holds PKCE's verifier and the page to come back to, signed together with the state that goes
to the hub and back; only that browser can present both.  Sessions are in memory, so a restart of
the service signs everybody in anew, without asking them.
"""

import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from fastapi import Request
from fastapi.responses import RedirectResponse, Response
from starlette.requests import HTTPConnection
from tornado.httputil import url_concat
from tornado.web import create_signed_value, decode_signed_value

from miglab_api.base import USER_ID_KEY
from miglab_api.scopes import ADMIN_SCOPE, LEASE_SCOPE, STAFF_SCOPE
from miglab_pool.course_roles import RoleBook
from miglab_pool.http.access.hub_tokens import HubAccess, HubTokens
from miglab_pool.http.access.principal import SPAWNER, Principal, PrincipalKind
from miglab_pool.http.connection_limits import forwarded_for
from miglab_pool.http.errors import DeniedError
from miglab_pool.schedule import DAY_S

XSRF_HEADER = "X-XSRFToken"
STATE_LIVES_S = 600
LONGEST_QUERY = 1000  # characters of the requested page's query that are kept
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_BEARER = re.compile(r"(?:token|bearer)\s+(\S+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in under way: what its last step needs.

    Attributes:
        verifier: the verifier of PKCE.
        next_url: the page to come back to.
    """

    verifier: str
    next_url: str


class PendingSignIns:
    """Signs and reads the cookies of sign-ins; remembers the states that were used, until they end.

    Args:
        lives_s: how long a sign-in may take.
        now: the clock, seconds.
    """

    def __init__(self, lives_s: int, now: Callable[[], float] = time.monotonic) -> None:
        self._lives_s = lives_s
        self._now = now
        self._key = secrets.token_bytes(32)
        self._served: dict[str, float] = {}

    def begin(self, verifier: str, next_url: str) -> tuple[str, str]:
        """Return a new state, and the cookie that belongs to it."""
        state = secrets.token_urlsafe(16)
        content = json.dumps([verifier, next_url])
        return state, create_signed_value(self._key, state, content, clock=self._now).decode()

    def find(self, state: str, cookie: str) -> PendingSignIn | None:
        """Return the sign-in of a state, if the cookie is its own, in time and unused."""
        days = self._lives_s / DAY_S
        content = decode_signed_value(self._key, state, cookie, days, self._now, min_version=2)
        return (
            None
            if content is None or state in self._served
            else PendingSignIn(*json.loads(content))
        )

    def serve(self, state: str) -> None:
        """Mark a state as used, so that it leads to no second session."""
        now = self._now()
        self._served = {s: at for s, at in self._served.items() if now - at <= self._lives_s}
        self._served[state] = now


@dataclass(frozen=True, slots=True)
class Session:
    """One signed-in browser.

    Attributes:
        person: the person who signed in.
        token: the hub token from OAuth, which never leaves this process.
        xsrf: the token that a write of this session must carry.
        ends_at: when it ends, by the clock of `Sessions`.
    """

    person: str
    token: str
    xsrf: str
    ends_at: float


class Sessions:
    """A bounded set of sessions.

    When it is full, the oldest session of whoever has most of them ends: a person's only session
    ends for another one only if `limit` people are signed in.

    Args:
        lives_s: how long a session lives.
        limit: how many sessions there may be.
        limit_per_person: how many a person may have.
        now: the clock, seconds.
    """

    def __init__(
        self,
        lives_s: int = 12 * 3600,
        limit: int = 10_000,
        limit_per_person: int = 32,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lives_s = lives_s
        self._limit = limit
        self._limit_per_person = limit_per_person
        self._now = now
        self._sessions: dict[str, Session] = {}

    def open(self, person: str, token: str) -> str:
        """Open a session, and return the value of its cookie."""
        self._make_room_for(person)
        session_name = secrets.token_urlsafe(32)
        xsrf = secrets.token_urlsafe(32)
        self._sessions[session_name] = Session(person, token, xsrf, self._now() + self.lives_s)
        return session_name

    def _make_room_for(self, person: str) -> None:
        """Forget the sessions that have ended, and end one if the person or all have too many."""
        now = self._now()
        self._sessions = {
            name: session for name, session in self._sessions.items() if session.ends_at > now
        }
        counts = Counter(session.person for session in self._sessions.values())
        if counts[person] >= self._limit_per_person:
            self._end_oldest_of({person})
        elif len(self._sessions) >= self._limit:
            largest = max(counts.values())
            self._end_oldest_of({name for name, count in counts.items() if count == largest})

    def _end_oldest_of(self, people: Collection[str]) -> None:
        sessions = self._sessions.items()
        oldest = next(name for name, session in sessions if session.person in people)
        del self._sessions[oldest]

    def get(self, name: str) -> Session | None:
        """Return the session of a cookie; None if there is none or it has ended."""
        session = self._sessions.get(name)
        if session is not None and session.ends_at <= self._now():
            del self._sessions[name]
            return None
        return session


class SignIn:
    """Signs in the clients of the management listener.

    Args:
        access: how to reach the hub.
        secret: the pool's own secret.
        book: the lab's courses and their staff.
        tokens: asks the hub about tokens; given by tests.
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

    def move(self, access: HubAccess) -> None:
        """Sign people in at the hub there from now on."""
        self.access = access
        self.tokens.move(access)

    async def principal(self, request: Request) -> Principal:
        """Return the principal of a request.

        Raises:
            DeniedError: not signed in (401), no access or no XSRF token (403), silent hub (503).
        """
        token = bearer_token(request)
        if token is not None:
            if compare_digest(token.encode(), self._secret):
                return SPAWNER
            return await self._person(token, forwarded_for(request))
        session = self._session(request)
        if session is None:
            raise _not_signed_in()
        self._check_xsrf(request, session)
        return await self._person(session.token, forwarded_for(request), session.xsrf)

    def known_payer(self, request: HTTPConnection) -> str | None:
        """Return the payer of a request: "" for the spawner, who has no limit; None if unknown."""
        token, session = bearer_token(request), self._session(request)
        if token is not None and compare_digest(token.encode(), self._secret):
            return ""
        if token is None:
            token = session.token if session is not None else ""
        return self.tokens.known_name(token)

    def _session(self, request: HTTPConnection) -> Session | None:
        return self.sessions.get(request.cookies.get(self._session_cookie, ""))

    async def _person(self, token: str, address: str, xsrf: str = "") -> Principal:
        model = await self.tokens.owner(token, address)
        if model is None:
            raise _not_signed_in()
        if not self.tokens.lets_in(model):
            raise DeniedError(403, "forbidden", "This account may not use the pool.")
        return principal_from(model, self.book, xsrf)

    def _check_xsrf(self, request: Request, session: Session) -> None:
        if request.method in SAFE_METHODS:
            return
        sent_token = request.headers.get(XSRF_HEADER, "")
        if not compare_digest(sent_token.encode(), session.xsrf.encode()):
            raise DeniedError(403, "xsrf", "This page is out of date. Load it again and repeat.")

    # OAuth, for browsers.

    def begin(self, request: Request) -> Response:
        """Send the browser to the hub, with a state that only this browser can bring back."""
        oauth = self.tokens.oauth
        verifier, challenge, method = oauth.generate_pkce_code_challenge()
        page_query = request.url.query[:LONGEST_QUERY]
        next_url = f"{request.url.path}?{page_query}" if page_query else request.url.path
        state, cookie = self._pending.begin(verifier, next_url)
        query = {"state": state, "code_challenge": challenge, "code_challenge_method": method}
        response = RedirectResponse(url_concat(oauth.login_url, query), 302)
        self._set_cookie(request, response, self._state_name(state), cookie, STATE_LIVES_S)
        return response

    async def finish(self, request: Request) -> Response:
        """Take the browser back from the hub and give it a session.

        Raises:
            DeniedError: the state is not this browser's, or the hub refuses.
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
        self._pending.serve(state)
        person = await self._person(token, forwarded_for(request))
        session = self.sessions.open(person.name, token)
        response = RedirectResponse(pending.next_url, 303)
        self._set_cookie(request, response, name, "", 0)
        self._set_cookie(request, response, self._session_cookie, session, self.sessions.lives_s)
        return response

    def _state_name(self, state: str) -> str:
        """Return the name of a sign-in's own cookie, so that two tabs do not disturb each other."""
        return f"{self._state_cookie}-{sha256(state.encode()).hexdigest()[:8]}"

    def _set_cookie(
        self, request: Request, response: Response, name: str, value: str, lives_s: int
    ) -> None:
        """Set a cookie; SameSite is Lax, as the hub's redirect comes from another page."""
        response.set_cookie(
            name,
            value,
            max_age=lives_s,
            path=self.access.cookie_path,
            secure=self.access.is_host_only or _is_https(request),
            httponly=True,
            samesite="lax",
        )


def bearer_token(request: HTTPConnection) -> str | None:
    """Return the token of the Authorization header, if any."""
    match = _BEARER.fullmatch(request.headers.get("Authorization", ""))
    return match[1] if match else None


def principal_from(model: Mapping[str, Any], book: RoleBook, xsrf: str = "") -> Principal:
    """Return the principal for the hub's description of a token's owner.

    A hub admin, and who has `ADMIN_SCOPE`, is a site admin; who has `STAFF_SCOPE` is an instructor
    of every course.  lab.toml may name people as either, too.  A hub service has roles by its
    scopes alone, since lab.toml and groups name people.
    """
    is_person = model.get("kind") == "user"
    scopes, groups = model.get("scopes", ()), tuple(model.get("groups", ()))
    name = str(model["name"])
    person_name = name if is_person else ""
    return Principal(
        kind=PrincipalKind.PERSON if is_person else PrincipalKind.SERVICE,
        name=name,
        admin=bool(model.get("admin")) or ADMIN_SCOPE in scopes or person_name in book.admins,
        instructs=book.courses_instructed(person_name, groups, in_all=STAFF_SCOPE in scopes),
        assists=book.courses_assisted(person_name, groups),
        xsrf=xsrf,
        course_names=groups,
        user_id=user_id_of(model),
    )


def user_id_of(model: Mapping[str, Any]) -> str:
    """Return the hub's id of a token's owner, which outlasts renames; empty if there is none."""
    return str(model.get(USER_ID_KEY, "")) if model.get("kind") == "user" else ""


def server_of(model: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return user and name of the server whose token this is; None for any other token.

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


def _not_signed_in() -> Exception:
    return DeniedError(
        401, "not-signed-in", "Nobody is signed in, or the token is not known (any more)."
    )
