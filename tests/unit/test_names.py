"""The lint for names that say nothing: what it counts as a binding, and when it fails."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""found said one: words of a docstring are no names."""
import found
limit: int = 3
one, (other, *rest) = pairs()


class Said:
    taken = 1
    told: str = ""

    def given(self, lease, *, by=None, **more) -> None:
        self.kept = lease
        for _ in lease:
            with open(lease) as _file:
                print(known)
        if what_not := by:
            return [each for each in what_not]


choose = lambda who: who.found
'''
VAGUE = ["one:5", "rest:5", "taken:9", "told:10", "by:12", "more:12", "each:18", "who:21"]
PLAIN = ["limit", "other", "lease", "_file", "what_not", "choose"]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The lint, in a repository with one package."""
    spec = importlib.util.spec_from_file_location("names", ROOT / ".ci/names.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool/module.py").write_text(SOURCE)
    (tmp_path / "pool/untracked.py").write_text("found = 1")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "pool/module.py"], check=True)
    return module


def test_names_that_say_nothing_are_counted(names: ModuleType) -> None:
    """Bindings count, whatever binds them; imports, attributes, functions and uses do not."""
    total, vague = names.counts()
    assert (vague["pool"], total["pool"]) == (len(VAGUE), len(VAGUE) + len(PLAIN))
    listing = sorted(names.places(Path("pool")))
    assert listing == sorted(
        f"pool/module.py:{line}: {name}" for name, line in (text.split(":") for text in VAGUE)
    )
    assert names.places(Path("po")) == []


def test_underscores_do_not_hide_a_word(names: ModuleType) -> None:
    """`_found` and `one_` say no more than `found` and `one`; `found_leases` does."""
    assert [names.is_vague(name) for name in ("_found", "one_", "found_leases")] == [
        True, True, False,
    ]  # fmt: skip


def test_a_package_above_its_limit_fails(names: ModuleType) -> None:
    """With its counts and what to do; at its limit it passes, and so does one without a limit."""
    share_pct = 100 * len(VAGUE) / (len(VAGUE) + len(PLAIN))
    assert names.excesses({"pool": share_pct}) == []
    assert names.excesses({}) == []
    (problem,) = names.excesses({"pool": share_pct - 0.01})
    assert problem.startswith("pool: 8 of 14 names say nothing")
    assert ".ci/names.py --where pool" in problem


def test_a_limit_of_no_package_fails(names: ModuleType) -> None:
    """A package that was renamed does not lose its limit unnoticed."""
    assert names.excesses({"gone": 0.5}) == [".ci/names.toml: no package gone"]
