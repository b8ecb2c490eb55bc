"""lab.toml as JupyterHub's configuration."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import exponential_backoff
from tornado.ioloop import IOLoop
from traitlets.config import Config

from labkit.notebook import handing_in as fresh
from miglab_hub import lab_secrets
from miglab_hub.authenticator import LabAuthenticator
from miglab_hub.checkout import checkout
from miglab_hub.configure import (
    ADMIN_SCOPE,
    SERVICE_SCOPE,
    STAFF_SCOPE,
    configure,
    wait_by_a_steady_clock,
)
from miglab_hub.settings.lab_toml import Settings, load
from miglab_spawner.scopes import LEASE_SCOPE

COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\nmembers = ["ada"]\n'
DOMAINS = 'lab.subdomain_host = "https://lab.test"\n'


def settings_of(folder: Path, text: str = COURSE) -> Settings:
    file = folder / "lab.toml"
    file.write_text(text, encoding="utf-8")
    settings = load(file, {})
    lab_secrets.make_all(settings)
    return settings


def configured(folder: Path, text: str = COURSE) -> Any:
    c = Config()
    configure(c, settings_of(folder, text))
    return c


def test_a_hub_that_stops_disturbs_no_server(tmp_path: Path) -> None:
    """Neither servers nor proxy end with the hub, and waiting students lock nobody out."""
    c = configured(tmp_path)
    assert c.JupyterHub.cleanup_servers is False
    assert c.JupyterHub.cleanup_proxy is False
    assert c.ConfigurableHTTPProxy.should_start is False
    assert c.JupyterHub.concurrent_spawn_limit == 0


def test_what_the_hub_remembers_lies_in_the_state_folder(tmp_path: Path) -> None:
    """Database and cookie secret outlive the hub, wherever it is started."""
    c = configured(tmp_path)
    assert c.JupyterHub.db_url == f"sqlite:///{tmp_path}/.lab/jupyterhub.sqlite"
    assert c.JupyterHub.cookie_secret_file.startswith(str(tmp_path / ".lab"))


@pytest.mark.parametrize("is_tls", [False, True])
def test_cookies_are_bound_to_their_host_with_domains_alone(tmp_path: Path, is_tls: bool) -> None:
    """On one host a cookie with this prefix would be sent to every student's server."""
    scheme = "https" if is_tls else "http"
    c = configured(tmp_path, f'lab.subdomain_host = "{scheme}://lab.test"\n' + COURSE)
    assert c.JupyterHub.subdomain_host == f"{scheme}://lab.test"
    assert c.JupyterHub.cookie_host_prefix_enabled is is_tls
    assert c.JupyterHub.bind_url == "http://127.0.0.1:8000/"
    assert configured(tmp_path).JupyterHub.cookie_host_prefix_enabled is False


def test_the_pool_is_an_external_service_behind_oauth(tmp_path: Path) -> None:
    """The hub neither starts the pool nor gives it more than ending servers."""
    c = configured(tmp_path)
    service, _ = c.JupyterHub.services
    assert service["name"] == "pool" and "command" not in service
    assert service["url"] == "http://127.0.0.1:8003"
    roles = {role["name"]: role for role in c.JupyterHub.load_roles}
    assert roles["miglab-pool"]["scopes"] == [
        "read:servers",
        "delete:servers",
        LEASE_SCOPE,
        "read:groups",
    ]
    assert roles["miglab-pool"]["services"] == ["pool"]


def test_users_get_the_pool_page_and_their_own_lease(tmp_path: Path) -> None:
    """A user's tokens reach the pool's pages and that user's leases, and no more."""
    c = configured(tmp_path)
    assert c.JupyterHub.extra_user_scopes == {SERVICE_SCOPE, f"{LEASE_SCOPE}!user"}
    assert set(c.JupyterHub.custom_scopes) == {LEASE_SCOPE, STAFF_SCOPE, ADMIN_SCOPE}


def test_each_staff_role_has_those_of_lab_toml(tmp_path: Path) -> None:
    """Site admins, and instructors of every course: each have their scope, and no others."""
    text = '[authentication]\nadmins = ["root"]\ninstructors = ["prof"]\n' + COURSE
    roles = {role["name"]: role for role in configured(tmp_path, text).JupyterHub.load_roles}
    staff, admin = roles["miglab-staff"], roles["miglab-admin"]
    assert (staff["users"], staff["scopes"]) == (["prof"], [STAFF_SCOPE, SERVICE_SCOPE])
    assert (admin["users"], admin["scopes"]) == (["root"], [ADMIN_SCOPE, SERVICE_SCOPE])


