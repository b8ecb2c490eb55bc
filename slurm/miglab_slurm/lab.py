"""What lab.toml says of a lab on Slurm: the site, as the spawner takes it.  Pure.

Slurm owns the slices there, so the tables by which the pool owns them have no meaning; to accept
them silently would promise limits that nobody keeps.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import ValidationError, model_validator

from miglab_hub.settings.lab_toml import Settings
from miglab_hub.settings.tables import is_this_machines
from miglab_slurm.site import SlurmCourse, SlurmSite, SlurmTables


class SlurmSettings(Settings):
    """All of lab.toml where this package is installed: `[slurm]` as well, and what follows."""

    slurm: SlurmTables = SlurmTables()

    @model_validator(mode="after")
    def _slurm_is_described(self) -> Self:
        if not self.is_on_slurm:
            return self
        _ = self.slurm_site
        if told := "; ".join(self._slurms_own()):
            raise ValueError(f'servers.spawner is "slurm", and there {told}')
        may_read = self.slurm.run_as or self.accept_risk.students_can_read_secrets
        if not may_read and not is_this_machines(self.lab):
            raise ValueError(
                "other machines reach this lab, and with slurm.run_as empty every student's job "
                "runs as the lab's own account and can read its secrets: let jobs run as the "
                'student (run_as = "sudo -u {username}"), or set '
                "accept_risk.students_can_read_secrets = true"
            )
        return self

    @property
    def slurm_site(self) -> SlurmSite:
        """The site's tables with the lab's courses, as the spawner takes them.

        Raises:
            ValueError: they do not agree; the message names the key.
        """
        if not self.slurm.shapes:
            raise ValueError(
                'servers.spawner is "slurm", but [slurm] describes no shape: add a table such as '
                '[slurm.shapes."1g.5gb"] with gres = "gpu:1g.5gb:1" and a partition, and '
                "[slurm.shapes.cpu]"
            )
        courses = {
            name: SlurmCourse(title=course.title, shapes=course.shapes, default=course.default)
            for name, course in self.courses.items()
        }
        try:
            site = SlurmSite(**self.slurm.model_dump(), courses=courses)
        except ValidationError as error:
            raise ValueError(str(error.errors()[0]["ctx"]["error"])) from error
        return site

    @property
    def slurm_jobs(self) -> Path:
        """The lab's identity on Slurm, its key, the jobs that it submitted, and their stays."""
        return self.state / "slurm-jobs.sqlite"

    @property
    def service_module(self) -> str:
        """What stands for the pool on Slurm."""
        return "miglab_slurm.service" if self.is_on_slurm else super().service_module

    @property
    def further_databases(self) -> tuple[Path, ...]:
        """The lab's jobs."""
        return (self.slurm_jobs,)

    def _slurms_own(self) -> Iterator[str]:
        """What is set that Slurm does instead, and how Slurm does it."""
        if self.quotas:
            yield (
                "[quotas] has no effect: limit people and courses by QOS and associations "
                "(sacctmgr)"
            )
        if self.limits:
            yield "[limits] has no effect: set cpus and memory_mib of each shape in [slurm.shapes]"
        if self.lab.maintenance:
            yield (
                "lab.maintenance has no effect: announce it to Slurm (scontrol create "
                "reservation flags=maint,ignore_jobs nodes=…)"
            )
        if any(course.gpus for course in self.courses.values()):
            yield "courses.NAME.gpus has no effect: give the course a partition or reservation"
        if any(course.weight != 1 for course in self.courses.values()):
            yield "courses.NAME.weight has no effect: give the course's account shares (sacctmgr)"
        if self.servers.home_gib or self.servers.disk_gib:
            yield "servers.home_gib and disk_gib have no effect: use the file system's own quotas"


def on_slurm(settings: Settings) -> SlurmSettings:
    """The settings, which `load` has read as this package's."""
    assert isinstance(settings, SlurmSettings)
    return settings
