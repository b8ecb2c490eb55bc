"""Which Unix account a student's jobs run as.

Whoever signs in may have chosen the name, and the hub may run commands as anybody: so only a name
of the usual form, of an account that is there, is no system account and is in the site's group.
The tables of lab.toml, which every process reads, do not import this: it knows the spawner.
"""

import grp
import os
import pwd
import re
from pwd import struct_passwd

from miglab_slurm.lab import SlurmTables
from miglab_spawner.backends import RefusedByBackend

FORM = re.compile(r"[a-z_][a-z0-9_-]*")


class NoAccountError(RefusedByBackend):
    """A user may run nothing on the cluster; ``why`` is for the operator."""

    def __init__(self, why: str) -> None:
        said = "You have no account on the cluster. Tell your instructor."
        super().__init__("account-refused", said, 403)
        self.why = why


def account_of(site: SlurmTables, user: str) -> struct_passwd:
    """The account of a user's jobs: the hub's own where `run_as` is empty.

    Raises:
        NoAccountError: there is none, or it may run no jobs.
    """
    if not site.run_as:
        return pwd.getpwuid(os.geteuid())
    name = site.unix_accounts.get(user, user)
    if not FORM.fullmatch(name):
        raise NoAccountError(f"{name!r} is no name of an account: it must match {FORM.pattern}")
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise NoAccountError(f"there is no Unix account {name}") from None
    if account.pw_uid < max(1, site.least_uid):
        raise NoAccountError(f"{name} has uid {account.pw_uid}, below slurm.least_uid")
    if user not in site.unix_accounts and not _is_in(site.unix_group, account):
        where = f"the group {site.unix_group}" if site.unix_group else "a group: see unix_group"
        raise NoAccountError(f"{name} is neither in slurm.unix_accounts nor in {where}")
    return account


def members_of(group: str) -> tuple[str, ...]:
    """Who is listed as a member of a Unix group; empty where there is no such group."""
    try:
        return tuple(grp.getgrnam(group).gr_mem)
    except KeyError:
        return ()


def _is_in(group: str, account: struct_passwd) -> bool:
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return number in os.getgrouplist(account.pw_name, account.pw_gid)