def test_a_browser_session_may_carry_every_staff_scope(tmp_path: Path) -> None:
    """What OAuth does not allow, no page could ever do."""
    service, _ = configured(tmp_path).JupyterHub.services
    assert set(service["oauth_client_allowed_scopes"]) == {SERVICE_SCOPE, STAFF_SCOPE, ADMIN_SCOPE}


TEACHES = COURSE + 'instructors = ["Ina"]\nassistants = ["timo"]\n'


def test_who_teaches_is_in_the_course(tmp_path: Path) -> None:
    """Instructors and assistants may start what students start, and may sign in at all."""
    c = configured(tmp_path, TEACHES)
    assert c.JupyterHub.load_groups == {"everyone": {"users": ["ada", "timo", "Ina"]}}
    assert {"Ina", "timo"} <= c.Authenticator.allowed_users


def test_no_role_comes_of_a_group_that_the_hub_would_never_empty(tmp_path: Path) -> None:
    """The hub only adds to groups: who is struck off in lab.toml would keep the role for ever."""
    groups = configured(tmp_path, TEACHES).JupyterHub.load_groups
    assert not [name for name in groups if name.endswith(("-instructors", "-assistants"))]


@pytest.mark.parametrize("name", ["ina", "Ina", "timo", "instructor"])
async def test_a_students_password_opens_no_account_of_staff(tmp_path: Path, name: str) -> None:
    """Instructors and assistants have the instructors' password, however lab.toml writes them."""
    settings = settings_of(tmp_path, TEACHES)
    door = LabAuthenticator(config=configured(tmp_path, TEACHES))
    passwords = lab_secrets.read_passwords(settings)
    data = {"username": name, "password": passwords.student}
    assert await door.authenticate(None, data) is None
    data["password"] = passwords.instructor
    let_in = await door.authenticate(None, data)
    assert let_in == {"name": name.lower(), "admin": False, "groups": []}


def test_each_course_is_a_group(tmp_path: Path) -> None:
    """A course's members are in the group of its name."""
    c = configured(tmp_path)
    assert c.JupyterHub.load_groups == {"everyone": {"users": ["ada"]}}


def test_an_authenticator_that_manages_groups_keeps_them(tmp_path: Path) -> None:
    """JupyterHub refuses predefined groups beside managed ones, so none are set."""
    text = DOMAINS + '[authentication]\nclass = "dummy"\n[authentication.config.Authenticator]\n'
    c = configured(tmp_path, text + "manage_groups = true\n" + COURSE)
    assert "load_groups" not in c.JupyterHub


def test_any_authenticator_with_its_traits(tmp_path: Path) -> None:
    """Class and traits are passed on as they are."""
    text = DOMAINS + '[authentication]\nclass = "pam"\n[authentication.config.PAMAuthenticator]\n'
    c = configured(tmp_path, text + 'service = "login"\n' + COURSE)
    assert c.JupyterHub.authenticator_class == "pam"
    assert c.PAMAuthenticator.service == "login"
    assert c.Authenticator.allowed_users == {"ada"}


@pytest.mark.parametrize("spawner", ["local", "docker"])
def test_the_spawner_finds_the_pool(tmp_path: Path, spawner: str) -> None:
    """Class, pool and limits reach the spawner that is used."""
    text = f'{DOMAINS}[servers]\nspawner = "{spawner}"\n[limits.cpu]\nmemory_gib = 3\n' + COURSE
    c = configured(tmp_path, text)
    assert c.JupyterHub.spawner_class == f"mig-{spawner}"
    traits = c.MIGDockerSpawner if spawner == "docker" else c.MIGLocalSpawner
    assert traits.pool_url == "http://127.0.0.1:8003/services/pool"
    assert traits.pool_secret_file == str(tmp_path / ".lab" / "pool.secret")
    assert traits.student_api_url == "http://127.0.0.1:8004"
    assert traits.http_timeout == 120
    assert c.MIGDockerSpawner.shape_limits["cpu"]["mem_gib"] == 3


