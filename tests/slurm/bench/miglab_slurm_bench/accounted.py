"""A Slurm of this machine that keeps accounts: slurmdbd over a MariaDB, beside the other daemons.

With it come associations, QOS with limits and preemption, and `sacct`.  Debian's packages
`slurmdbd mariadb-server-core` are needed as well; it starts in about six seconds.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from miglab_bench.harness.processes import free_ports
from miglab_slurm_bench import cluster as slurm_cluster
from miglab_slurm_bench.cluster import SlurmCluster

PROGRAMS = ("slurmdbd", "mariadbd", "sacctmgr", "sacct")
SYSTEM_TABLES = ("system_tables", "performance_tables", "system_tables_data")
SETTINGS = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "127.0.0.1",
    "AccountingStorageEnforce": "associations,limits,qos",
    "AccountingStoreFlags": "job_comment",  # usage by course is read from the jobs' comments
    "AccountingStorageTRES": "gres/gpu",
    "PreemptType": "preempt/qos",
    "PreemptMode": "CANCEL",
}


def missing() -> str:
    """What must be installed before a cluster with accounts can be started; empty if nothing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = (name for name in PROGRAMS if shutil.which(name, path=path) is None)
    return " ".join(filter(None, (slurm_cluster.missing(), *absent)))


class AccountedCluster(SlurmCluster):
    """A cluster whose jobs need an association; nobody has one before `sacctmgr` gives it."""

    further_parts = ("slurmdbd", "mariadbd")

    def __init__(self, settings: Mapping[str, str] | None = None, **kwargs: object) -> None:
        super().__init__(settings=None, **kwargs)  # type: ignore[arg-type]  # as they are
        port = free_ports(1)
        self._dbd_port = port
        self._database = self.folder / "database"
        self._settings = {
            **SETTINGS,
            "AccountingStoragePort": str(port),
            "AccountingStoragePass": f"{self.folder}/munge/munge.sock",
            **(settings or {}),
        }
        self.environment["MYSQL_UNIX_PORT"] = str(self._database / "socket")

    def start(self) -> None:
        """Start all that does not run; slurmctld finds slurmdbd there."""
        self.start_munged()
        self._start_database()
        self._start_dbd()
        super().start()

    def allow(self, account: str, *users: str, qos: str = "normal") -> None:
        """Give users an account, with these QOS."""
        self.command("sacctmgr", "-i", "add", "account", account, check=False)
        for user in users:
            command = ("add", "user", user, f"account={account}", f"qos={qos}")
            self.command("sacctmgr", "-i", *command)

    def _start_database(self) -> None:
        if self.is_up("mariadbd"):
            return
        options = ("--no-defaults", "--user=root", f"--datadir={self._database}")
        if not self._database.exists():
            (self._database / "mysql").mkdir(parents=True)
            tables = "".join(
                Path(f"/usr/share/mysql/mysql_{name}.sql").read_text() for name in SYSTEM_TABLES
            )
            # what mariadb-install-db does, which needs all of mariadb-server
            self.command("mariadbd", *options, "--bootstrap", stdin=f"use mysql;\n{tables}")
        socket = self._database / "socket"
        self._run("mariadbd", "mariadbd", *options, "--skip-networking", f"--socket={socket}")
        self.until(socket.exists, "the database's socket")

    def _start_dbd(self) -> None:
        file, munge = self.folder / "slurmdbd.conf", self.folder / "munge" / "munge.sock"
        file.touch(mode=0o600)
        file.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={munge}\nDbdHost=localhost\n"
            f"DbdPort={self._dbd_port}\nSlurmUser=root\nStorageType=accounting_storage/mysql\n"
            "StorageHost=localhost\nStorageUser=root\nStorageLoc=slurm\n"
            f"LogFile={self.folder}/slurmdbd.log\nPidFile={self.folder}/slurmdbd.pid\n"
        )
        self._run("slurmdbd", "slurmdbd", "-D")
        self.until(self._knows_clusters, "slurmdbd")

    def _knows_clusters(self) -> bool:
        try:
            self.command("sacctmgr", "-n", "show", "cluster", timeout=10)
        except subprocess.SubprocessError:
            return False
        return True
