"""A link that starts a chosen shape and brings an instructor's files: docs/howto/git-links.md."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import KERNEL_MS, serious_problems, start
from tests.needs import needs
from tests.students import served

from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import folder_name

needs("nbgitpuller", "see requirements/nbgitpuller.txt")
if shutil.which("git") is None:
    pytest.skip("no git: apt-get install git", allow_module_level=True)

pytestmark = [pytest.mark.browser, pytest.mark.long]

HOWTO = Path(__file__).parents[2] / "docs/howto/git-links.md"
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
TWO_COURSES = """
[courses.vision]
title = "Computer vision"
members = ["ada", "bo"]
shapes = ["1g.5gb", "3g.20gb", "7g.40gb", "cpu"]

[courses.audio]
title = "Audio"
members = ["ada"]
shapes = ["1g.5gb", "3g.20gb", "cpu"]
"""


ATTACKS = {
    "another's repository": {"repo": "{elsewhere}"},
    "what kernels run as they start": {"targetpath": ".ipython/profile_default/startup"},
    "what Jupyter runs": {"targetpath": ".jupyter"},
    "above the home": {"targetpath": "../vision-exercises"},
    "an absolute folder": {"targetpath": "/tmp/vision-exercises"},
    "through a link in the home": {"targetpath": "inside/startup"},
    "an option of git": {"branch": "--upload-pack=touch PWNED"},
    "a refspec": {"branch": "+main:main"},
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose repositories the lab allows."""
    return tmp_path_factory.mktemp("allowed")


@pytest.fixture(scope="module")
def lab(shelf: Path) -> Iterator[TemporaryLab]:
    allowed = f'git_links = ["{shelf.as_uri()}/"]'
    with temporary_lab(docker=False, servers=allowed, more=TWO_COURSES) as running:
        yield running


