"""Whether Slurm can carry the lab: its commands are here, and the partitions are known.

A Slurm that is silent stops nobody: the lab starts, and its pages say so until Slurm answers.
"""

import shutil
import sys

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.slurm_examination import SlurmSilent, answer
from miglab_spawner.backends.slurm.commands import clean_environment

COMMANDS = ("sbatch", "scancel", "sinfo", "squeue")


def check_slurm(settings: Settings) -> None:
    """Check commands and partitions.

    Raises:
        StartError: a command is missing, or Slurm has no such partition.
    """
    path = clean_environment()["PATH"]
    if missing := [name for name in COMMANDS if shutil.which(name, path=path) is None]:
        raise StartError(
            f'{settings.file}: students.spawner is "slurm", but this machine has no '
            f"{', '.join(missing)}: run the hub on a machine from which jobs can be submitted "
            "(Debian: apt-get install slurm-client), with the cluster's slurm.conf and munge key"
        )
    wanted = settings.slurm_site.partitions
    try:
        said = answer(["sinfo", "-h", "-a", "-o", "%R"], settings.slurm.command_timeout_s)
    except SlurmSilent as silent:
        print(f"lab: Slurm does not answer ({silent}); servers start once it does", file=sys.stderr)
        return
    known = set(said.split())
    if unknown := sorted(set(wanted) - known):
        raise StartError(
            f"{settings.file}: slurm.partition: Slurm has no partition {', '.join(unknown)}; "
            f"it has {', '.join(sorted(known))}"
        )
