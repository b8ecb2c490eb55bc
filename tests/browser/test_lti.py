"""A learning platform's course link in Chromium: LTI 1.3, in a window of its own.

The platform is played here, on another site than the lab (``localhost``, not ``127.0.0.1``), so
that the browser treats its cookies and forms as it would treat those of a real platform.
"""

import json
import time
from collections.abc import Callable, Iterator
from html import escape
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from playwright.sync_api import Page, expect
from tests.played import Answers, serving

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub.lti import CONTEXT, INSTRUCTOR, LEARNER, ROLES

pytestmark = [pytest.mark.long, pytest.mark.browser]

HTML = "text/html; charset=utf-8"
CLAIM = "https://purl.imsglobal.org/spec/lti/claim"
LAB_TOML = """
[courses.vision]
title = "Computer vision"
shapes = ["1g.5gb", "cpu"]

[authentication]
class = "miglab_hub.lti.CourseLTIAuthenticator"
[authentication.config.CourseLTIAuthenticator]
issuer = "{url}"
authorize_url = "{url}/authorize"
jwks_endpoint = "{url}/keys"
client_id = ["miglab"]
username_key = "custom_login"
manage_groups = true
"""


class Platform(ThreadingHTTPServer):
    """A platform with one course, "Vision", and a link to the lab in it.

    Attributes:
        lab_url: where the link leads.
        role: what whoever is signed in to the platform is in the course.
        signs_with: the key of its launches; the published one, unless somebody plays the platform.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.lab_url = ""
        self.role = LEARNER
        self.key = self.signs_with = rsa.generate_private_key(65537, 2048)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}"

    def course_page(self, login: str) -> str:
        """The course with its link: the first step of OpenID Connect's third-party login."""
        hints = {
            "iss": self.url,
            "login_hint": login,
            "target_link_uri": f"{self.lab_url}hub",
            "client_id": "miglab",
        }
        link = f"{self.lab_url}hub/lti13/oauth_login?{urlencode(hints)}"
        return f'<h1>Vision</h1><a target="_blank" href="{escape(link)}">GPU lab</a>'

    def launch_page(self, query: dict[str, str]) -> str:
        """The form that the browser posts to the lab by itself."""
        login, now = query["login_hint"], int(time.time())
        claims = {
            "iss": self.url,
            "aud": "miglab",
            "sub": f"id-of-{login}",
            "iat": now,
            "exp": now + 300,
            "nonce": query["nonce"],
            f"{CLAIM}/message_type": "LtiResourceLinkRequest",
            f"{CLAIM}/version": "1.3.0",
            f"{CLAIM}/deployment_id": "1",
            f"{CLAIM}/target_link_uri": f"{self.lab_url}hub",
            f"{CLAIM}/resource_link": {"id": "r1"},
            f"{CLAIM}/custom": {"login": login},
            CONTEXT: {"id": "c1", "label": "Vision"},
            ROLES: [self.role],
        }
        token = jwt.encode(claims, self.signs_with, algorithm="RS256", headers={"kid": "1"})
        fields = {"id_token": token, "state": query["state"]}
        inputs = "".join(
            f'<input type="hidden" name="{name}" value="{escape(value)}">'
            for name, value in fields.items()
        )
        return (
            f'<form method="post" action="{escape(query["redirect_uri"])}">{inputs}</form>'
            "<script>document.forms[0].submit()</script>"
        )

    def keys(self) -> dict[str, Any]:
        """The public key, as JWKS."""
        key = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": "1", "use": "sig", "alg": "RS256"}]}


class _Pages(Answers):
    server: Platform

    def do_GET(self) -> None:  # noqa: N802  the base class calls it so
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if url.path == "/keys":
            self.answer(json.dumps(self.server.keys()), "application/json")
        elif url.path == "/authorize":
            self.answer(self.server.launch_page(query), HTML)
        else:
            self.answer(self.server.course_page(query.get("login", "")), HTML)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with serving(Platform()) as server:
        yield server


@pytest.fixture(scope="module")
def lab(platform: Platform) -> Iterator[TemporaryLab]:
    platform_toml = LAB_TOML.format(url=platform.url)
    one_origin = "students_can_act_as_staff = true"  # nobody publishes a page here
    with temporary_lab(docker=False, accept=one_origin, more=platform_toml) as running:
        platform.lab_url = running.settings.public_url
        yield running


def launch(page: Page, platform: Platform, login: str) -> Page:
    """Press the link on the platform; answers the window that it opens."""
    page.goto(f"{platform.url}/course?login={login}")
    with page.expect_popup() as popup:
        page.get_by_role("link", name="GPU lab").click()
    return popup.value


def test_the_launch_says_course_and_role(
    lab: TemporaryLab, platform: Platform, new_page: Callable[[], Page]
) -> None:
    """A student gets the course's spawn page, an instructor the pool's page with her rights."""
    window = launch(new_page(), platform, "ada")
    expect(window.get_by_role("heading", name="Computer vision")).to_be_visible()
    platform.role = INSTRUCTOR
    window = launch(new_page(), platform, "ina")
    window.wait_for_url("**/services/pool/")
    window.goto(f"{lab.settings.public_url}services/pool/reservations")
    expect(window.get_by_role("button", name="Reserve…")).to_be_visible()


def test_a_launch_that_the_platform_did_not_sign(
    lab: TemporaryLab, platform: Platform, page: Page
) -> None:
    """It is refused, and nobody is signed in."""
    platform.signs_with = rsa.generate_private_key(65537, 2048)
    window = launch(page, platform, "eve")
    expect(
        window.get_by_role("heading", name="400 : Signature verification failed")
    ).to_be_visible()
    window.goto(f"{lab.settings.public_url}hub/home")
    assert "/hub/home" not in window.url