class Repository:
    """The instructor's working copy, from which students fetch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch", "main")
        self.publish("week1.ipynb")

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def publish(self, name: str) -> None:
        (self.folder / name).write_text(NOTEBOOK, encoding="utf-8")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", name)

    def _git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=Ina", "-c", "user.email=ina@example.edu")
        subprocess.run(["git", *identity, *arguments], cwd=self.folder, check=True)


@pytest.fixture
def repository(shelf: Path, tmp_path: Path) -> Repository:
    (shelf / tmp_path.name).mkdir()
    return Repository(shelf / tmp_path.name / "vision-exercises")


def link_of(lab: TemporaryLab, repository: Repository, **changed: str) -> str:
    """What the program on the page prints for this lab, this repository and these changes."""
    (program,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    origins = {"https://lab.example.edu": lab.settings.public_url.rstrip("/")}
    origins["https://github.com/example/vision-exercises"] = repository.url
    for old, new in (origins | changed).items():
        assert old in program
        program = program.replace(old, new)
    space: dict[str, Any] = {}
    exec(program, space)
    return str(space["link"])


def follow_signed_out(page: Page, lab: TemporaryLab, name: str, link: str) -> None:
    page.goto(link)
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(lab.password)
    page.get_by_role("button", name="Sign in").click()


def start_on_cpu(page: Page, lab: TemporaryLab, name: str) -> str:
    """The server runs; the XSRF token of its pages."""
    follow_signed_out(page, lab, name, f"{lab.settings.public_url}hub/spawn?opt-shape=cpu")
    page.wait_for_url("**/lab/**", timeout=KERNEL_MS)
    cookies = page.context.cookies(f"{lab.settings.public_url}user/{name}/")
    (xsrf,) = {c["value"] for c in cookies if c["name"] == "_xsrf" and "/user/" in c["path"]}
    return xsrf


def agree(page: Page) -> None:
    page.get_by_role("button", name="Fetch the files").click(timeout=KERNEL_MS)


def test_a_link_starts_its_shape_and_brings_the_files(
    page: Page, lab: TemporaryLab, repository: Repository
) -> None:
    """Sign-in, the chosen shape for the chosen course, the notebook; again, and what is new."""
    link = link_of(lab, repository)
    follow_signed_out(page, lab, "ada", link)
    expect(page.get_by_text(repository.url)).to_be_visible(timeout=KERNEL_MS)
    assert serious_problems(page) == []
    agree(page)
    expect(page.get_by_role("tab", name="week1.ipynb")).to_be_visible(timeout=KERNEL_MS)
    lease = lab.leases()["ada"]
    assert (lease.shape, lease.course) == ("3g.20gb", "vision")

    files = lab.settings.homes / folder_name("ada") / "vision-exercises"
    (files / "week1.ipynb").write_text(edited := NOTEBOOK.replace("{}", '{"mine": 1}'))
    repository.publish("week2.ipynb")
    page.goto(link.replace("week1", "week2"))
    agree(page)
    expect(page.get_by_role("tab", name="week2.ipynb")).to_be_visible(timeout=KERNEL_MS)
    assert (files / "week1.ipynb").read_text() == edited
    assert lab.leases()["ada"].id == lease.id


def test_who_waits_or_may_not_have_the_shape_gets_the_files_later(
    new_page: Callable[[], Page], lab: TemporaryLab, repository: Repository
) -> None:
    """The spawn page says why it refuses; the link goes on after that page and after a wait."""
    page = new_page()
    follow_signed_out(page, lab, "bo", link_of(lab, repository, **{'"3g.20gb"': '"4g.20gb"'}))
    expect(page.get_by_role("radio")).to_have_count(4)
    expect(page.get_by_text("4g.20gb")).to_be_visible()
    cal = served(lab, "cal", "1g.5gb")
    start(page, "7g.40gb")
    page.get_by_role("button", name="Start on CPU now").click()
    agree(page)
    expect(page.get_by_role("tab", name="week1.ipynb")).to_be_visible(timeout=KERNEL_MS)
    assert lab.positions() == {"bo": 1}
    cal.leave()
    cal.close()


def test_a_link_gives_its_author_none_of_the_powers(
    page: Page, lab: TemporaryLab, repository: Repository, tmp_path: Path
) -> None:
    """What a link may not do is refused by page, button and API; what it may needs the button."""
    elsewhere = Repository(tmp_path / "startup").url
    xsrf = start_on_cpu(page, lab, "dan")
    home = lab.settings.homes / folder_name("dan")
    startup = home / ".ipython/profile_default/startup"
    startup.mkdir(parents=True, exist_ok=True)
    (home / "inside").symlink_to(startup.parent)
    pull = f"{lab.settings.public_url}user/dan/git-pull"
    before = set(home.rglob("week1*"))
    fields = {"repo": repository.url, "_xsrf": xsrf}
    for name, changed in ATTACKS.items():
        link = fields | {key: text.format(elsewhere=elsewhere) for key, text in changed.items()}
        for answer in (
            page.request.get(pull, params=link),
            page.request.post(pull, params=link),
            page.request.get(f"{pull}/api", params=link),
        ):
            assert answer.status == 403, name
    assert page.request.get(f"{pull}/api", params=fields).status == 403
    del fields["_xsrf"]
    assert page.request.post(pull, params=fields).status == 403  # no XSRF token
    assert set(home.rglob("week1*")) == before and not list(home.rglob("PWNED"))
    page.goto(f"{pull}?{urlencode(fields | {'targetpath': '.jupyter'})}")
    expect(page.get_by_text("no part of it may begin with a dot")).to_be_visible()


def test_agreeing_counts_once(page: Page, lab: TemporaryLab, repository: Repository) -> None:
    """Whatever the API is asked, it fetches what was agreed to, and not again."""
    xsrf = start_on_cpu(page, lab, "eve")
    pull = f"{lab.settings.public_url}user/eve/git-pull"
    fields = {"repo": repository.url, "_xsrf": xsrf}
    assert page.request.post(pull, params=fields).ok
    fetched = page.request.get(f"{pull}/api", params=fields | {"targetpath": ".jupyter"}).text()
    assert '"finished"' in fetched
    home = lab.settings.homes / folder_name("eve")
    assert (home / "vision-exercises/week1.ipynb").is_file()
    assert not (home / ".jupyter/week1.ipynb").exists()
    assert page.request.get(f"{pull}/api", params=fields).status == 403
