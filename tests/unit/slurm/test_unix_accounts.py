"""Who runs as which Unix account: a table, or an account of the site's group, however called."""

import grp
import os
import pwd
from typing import Any

import pytest

from miglab_slurm.lab import SlurmSite
from miglab_slurm.unix_accounts import NoAccountError, account_of

ACCOUNTS = {
    "root": 0, "daemon": 1, "ada": 1001, "ina": 1002, "ada@example.edu": 1003,
    "EXAMPLE\\ada": 1004, "ada.lovelace+cs": 1005, "Ada": 1006, "-s": 1007, "#0": 1008,
}  # fmt: skip
ALIASES = {"ada.byron": "ada", "toor": "root"}
"""Further names by which the directory finds an account."""
MEMBERS = {
    "students": set(ACCOUNTS) - {"ina"},
    "domain users@example.edu": {"ina"},
}


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of ordinary and odd accounts, and two groups."""

    def by_name(name: str) -> pwd.struct_passwd:
        if "\0" in name:
            raise ValueError("embedded null byte")
        uid = ACCOUNTS[ALIASES.get(name, name)]
        return pwd.struct_passwd((name, "x", uid, 100, "", f"/home/{name}", "/bin/sh"))

    def by_uid(uid: int) -> pwd.struct_passwd:
        return by_name(next(name for name, number in ACCOUNTS.items() if number == uid))

    groups = {name: number for number, name in enumerate(MEMBERS)}

    def group_called(name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", groups[name], []))

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(pwd, "getpwuid", by_uid)
    monkeypatch.setattr(grp, "getgrnam", group_called)
    monkeypatch.setattr(
        os,
        "getgrouplist",
        lambda name, _: [groups[g] for g, members in MEMBERS.items() if name in members],
    )


def site(**settings: Any) -> SlurmSite:
    table = {
        "unix_group": "students",
        "unix_accounts": {"ina@lab": "ina", "evil": "root"},
        **settings,
    }
    return SlurmSite(**table)


def test_a_member_of_the_group_and_who_is_in_the_table() -> None:
    """The name itself, or what the table says of it."""
    assert account_of(site(), "ada").pw_dir == "/home/ada"
    assert account_of(site(), "ina@lab").pw_name == "ina"


@pytest.mark.parametrize("name", ["ada@example.edu", "EXAMPLE\\ada", "ada.lovelace+cs", "Ada"])
def test_what_counts_is_what_the_machine_knows(name: str) -> None:
    """Dots, capitals, a plus and a domain, of one's own or from the table."""
    assert account_of(site(), name).pw_name == name
    assert account_of(site(unix_accounts={"42": name}), "42").pw_name == name


def test_an_account_is_called_as_slurm_calls_it() -> None:
    """By the name of its uid: a job that Slurm lists under another name would be nobody's."""
    assert account_of(site(unix_accounts={"x": "ada.byron"}), "x").pw_name == "ada"


def test_a_group_may_be_called_as_a_directory_calls_it() -> None:
    """With blanks and a domain."""
    assert account_of(site(unix_group="domain users@example.edu"), "ina").pw_name == "ina"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("root", "uid 0"), ("evil", "uid 0"), ("daemon", "uid 1"), ("ina", "group students"),
        ("toor", "uid 0"), ("#0", "pass for"), ("-s", "pass for"), ("ADA", "no Unix account"),
        ("ada\n", "no Unix account"), ("ada root", "no Unix account"), ("", "no Unix account"),
        ("ada\0", "no Unix account"), ("zoe", "no Unix account"),
    ],
)  # fmt: skip
def test_who_runs_nothing(name: str, cause: str) -> None:
    """System accounts by any name, those outside the group, uids, options, and no names at all."""
    with pytest.raises(NoAccountError) as refused:
        account_of(site(), name)
    assert cause in refused.value.cause
    assert refused.value.reason == "account-refused"


def test_without_a_group_only_the_table_counts() -> None:
    """A site that names none has said of nobody else that they may."""
    with pytest.raises(NoAccountError):
        account_of(SlurmSite(), "ada")


def test_where_the_hub_runs_all_jobs_the_account_is_its_own() -> None:
    """Then nobody's name is looked at."""
    assert account_of(SlurmSite(run_as=""), "root").pw_uid == os.geteuid()
