"""What is shipped: enabled by being installed, whole, described, and without a build."""

import json
import re
import zipfile

import pytest
from tests.wheels import ROOT, build_wheels

from miglab_api.leases import KernelSignal, Signals
from miglab_jupyterlab.app import LeaseExtension

SOURCE = ROOT / "images/student/jupyterlab"
STATIC = SOURCE / "labextension/static"
PAGE = (ROOT / "docs/howto/jupyterlab.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The distribution, built as the image builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    build_wheels(folder, ["images/student/jupyterlab"])
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_installed_is_enabled(wheel: zipfile.ZipFile):
    """The wheel puts both halves where Jupyter looks for them."""
    names = {name.partition(".data/data/")[2]: name for name in wheel.namelist()}
    enabled = json.loads(
        wheel.read(names["etc/jupyter/jupyter_server_config.d/miglab_jupyterlab.json"])
    )
    assert enabled == {"ServerApp": {"jpserver_extensions": {"miglab_jupyterlab": True}}}
    lab = "share/jupyter/labextensions/@miglab/jupyterlab/"
    package = json.loads(wheel.read(names[f"{lab}package.json"]))
    assert lab + package["jupyterlab"]["_build"]["load"] in names
    assert {name.name for name in STATIC.iterdir()} == {
        name.removeprefix(f"{lab}static/") for name in names if name.startswith(f"{lab}static/")
    }


def test_each_module_imports_what_is_there():
    """There is no bundler to notice a wrong name."""
    for file in STATIC.glob("*.js"):
        for names, module in re.findall(r"import \{([^}]+)\} from '\./(.+)';", file.read_text()):
            exported = (STATIC / module).read_text()
            for name in names.split(","):
                pattern = rf"export (async )?(function|class|const) {name.strip()}\b"
                assert re.search(pattern, exported), f"{file.name}: {name} of {module}"


def test_every_borrowed_package_is_declared():
    """What the front end takes from JupyterLab, its package.json names with a version."""
    borrowed = set(re.findall(r"'(@(?:jupyterlab|lumino)/[\w-]+)'", _read("remoteEntry.js")))
    declared = json.loads((SOURCE / "labextension/package.json").read_text())["dependencies"]
    assert borrowed == set(declared)


def test_the_page_names_every_signal_and_setting():
    """Who reads what is sent reads all of it; of the settings the defaults, and no other."""
    for message in (Signals, KernelSignal):
        for name in message.model_fields:
            assert f"`{name}`" in PAGE
    listed = re.findall(r"`c\.LeaseExtension\.(\w+)` \| (\d+) \|", PAGE)
    own_traits = LeaseExtension.class_own_traits().items()
    defaults = {name: trait.default_value for name, trait in own_traits if name.endswith("_s")}
    assert {name: float(value) for name, value in listed} == defaults


@pytest.mark.parametrize("report_s, pace", [("", (15, 5)), ("2", (2, 2)), ("60", (60, 5))])
def test_the_lab_says_how_often_to_report(
    monkeypatch: pytest.MonkeyPatch, report_s: str, pace: tuple[float, float]
):
    """Warned at least as often as else; what is set here goes before what the lab says."""
    monkeypatch.setenv("MIGLAB_REPORT_S", report_s)
    extension = LeaseExtension()
    assert (extension.interval_s, extension.warned_s) == pace
    assert LeaseExtension(interval_s=7.0).interval_s == 7.0


def test_every_sentence_goes_through_the_translator():
    """No text of ours is set but by `trans`."""
    for file in STATIC.glob("*.js"):
        text = re.sub(r"//.*|/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
        bare = re.findall(r"(?:setText|make|button)\([^()]*'([A-Z][a-z]+ [^']*)'", text)
        assert bare == [], file.name


def test_the_words_of_the_line_are_those_of_every_page():
    """JupyterLab's copy of line.js is what hub and pool serve."""
    assert _read("line.js") == (ROOT / "api/miglab_api/web/line.js").read_text()


def _read(name: str) -> str:
    return (STATIC / name).read_text()
