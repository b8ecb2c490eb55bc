"""Who runs as which Unix account: a table, or a name of the usual form in the site's group."""

import grp
import os
import pwd
from typing import Any

import pytest

from miglab_slurm.lab import SlurmSite
from miglab_slurm.unix_accounts import NoAccountError, account_of

ACCOUNTS = {"root": 0, "daemon": 1, "ada": 1001, "ina": 1002}
MEMBERS = {"students": {"ada", "root", "daemon"}}


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four accounts, one group."""

    def by_name(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", ACCOUNTS[name], 100, "", f"/home/{name}", "/bin/sh"))

    groups = {name: number for number, name in enumerate(MEMBERS)}

    def group_called(name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", groups[name], []))

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(grp, "getgrnam", group_called)
    monkeypatch.setattr(
        os, "getgrouplist", lambda name, _: [groups[g] for g, who in MEMBERS.items() if name in who]
    )


def site(**more: Any) -> SlurmSite:
    return SlurmSite(
        unix_group="students", unix_accounts={"ina@lab": "ina", "evil": "root"}, **more
    )


def test_a_member_of_the_group_and_who_is_in_the_table() -> None:
    """The name itself, or what the table says of it."""
    assert account_of(site(), "ada").pw_dir == "/home/ada"
    assert account_of(site(), "ina@lab").pw_name == "ina"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("root", "uid 0"), ("evil", "uid 0"), ("daemon", "uid 1"), ("ina", "group students"),
        ("#0", "no name"), ("-s", "no name"), ("Ada", "no name"), ("ada\n", "no name"),
        ("ada root", "no name"), ("", "no name"), ("zoe", "no Unix account"),
    ],
)  # fmt: skip
def test_who_runs_nothing(name: str, why: str) -> None:
    """System accounts, those outside the group, uids, options, and other odd names."""
    with pytest.raises(NoAccountError) as refused:
        account_of(site(), name)
    assert why in refused.value.why
    assert refused.value.reason == "account-refused"


def test_without_a_group_only_the_table_counts() -> None:
    """A site that names none has said of nobody else that they may."""
    with pytest.raises(NoAccountError):
        account_of(SlurmSite(), "ada")


def test_where_the_hub_runs_all_jobs_the_account_is_its_own() -> None:
    """Then nobody's name is looked at."""
    assert account_of(SlurmSite(run_as=""), "root").pw_uid == os.geteuid()
