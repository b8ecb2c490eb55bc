"""Which Unix account a student's jobs run as.

Whoever signs in may have chosen the name, and the hub may run commands as anybody: so only an
account that the machine knows, that is no system account, and that the site has named: itself, or
by its group.  How accounts are called is the site's affair, with a domain for example, as far as no
command can take the name for an option or a uid.
The tables of lab.toml, which every process reads, do not import this: it knows the spawner.
"""

import grp
import os
import pwd
import re
from pwd import struct_passwd

from miglab_slurm.lab import SlurmTables
from miglab_spawner.backends import RefusedByBackend

FORM = re.compile(r"\w[\w .@+$\\'-]*")


class NoAccountError(RefusedByBackend):
    """A user may run nothing on the cluster; ``cause`` says why, for the operator."""

    def __init__(self, reason: str) -> None:
        message = "You have no account on the cluster. Tell your instructor."
        super().__init__("account-refused", message, 403)
        self.cause = reason


def account_of(site: SlurmTables, user: str) -> struct_passwd:
    """The account of a user's jobs: the hub's own where `run_as` is empty.

    Raises:
        NoAccountError: there is none, or it may run no jobs.
    """
    if not site.run_as:
        return pwd.getpwuid(os.geteuid())
    name = site.unix_accounts.get(user, user)
    account = _account_called(name)
    if not FORM.fullmatch(account.pw_name):
        raise NoAccountError(f"{account.pw_name!r} could pass for an option or a uid of a command")
    if account.pw_uid < max(1, site.least_uid):
        raise NoAccountError(f"{name!r} has uid {account.pw_uid}, below slurm.least_uid")
    if user not in site.unix_accounts and not _is_in(site.unix_group, account):
        source = f"the group {site.unix_group}" if site.unix_group else "a group: see unix_group"
        raise NoAccountError(f"{name!r} is neither in slurm.unix_accounts nor in {source}")
    return account


def members_of(group: str) -> tuple[str, ...]:
    """Who is listed as a member of a Unix group; empty where there is no such group."""
    try:
        return tuple(grp.getgrnam(group).gr_mem)
    except KeyError:
        return ()


def _account_called(name: str) -> struct_passwd:
    """The account of a name, as its uid is called: Slurm lists a job under that name.

    A directory may know an account by several names, in capitals too, of which one is its own.

    Raises:
        NoAccountError: the machine knows none.
    """
    try:
        return pwd.getpwuid(pwd.getpwnam(name).pw_uid)
    except (KeyError, ValueError):  # a ValueError: no name at all, such as one with a NUL
        raise NoAccountError(f"this machine knows no Unix account {name!r}") from None


def _is_in(group: str, account: struct_passwd) -> bool:
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        return False
    return number in os.getgrouplist(account.pw_name, account.pw_gid)
