"""A link that starts a chosen shape and brings an instructor's files: docs/howto/git-links.md."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tests.browser.people import KERNEL_MS, offer
from tests.needs import needs

from miglab_bench.harness.student import Student
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_spawner.local import home_name

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


@pytest.fixture(scope="module")
def lab() -> Iterator[TemporaryLab]:
    with temporary_lab(docker=False, more=TWO_COURSES) as running:
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

    def _git(self, *words: str) -> None:
        who = ("-c", "user.name=Ina", "-c", "user.email=ina@example.edu")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "vision-exercises")


def link_of(lab: TemporaryLab, repository: Repository, **changed: str) -> str:
    """What the program on the page prints for this lab, this repository and these changes."""
    (program,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    own = {"https://lab.example.edu": lab.settings.public_url.rstrip("/")}
    own["https://github.com/example/vision-exercises"] = repository.url
    for old, new in (own | changed).items():
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


def test_a_link_starts_its_shape_and_brings_the_files(
    page: Page, lab: TemporaryLab, repository: Repository
) -> None:
    """Sign-in, the chosen shape for the chosen course, the notebook; again, and what is new."""
    link = link_of(lab, repository)
    follow_signed_out(page, lab, "ada", link)
    expect(page.get_by_role("tab", name="week1.ipynb")).to_be_visible(timeout=KERNEL_MS)
    lease = lab.leases()["ada"]
    assert (lease.shape, lease.course) == ("3g.20gb", "vision")

    files = lab.settings.homes / home_name("ada") / "vision-exercises"
    (files / "week1.ipynb").write_text(mine := NOTEBOOK.replace("{}", '{"mine": 1}'))
    repository.publish("week2.ipynb")
    page.goto(link.replace("week1", "week2"))
    expect(page.get_by_role("tab", name="week2.ipynb")).to_be_visible(timeout=KERNEL_MS)
    assert (files / "week1.ipynb").read_text() == mine
    assert lab.leases()["ada"].id == lease.id


def test_who_waits_or_may_not_have_the_shape_gets_the_files_later(
    new_page: Callable[[], Page], lab: TemporaryLab, repository: Repository
) -> None:
    """The spawn page says why it refuses; the link goes on after that page and after a wait."""
    page = new_page()
    follow_signed_out(page, lab, "bo", link_of(lab, repository, **{'"3g.20gb"': '"4g.20gb"'}))
    expect(page.get_by_role("radio")).to_have_count(4)
    expect(page.get_by_text("4g.20gb")).to_be_visible()
    cal = Student(lab.settings.public_url, "cal", lab.password)
    cal.sign_in()
    cal.ask("1g.5gb")
    cal.wait_until_ready()
    offer(page, "7g.40gb").check()
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_role("button", name="Start on CPU now").click()
    expect(page.get_by_role("tab", name="week1.ipynb")).to_be_visible(timeout=KERNEL_MS)
    assert lab.positions() == {"bo": 1}
    cal.leave()
    cal.close()
