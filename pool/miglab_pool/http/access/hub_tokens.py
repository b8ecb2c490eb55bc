"""Asks the hub whose a token is; limits how often it is asked.

The hub answers one request at a time, so thousands of invented tokens would delay the servers that
report.  So the hub is asked about the same unknown token once a minute, and about a limited number
of them for each address.  A token that the hub once knew is not limited.  A failed guess costs the
address that made it: while guessers together send too many, addresses that have failed within the
minute are refused, and every other one is heard.
"""

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Self

from jupyterhub.services.auth import HubOAuth
from tornado.web import HTTPError

from miglab_pool.http.connection_limits import is_shared
from miglab_pool.http.errors import DeniedError
from miglab_pool.hub_answers import HUB_PATH

log = logging.getLogger(__name__)

GUESSES_OF_AN_ADDRESS, GUESSES_IN_ALL = 20, 600  # in a minute
WINDOW_S = 60.0
KNOWN_TOKEN_S = 3600.0  # a server's token comes every few seconds, a session's in minutes
ANY_TOKEN = re.compile(r"\S{1,255}")
SERVER_TOKEN = re.compile(r"[0-9a-f]{32}")  # JupyterHub 6: `utils.new_token`


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How to reach the hub, and as whom.

    Attributes:
        api_url: the hub's API, reached from here.
        hub_prefix: the hub's path as browsers see it.
        prefix: this service's path, without a slash at its end.
        service: this service's name at the hub.
        token: this service's own hub token.
        cache_s: how long an answer of the hub about a token is cached.
        hub_origin: the hub's ``https://host``, with per-user domains; else empty.
        origin: this service's ``https://host``, with per-user domains; else empty.
    """

    api_url: str
    hub_prefix: str
    prefix: str
    service: str
    token: str
    cache_s: int = 30
    hub_origin: str = ""
    origin: str = ""

    @property
    def base_url(self) -> str:
        """The path below which the hub serves everything, with a slash at both ends."""
        return self.hub_prefix.removesuffix(HUB_PATH) + "/"

    @property
    def hub_url(self) -> str:
        """Where the hub listens, without any path."""
        return self.api_url.removesuffix(f"{self.hub_prefix}api")

    @property
    def route(self) -> str:
        """This service's path below `base_url`."""
        return f"/services/{self.service}"

    def below(self, base_url: str) -> Self:
        """Return the access to the same hub below another path."""
        hub_prefix = base_url.rstrip("/") + HUB_PATH
        return replace(
            self,
            api_url=f"{self.hub_url}{hub_prefix}api",
            hub_prefix=hub_prefix,
            prefix=base_url.rstrip("/") + self.route,
        )

    @property
    def is_host_only(self) -> bool:
        """Whether cookies have the prefix ``__Host-``: no other host can set or be sent them.

        Only with an origin of our own: such a cookie's path is ``/``, and on a shared host every
        student's server would be sent it.
        """
        return self.origin.startswith("https://")

    @property
    def cookie_path(self) -> str:
        """The path of all cookies of the service."""
        return "/" if self.is_host_only else f"{self.prefix}/"

    @property
    def client_id(self) -> str:
        """The service's name as OAuth client."""
        return f"service-{self.service}"

    @property
    def scope(self) -> str:
        """The scope that lets a person in."""
        return f"access:services!service={self.service}"


class HubTokens:
    """Asks the hub whose a token is.

    Args:
        access: how to reach the hub.
        form: the form of tokens; others are unknown without asking.
        is_shared: whether many clients share an address, so that it has no limit of its own.
        now: seconds that never jump.
    """

    def __init__(
        self,
        access: HubAccess,
        form: re.Pattern[str] = ANY_TOKEN,
        is_shared: Callable[[str], bool] = is_shared,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.move(access)
        self._form, self._is_shared, self._now = form, is_shared, now
        self._known: dict[str, float] = {}
        self._unknown: dict[str, float] = {}
        self._guesses: Counter[str] = Counter()
        self._began_at = now()

    def move(self, access: HubAccess) -> None:
        """Ask the hub at this address from now on."""
        self.oauth = HubOAuth(
            api_url=access.api_url,
            api_token=access.token,
            hub_host=access.hub_origin,
            hub_prefix=access.hub_prefix,
            base_url=access.prefix,
            oauth_client_id=access.client_id,
            oauth_redirect_uri=f"{access.origin}{access.prefix}/oauth_callback",
            access_scopes={access.scope},
            cache_max_age=access.cache_s,
        )

    def known_name(self, token: str | None) -> str | None:
        """Return a name for the token, if the hub knew it lately; else None."""
        name = _token_hash(token or "")
        return name if self._known.get(name, 0.0) > self._now() else None

    async def owner(self, token: str, address: str) -> dict[str, Any] | None:
        """Return the hub's description of a token's owner; None if the hub does not know the token.

        Args:
            token: the token.
            address: the client's address, by which unknown tokens are counted.

        Raises:
            DeniedError: the hub does not answer (503), or too many unknown tokens came (429).
        """
        name = _token_hash(token)
        self._forget()
        if not self._form.fullmatch(token) or name in self._unknown:
            return None
        is_guess = name not in self._known
        if is_guess:
            self._count_guess(address)
        try:
            model: dict[str, Any] | None = await self.oauth.user_for_token(token, sync=False)
        except HTTPError as error:
            self._guesses.subtract([address, ""] if is_guess else [])
            raise _hub_silent(error) from error
        if model is None:
            self._known.pop(name, None)
            self._unknown[name] = self._now() + WINDOW_S
            return None
        self._guesses.subtract([address, ""] if is_guess else [])
        self._known[name] = self._now() + KNOWN_TOKEN_S
        return model

    def _count_guess(self, address: str) -> None:
        """Count a token that may be invented; refuse it if there were too many."""
        failures, all_failures = self._guesses[address], self._guesses[""]
        if self._is_shared(address):  # nobody knows whose failures these are
            is_ahead = failures >= GUESSES_IN_ALL
        else:
            is_ahead = failures >= (1 if all_failures >= GUESSES_IN_ALL else GUESSES_OF_AN_ADDRESS)
        if is_ahead:
            raise DeniedError(
                429, "too-often", "Too many unknown tokens came from here. Wait a minute."
            )
        self._guesses.update([address, ""])

    def _forget(self) -> None:
        """Forget counts and tokens whose time is over."""
        now = self._now()
        if now - self._began_at >= WINDOW_S:
            self._began_at, self._guesses = now, Counter()
            self._known = {name: until for name, until in self._known.items() if until > now}
            self._unknown = {name: until for name, until in self._unknown.items() if until > now}

    async def token_for_code(self, code: str, verifier: str | None) -> str:
        """Exchange an OAuth code for a token.

        Raises:
            DeniedError: the hub does not answer, or refuses the code.
        """
        try:
            token: str = await self.oauth.token_for_code(code, code_verifier=verifier, sync=False)
        except HTTPError as error:
            raise DeniedError(
                403, "sign-in-failed", "The hub refused the sign-in. Try again."
            ) from error
        self._known[_token_hash(token)] = self._now() + KNOWN_TOKEN_S
        return token

    def lets_in(self, model: Mapping[str, Any]) -> bool:
        """Whether the owner, with this token, may use the service."""
        return bool(self.oauth.check_scopes(self.oauth.access_scopes, model))


def _token_hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _hub_silent(error: HTTPError) -> Exception:
    log.warning("the hub does not say whose a token is: %s", error)
    return DeniedError(503, "hub-silent", "The hub does not answer. Try again in a moment.")
