"""Sign-in by others: an OIDC provider with group claims.

The provider is played here, over HTTP; hub, pool and spawn page are the lab's own.
"""

import json
import secrets
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from tests.played import Answers, serving

from miglab_bench.harness.temporary import temporary_lab

pytestmark = pytest.mark.long

JSON = "application/json"
COURSE = '[courses.vision]\ntitle = "Computer vision"\nshapes = ["1g.5gb", "cpu"]\n'
ONE_ORIGIN = "students_can_act_as_staff = true"  # nobody publishes a page here


class Elsewhere(ThreadingHTTPServer):
    """The provider's server; ``person`` is who is signed in there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Elsewhere)
        self.person: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Elsewhere(Answers):
    server: Elsewhere

    def do_GET(self) -> None:  # noqa: N802  the base class calls it so
        url = urlsplit(self.path)
        if url.path == "/authorize":  # the person has consented
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            back = urlencode({"code": secrets.token_hex(), "state": query["state"]})
            self.send_response(302)
            self.send_header("Location", f"{query['redirect_uri']}?{back}")
            self.end_headers()
            return
        self.answer(json.dumps(self.server.person), JSON)

    def do_POST(self) -> None:  # noqa: N802  the base class calls it so
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(json.dumps({"access_token": "t", "token_type": "bearer"}), JSON)


OIDC = """
[authentication]
class = "oauthenticator.generic.GenericOAuthenticator"
[authentication.config.GenericOAuthenticator]
client_id = "miglab"
client_secret = "secret"
authorize_url = "{url}/authorize"
token_url = "{url}/token"
userdata_url = "{url}/userinfo"
username_claim = "preferred_username"
allow_all = true
manage_groups = true
auth_state_groups_key = "oauth_user.groups"
"""


BOOK = "/services/pool/reservations"
SIGN_IN = "hub/oauth_login?next=/hub/spawn"
PEOPLE = (  # name, groups there, where they go, where they are then, whether the page has the words
    ("ada", ["vision"], SIGN_IN, "/hub/spawn", "Computer vision", True),
    ("ada", [], SIGN_IN, "/hub/spawn", "Computer vision", False),
    ("ina", ["vision-instructors"], f"hub/oauth_login?next={BOOK}", BOOK, "Reserve…", True),
)


def test_groups_of_an_oidc_provider() -> None:
    """Group claims say who is in a course and who teaches it, anew at each sign-in."""
    with serving(Elsewhere()) as elsewhere:
        settings = COURSE + OIDC.format(url=elsewhere.url)
        with temporary_lab(docker=False, accept=ONE_ORIGIN, more=settings) as lab:
            for name, groups, way, path, text, is_there in PEOPLE:
                elsewhere.person = {"preferred_username": name, "groups": groups}
                with httpx.Client(
                    base_url=lab.settings.public_url,
                    follow_redirects=True,
                    timeout=60,
                    trust_env=False,
                ) as browser:
                    page = browser.get(way)
                    assert page.url.path == path, page.text
                    assert (text in page.text) is is_there
