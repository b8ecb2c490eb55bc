"""Whether Slurm can carry the lab: its commands are here, and the partitions are known.

A Slurm that is silent stops nobody: the lab starts, and its pages say so until Slurm answers.
"""

import asyncio
import shutil
import sys

from miglab_hub.errors import StartError
from miglab_slurm.commands import clean_environment, run
from miglab_slurm.doctor import picture_of
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.submissions import look_alike_warning
from miglab_spawner.backends import BackendError

PARTITIONS = ("sinfo", "-h", "-a", "-o", "%R")
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue")


def check_slurm(settings: SlurmSettings) -> None:
    """Check commands and partitions, and tell of another lab that has this one's name.

    Raises:
        StartError: a command is missing, or Slurm has no such partition.
    """
    path = clean_environment()["PATH"]
    if missing := [name for name in COMMANDS if shutil.which(name, path=path) is None]:
        raise StartError(
            f'{settings.file}: servers.spawner is "slurm", but this machine has no '
            f"{', '.join(missing)}: run the hub on a machine from which jobs can be submitted "
            "(Debian: apt-get install slurm-client), with the cluster's slurm.conf and munge key"
        )
    if (first := settings.slurm.run_as.split()[:1]) and shutil.which(first[0], path=path) is None:
        raise StartError(
            f"{settings.file}: slurm.run_as: this machine has no {first[0]}: install it, or write "
            "what the hub is to run sbatch and scancel with"
        )
    if settings.slurm.run_as and not (settings.slurm.unix_group or settings.slurm.unix_accounts):
        raise StartError(
            f"{settings.file}: slurm.run_as: nobody may run a server as a Unix account yet: name "
            "their group in slurm.unix_group, or list them in slurm.unix_accounts"
        )
    try:
        partitions = set(asyncio.run(run(PARTITIONS, settings.slurm.command_timeout_s)).split())
        unknown = sorted(set(settings.slurm_site.partitions) - partitions)
        jobs = {} if unknown else asyncio.run(picture_of(settings)).jobs
    except BackendError as silent:
        print(f"lab: Slurm does not answer ({silent}); servers start once it does", file=sys.stderr)
        return
    if unknown:
        raise StartError(
            f"{settings.file}: slurm.partition: Slurm has no partition {', '.join(unknown)}; "
            f"it has {', '.join(sorted(partitions))}"
        )
    if warning := look_alike_warning(settings.lab_id, jobs.values()):
        print(f"lab: {warning}", file=sys.stderr)
