"""A Slurm of this machine whose idle nodes are switched off, and on again when a job wants them.

The programs that slurmctld calls for that are fakes: a node that is off is a slurmd that has ended.
"""

from collections.abc import Mapping

from miglab_slurm_bench.cluster import SlurmCluster

BOOT_S = 2
"""So long a node takes to boot."""
SETTINGS = {
    "SuspendTime": "8",
    "SuspendTimeout": "2",
    "ResumeTimeout": "60",
    "SuspendRate": "0",
    "ResumeRate": "0",
}
_RESUME = """#!/bin/sh
export SLURM_CONF={folder}/slurm.conf PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
sleep {boot_s}
for node in $(scontrol show hostnames "$1"); do
    slurmd -b -N "$node" </dev/null >>{folder}/"$node".out.log 2>&1
done
"""
_SUSPEND = """#!/bin/sh
export SLURM_CONF={folder}/slurm.conf PATH=$PATH:/usr/sbin:/usr/bin:/sbin:/bin
for node in $(scontrol show hostnames "$1"); do
    kill "$(cat {folder}/slurmd-"$node".pid)"
done
"""


class PowerSavingCluster(SlurmCluster):
    """A cluster that switches nodes off which have been idle for a few seconds."""

    def __init__(self, settings: Mapping[str, str] | None = None, **kwargs: object) -> None:
        super().__init__(settings=None, **kwargs)  # type: ignore[arg-type]  # as they are
        programs = {
            "ResumeProgram": str(self.folder / "resume"),
            "SuspendProgram": str(self.folder / "suspend"),
        }
        self._settings = {**SETTINGS, **programs, **(settings or {})}

    def write_configuration(self) -> None:
        """As every cluster, and the two programs."""
        super().write_configuration()
        for name, text in (("resume", _RESUME), ("suspend", _SUSPEND)):
            program = self.folder / name
            program.write_text(text.format(folder=self.folder, boot_s=BOOT_S))
            program.chmod(0o755)

    def until_off(self) -> None:
        """Wait until every node is switched off."""
        self.until(lambda: self._node_states() == {"idle~"}, "all nodes switched off")

    def _start_nodes(self) -> None:
        """Nobody watches them here: slurmctld ends and starts them."""
        for node in self.nodes:
            if not (self.folder / f"slurmd-{node}.pid").exists():
                self.command("slurmd", "-N", node)

    def _node_states(self) -> set[str]:
        return set(self.command("sinfo", "-h", "-N", "-o", "%t").split())