def test_jobs_are_told_the_site(tmp_path: Path) -> None:
    """On Slurm the spawner gets the site's table and the wait; the traits exist and take it."""
    from miglab_slurm.spawner import MIGSlurmSpawner

    text = DOMAINS + '[servers]\nspawner = "slurm"\n[slurm]\npartition = "lab"\n'
    text += 'accounts = {everyone = "cs101"}\n[slurm.shapes."1g.5gb"]\ngres = "gpu:1g.5gb:1"\n'
    c = configured(tmp_path, text + "[slurm.shapes.cpu]\n" + COURSE)
    assert c.JupyterHub.spawner_class == "mig-slurm"
    assert set(c.MIGSlurmSpawner) <= set(MIGSlurmSpawner.class_traits(config=True))
    site = MIGSlurmSpawner(config=c).site
    assert site.accounts == {"everyone": "cs101"}
    assert set(site.shapes) == {"1g.5gb", "cpu"}
    assert c.MIGSlurmSpawner.default_url == "/lab"


def test_every_trait_exists(tmp_path: Path) -> None:
    """What is set on the spawners are traits that they have."""
    from miglab_spawner.docker import MIGDockerSpawner
    from miglab_spawner.local import MIGLocalSpawner

    c = configured(tmp_path)
    for cls in (MIGDockerSpawner, MIGLocalSpawner, LabAuthenticator):
        unknown = set(c[cls.__name__]) - set(cls.class_traits(config=True))
        assert unknown == set(), cls.__name__


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "This lab: simulated GPUs · no isolation: trial only"),
        (DOMAINS + '[servers]\nspawner = "docker"\n', "This lab: simulated GPUs"),
    ],
)
def test_every_page_says_what_is_not_real(tmp_path: Path, text: str, said: str) -> None:
    """The hub announces it on each page, so that the spawn page need not say it again."""
    c = configured(tmp_path, text + COURSE)
    assert c.JupyterHub.template_vars == {"lab_title": "miglab", "announcement": said}
    assert c.MIGDockerSpawner.says_simulated is c.MIGLocalSpawner.says_simulated is False


def test_a_notice_is_text_and_no_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JupyterHub puts an announcement into its pages as it is, so it is escaped before."""
    monkeypatch.setattr(Settings, "notices", ("a < b",))
    assert configured(tmp_path).JupyterHub.template_vars["announcement"] == "This lab: a &lt; b"


def test_a_lab_of_real_gpus_and_containers_announces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anything to say the pages carry no empty box."""
    monkeypatch.setattr(Settings, "notices", ())
    assert configured(tmp_path).JupyterHub.template_vars == {"lab_title": "miglab"}


def test_the_hub_bears_the_labs_name_and_logo(tmp_path: Path) -> None:
    """Without a logo of its own, miglab's."""
    (tmp_path / "logo.png").touch()
    own = configured(tmp_path, '[lab]\ntitle = "GPU lab"\nlogo = "logo.png"\n' + COURSE)
    assert own.JupyterHub.template_vars["lab_title"] == "GPU lab"
    assert own.JupyterHub.logo_file == str(tmp_path / "logo.png")
    assert Path(configured(tmp_path).JupyterHub.logo_file).is_file()


@pytest.mark.parametrize(
    ("person", "groups", "is_staff"),
    [
        ("ada", (), False),
        ("root", (), True),
        ("prof", (), True),
        ("ina", (), True),
        ("tom", (), True),
        ("gus", ("everyone-instructors",), True),
        ("gus", ("somewhere-instructors",), False),
    ],
)
def test_staff_land_on_the_pools_page(
    tmp_path: Path, person: str, groups: tuple[str, ...], is_staff: bool
) -> None:
    """Whether lab.toml or a hub group says that they teach; students go to their server."""
    staff = 'instructors = ["ina"]\nassistants = ["tom"]\n'
    sign_in = '[authentication]\nclass = "pam"\nadmins = ["root"]\ninstructors = ["prof"]\n'
    c = configured(tmp_path, DOMAINS + COURSE + staff + sign_in)
    user = SimpleNamespace(
        name=person, admin=False, groups=[SimpleNamespace(name=name) for name in groups]
    )
    landed = c.JupyterHub.default_url(SimpleNamespace(current_user=user))
    assert landed == ("https://pool--service.lab.test/services/pool/" if is_staff else "")
    assert c.JupyterHub.default_url(SimpleNamespace(current_user=None)) == ""


def test_jupyterlab_opens_the_notebooks_and_asks_nothing(tmp_path: Path) -> None:
    """The folder of notebooks opens; no news, no update check, no search for language servers."""
    c = configured(tmp_path)
    assert c.MIGLocalSpawner.default_url == c.MIGDockerSpawner.default_url == "/lab/tree/notebooks"
    folder = Path(c.MIGLocalSpawner.environment["JUPYTER_CONFIG_PATH"])
    asked = json.loads((folder / "jupyter_server_config.json").read_text(encoding="utf-8"))
    page = json.loads((folder / "labconfig/page_config.json").read_text(encoding="utf-8"))
    themes = json.loads(
        (folder / "labconfig/default_setting_overrides.json").read_text(encoding="utf-8")
    )["@jupyterlab/apputils-extension:themes"]
    assert themes == {"adaptive-theme": True}  # light or dark, as the hub's pages
    assert page["disabledExtensions"] == {"@jupyterlab/apputils-extension:announcements": True}
    assert asked["LanguageServerManager"] == {"autodetect": False}


