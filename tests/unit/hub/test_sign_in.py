"""Which authenticators a lab takes, whom it takes for staff, and what it says of an open course."""

import re
from pathlib import Path

import pytest
from jupyterhub.auth import DummyAuthenticator
from typer.testing import CliRunner

from miglab_hub import doctor
from miglab_hub.cli import app
from miglab_hub.errors import SettingsError, StartError
from miglab_hub.launch.preflight import prepare
from miglab_hub.sign_in import check_identity, check_installed, open_sign_in_notice

from .conftest import lab_with

ROOT = Path(__file__).parents[3]
COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\n'
HERE = 'lab.subdomain_host = "https://lab.test"\n'
OUTSIDE = """
[lab]
host = "0.0.0.0"
plain_http = true
subdomain_host = "https://lab.example.edu"
[accept_risk]
students_can_read_secrets = true
"""
CHECK_NOBODY = [
    "dummy",
    "null",
    "jupyterhub.auth.DummyAuthenticator",
    "jupyterhub.authenticators.shared.SharedPasswordAuthenticator",
    "miglab_hub.authenticator.LabAuthenticator",
    f"{__name__}.OwnAuthenticator",
]


class OwnAuthenticator(DummyAuthenticator):  # type: ignore[misc]  # base is untyped
    """A site's own, which checks nobody either."""


@pytest.mark.parametrize("name", ["shared-password", "dummy", "jupyterhub.auth.PAMAuthenticator"])
def test_authenticators_that_are_there(tmp_path: Path, name: str) -> None:
    """The lab's own, an entry point's, and an import path."""
    check_installed(lab_with(tmp_path, f'{HERE}[authentication]\nclass = "{name}"\n{COURSE}'))


@pytest.mark.parametrize(
    "name", ["nobodys-own", "oauthen.Nobody", "jupyterhub.auth.Nobody", "pathlib.Path", "é.x"]
)
def test_authenticators_that_are_not(tmp_path: Path, name: str) -> None:
    """Not installed, not in its module, no authenticator: key and name are in the message."""
    settings = lab_with(tmp_path, f'{HERE}[authentication]\nclass = "{name}"\n{COURSE}')
    with pytest.raises(StartError, match=r"authentication\.class") as caught:
        check_installed(settings)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", CHECK_NOBODY)
def test_who_checks_nobody_stays_on_this_machine(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever name, before start and by doctor; the key that accepts it is one for all."""
    monkeypatch.chdir(tmp_path)
    text = f'authentication.class = "{name}"\n{OUTSIDE}{COURSE}'
    accepting = r"anyone_can_be_any_student = true"
    with pytest.raises(StartError, match=accepting):
        prepare(lab_with(tmp_path, text).file)
    result = CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "lab.toml")])
    assert isinstance(result.exception, SettingsError) and re.search(
        accepting, str(result.exception)
    )
    assert not (tmp_path / ".lab").exists()
    accepted = text.replace("[accept_risk]", "[accept_risk]\nanyone_can_be_any_student = true")
    check_identity(lab_with(tmp_path, accepted))


def test_who_checks_people_may_be_reached(tmp_path: Path) -> None:
    """One that asks for proof; and one that is not installed here, as in the pool's container."""
    for name in ("pam", "nobodys-own"):
        check_identity(lab_with(tmp_path, f'{OUTSIDE}{COURSE}[authentication]\nclass = "{name}"\n'))


AS_STAFF = {
    "authentication.admins": 'admins = ["ada", "{}"]',
    "authentication.instructors": 'instructors = ["ada", "{}"]',
    "courses.everyone.instructors": 'courses.everyone.instructors = ["{}"]',
    "courses.everyone.assistants": 'courses.everyone.roster = "roster.csv"',
}


@pytest.mark.parametrize("key", AS_STAFF)
@pytest.mark.parametrize("name", ["admin", "instructor", "Admin"])
def test_a_name_that_anybody_can_register_is_no_staff(tmp_path: Path, key: str, name: str) -> None:
    """The accounts of `./lab up` are strangers' elsewhere: the message says what to write."""
    (tmp_path / "roster.csv").write_text(f"user,role\n{name},assistant\n")
    line = AS_STAFF[key].format(name)
    course, authentication = (line + "\n", "") if key.startswith("courses") else ("", line + "\n")
    shapes = COURSE.replace("[courses.everyone]\n", "courses.everyone.")
    text = f'{HERE}{course}{shapes}[authentication]\nclass = "pam"\n{authentication}'
    with pytest.raises(SettingsError, match=rf"{key}: .*such as") as caught:
        lab_with(tmp_path, text)
    assert f'"{name}"' in str(caught.value)


def test_only_the_labs_own_sign_in_has_staff_by_default(tmp_path: Path) -> None:
    """With any other nobody is staff until lab.toml says who; the template neither."""
    authentication = lab_with(tmp_path, COURSE).authentication
    assert (authentication.admins, authentication.instructors) == (("admin",), ("instructor",))
    template = (ROOT / "images/lab.toml").read_text(encoding="utf-8")
    for text in (
        f'{HERE}{COURSE}[authentication]\nclass = "pam"\n',
        template.replace('class = ""', 'class = "pam"'),
    ):
        outside = lab_with(tmp_path, text).authentication
        assert (outside.admins, outside.instructors) == ((), ())


@pytest.mark.parametrize(
    ("sign_in", "shapes", "is_open"),
    [
        ('"pam"\nconfig.PAMAuthenticator.allow_all = true', '"1g.5gb", "cpu"', True),
        ('"pam"\nconfig.Authenticator.allow_all = true', '"1g.5gb"', True),
        ('"miglab_hub.lti.CourseLTIAuthenticator"', '"1g.5gb", "cpu"', True),
        (
            '"miglab_hub.lti.CourseLTIAuthenticator"\nconfig.LTI13Authenticator.allow_all = false',
            '"1g.5gb", "cpu"',
            False,
        ),
        ('"pam"\nconfig.PAMAuthenticator.allow_all = true', '"cpu"', False),
        ('"pam"', '"1g.5gb", "cpu"', False),
        ('"shared-password"', '"1g.5gb", "cpu"', False),
    ],
)
def test_an_open_course_is_said(tmp_path: Path, sign_in: str, shapes: str, is_open: bool) -> None:
    """Doctor and the start name who may take slices, and how to keep them for the courses."""
    course = f"[courses.everyone]\nshapes = [{shapes}]\n"
    settings = lab_with(tmp_path, f"{HERE}{course}[authentication]\nclass = {sign_in}\n")
    warning = open_sign_in_notice(settings)
    assert bool(warning) == is_open
    assert [finding.observation for finding in doctor.examine_sign_in(settings)] == [
        warning
    ] * is_open
    if is_open:
        assert (
            "may take slices (1g.5gb)" in warning and 'courses.everyone.shapes = ["cpu"]' in warning
        )
