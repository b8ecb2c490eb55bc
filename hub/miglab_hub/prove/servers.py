"""A student's container as a lease starts it: the spawner's own limits, request and environment.

It has the image, the host configuration and the GPU environment of a server; it lacks what a proof
has no use for: network, home, token and the program.  Its label names the run, and no lease, so
that whoever undoes the run finds it and nobody takes it for a server.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from docker.errors import APIError, DockerException, NotFound  # noqa: TID251 - as doctor does
from requests import RequestException

import docker  # noqa: TID251
from miglab_api.engine import gpu_driver_name
from miglab_api.holders import PROOF_LABEL
from miglab_hub.prove.lines import CannotTry
from miglab_hub.prove.trial import ContainerSettings
from miglab_pool.gpu.readings import SliceReading
from miglab_spawner.containers.host_config import (
    SavedLease,
    gpu_environment,
    hard_host_config,
    limits_of,
    soft_host_config,
)

ENGINE_ERRORS = (DockerException, RequestException, OSError)
ENGINE_S = 60
STAY = ("sleep", "infinity")


class NotStartedError(Exception):
    """The engine did not start a container; the message is the engine's."""


class StartRefusedError(NotStartedError):
    """The engine answered, and refused the start itself."""


@dataclass(frozen=True)
class StudentContainer:
    """A container of a run.

    Attributes:
        api: docker-py's ``APIClient``.
        id: the container's.
    """

    api: Any
    id: str

    def run(self, *command: str) -> tuple[int | None, str]:
        """Run a command in it.

        Returns:
            Its exit status, None if the engine does not tell, and what it printed.
        """
        created = self.api.exec_create(self.id, list(command), stderr=True)
        output = self.api.exec_start(created["Id"]).decode(errors="replace")
        return self.api.exec_inspect(created["Id"])["ExitCode"], output

    def begin(self, *command: str) -> None:
        """Run a command in it for which nobody waits."""
        created = self.api.exec_create(self.id, list(command), stdin=True)
        self.api.exec_start(created["Id"], detach=True)

    def remove(self) -> None:
        """Remove the container at once, if it exists."""
        with suppress(NotFound):
            self.api.remove_container(self.id, force=True, v=True)


class ProofServers:
    """Starts students' containers for one run.

    Args:
        settings: the lab's.
        run: the run's name, for the label.
    """

    def __init__(self, settings: ContainerSettings, run: str) -> None:
        """Open the engine.

        Raises:
            CannotTry: it does not answer, or lacks the students' image.
        """
        self._settings = settings
        self._run = run
        try:
            client: Any = docker.APIClient(settings.docker_url, timeout=ENGINE_S, version="auto")
            self.api = client
            client.inspect_image(settings.image)
        except NotFound:
            raise CannotTry("the engine does not have the students' image") from None
        except ENGINE_ERRORS as error:
            name = type(error).__name__
            raise CannotTry(f"the Docker engine does not answer ({name})") from error

    def close(self) -> None:
        """Close the connection."""
        self.api.close()

    def lease_container(self, reading: SliceReading) -> StudentContainer:
        """Create the container of a lease of this slice; it is not started.

        Raises:
            NotStartedError: the engine refuses.
        """
        grant = SavedLease(0, 0, "", "", (reading.uuid,) if reading.uuid else ())
        driver = gpu_driver_name(str(self._do(self.api.version)["Version"]))
        return self._create(reading, gpu_environment({}, grant), hard_host_config(grant, driver))

    def container_without_lease(
        self, reading: SliceReading, environment: dict[str, str], *, is_guarded: bool
    ) -> StudentContainer:
        """Create a container that holds nothing.

        Args:
            reading: by whose shape it is limited.
            environment: of the container; with ``is_guarded`` the spawner's word is added.
            is_guarded: whether the environment is what the spawner makes of it.

        Raises:
            NotStartedError: the engine refuses.
        """
        env = gpu_environment(environment, None) if is_guarded else environment
        return self._create(reading, env, {})

    @contextmanager
    def started(self, container: StudentContainer) -> Iterator[StudentContainer]:
        """Start a container, which is removed where the block ends.

        Raises:
            StartRefusedError: the engine refuses.
            NotStartedError: it does not answer.
        """
        try:
            self._do(lambda: self.api.start(container.id), StartRefusedError)
            yield container
        finally:
            container.remove()

    def _create(
        self, reading: SliceReading, environment: dict[str, str], hard: dict[str, Any]
    ) -> StudentContainer:
        settings = self._settings
        limits = limits_of(reading.profile.name, settings.limits)
        soft = soft_host_config(limits, {}, disk_gib=settings.disk_gib)
        host = self.api.create_host_config(**soft, **hard, network_mode="none")
        created = self._do(
            lambda: self.api.create_container(
                settings.image,
                list(STAY[1:]),
                entrypoint=list(STAY[:1]),
                labels={PROOF_LABEL: self._run},
                environment=environment,
                host_config=host,
                healthcheck={"test": ["NONE"]},
            )
        )
        return StudentContainer(self.api, str(created["Id"]))

    def _do(self, call: Any, refusal: type[NotStartedError] = NotStartedError) -> Any:
        try:
            return call()
        except APIError as error:
            raise refusal(str(error.explanation or error)) from error
        except ENGINE_ERRORS as error:
            raise NotStartedError(f"{type(error).__name__}: {error}") from error