def test_servers_report_as_often_as_the_lab_says(tmp_path: Path) -> None:
    """Whichever way they are started, and 15 s where lab.toml says nothing."""
    c = configured(tmp_path)
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner):
        assert spawner.environment["MIGLAB_REPORT_S"] == "15"
    c = configured(tmp_path, "[testing]\nreclaim.report_s = 2.5\n" + COURSE)
    assert c.MIGLocalSpawner.environment["MIGLAB_REPORT_S"] == "2.5"


def test_local_students_find_fresh_copies(tmp_path: Path) -> None:
    """labkit copies from where the spawner does; in the image both know /opt/miglab/notebooks."""
    c = configured(tmp_path)
    assert fresh.VARIABLE in c.MIGLocalSpawner.environment
    assert c.MIGLocalSpawner.environment[fresh.VARIABLE] == c.MIGLocalSpawner.notebooks_dir
    dockerfile = (checkout() / "images/student/Dockerfile").read_text(encoding="utf-8")
    assert f"/own{fresh.DELIVERED}" in dockerfile


def test_secrets_are_private_and_stay(tmp_path: Path) -> None:
    """Only their owner may read them, and a second start makes no new ones."""
    settings = settings_of(tmp_path)
    files = (settings.passwords, settings.pool_secret, settings.service_token, settings.proxy_token)
    before = [file.read_text() for file in files]
    lab_secrets.make_all(settings)
    assert [file.read_text() for file in files] == before
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


PASSWORDS = [
    ("ada", "student", True),
    ("ada", "instructor", False),
    ("ada", "admin", False),
    ("prof", "instructor", True),
    ("prof", "student", False),
    ("root", "admin", True),
    ("root", "student", False),
    ("root", "instructor", False),
]


@pytest.mark.parametrize("name, kind, opens", PASSWORDS)
async def test_a_password_opens_accounts_of_its_kind(name: str, kind: str, opens: bool) -> None:
    """The printed password opens students' accounts, and neither an instructor's nor an admin's."""
    words = {kind: f"{kind}-{'x' * 32}" for kind in ("student", "instructor", "admin")}
    authenticator = LabAuthenticator(
        allow_all=True,
        admin_users={"root"},
        instructor_users={"prof"},
        user_password=words["student"],
        instructor_password=words["instructor"],
        admin_password=words["admin"],
    )
    account = await authenticator.authenticate(None, {"username": name, "password": words[kind]})
    assert bool(account) is opens
    if account:
        assert account["admin"] is (name == "root")


@pytest.mark.parametrize(
    "name, is_usable",
    [("ada", True), ("ädä", True), ("o'brien@x.y", True), ("a\x00b", False), ("x" * 129, False)],
)
def test_a_name_can_be_shown_and_stored(name: str, is_usable: bool) -> None:
    """Where people choose their names, control characters and endless ones open nothing."""
    assert LabAuthenticator(allow_all=True).validate_username(name) is is_usable


@pytest.mark.parametrize("password", ["", "ü", "日本", "x" * 100_000])
async def test_odd_passwords_are_wrong_and_no_error(password: str) -> None:
    """Empty, unicode and over-long passwords open nothing, even where none is set."""
    authenticator = LabAuthenticator(
        allow_all=True, instructor_users={"prof"}, user_password="y" * 32
    )
    for name in ("ada", "prof"):
        data = {"username": name, "password": password}
        assert await authenticator.authenticate(None, data) is None


async def test_a_clock_set_back_lengthens_no_wait_of_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gives up after its timeout though the clock went back by an hour while it waited."""
    began = time.time()
    monkeypatch.setattr(IOLoop, "time", IOLoop.time)  # put back afterwards
    wait_by_a_steady_clock()

    def answers() -> bool:
        monkeypatch.setattr(time, "time", lambda: began - 3600)
        return False

    with pytest.raises(TimeoutError, match="gave up"):
        async with asyncio.timeout(10):
            await exponential_backoff(answers, "gave up", start_wait=0.001, timeout=0.01)
