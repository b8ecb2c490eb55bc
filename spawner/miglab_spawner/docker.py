"""MIGDockerSpawner: DockerSpawner, and where there is a lease, its slices in the container.

Created, then attached, then started: the container's id is the holder.  Without a lease everything
is DockerSpawner's: configuration, images, volumes, named servers, state, user options, ``remove``;
except that its Docker calls have more than one thread, and the container no GPU and some limits.

docker_engine.py has the calls of the engine, docker_networks.py the networks.
"""

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from docker.errors import APIError  # noqa: TID251 - one of the rooms that talk to Docker
from dockerspawner import DockerSpawner
from traitlets import Bool, Float, List, Unicode

from miglab_api.engine import gpu_driver_name
from miglab_api.leases import LeaseView
from miglab_spawner import home_size
from miglab_spawner.borrower import SliceRunner
from miglab_spawner.containers.container_runner import COMMAND, ENGINE_ERRORS, ContainerRunner
from miglab_spawner.containers.gpu_handover import check_container, listing_thread
from miglab_spawner.containers.home_volume import (
    HomeTaken,
    ensure_home_volume,
    home_directory,
    measure_volume,
)
from miglab_spawner.containers.host_config import (
    ContainerLimits,
    SavedLease,
    container_holder,
    container_of,
    escape_braces,
    from_labels,
    gpu_environment,
    hard_host_config,
    limits_of,
    soft_host_config,
    to_labels,
)
from miglab_spawner.containers.server_labels import labels_of
from miglab_spawner.containers.turns import StartTurns
from miglab_spawner.docker_engine import BUSY
from miglab_spawner.docker_networks import ServerNetworks
from miglab_spawner.pool_leases import PoolSpawnerMixin
from miglab_spawner.refusals import NotStarted, container_end_message
from miglab_spawner.slices_missing import SlicesMissing

_STARTS = StartTurns(max(1, (os.cpu_count() or 1) // 2), longest_s=3.0, longest_wait_s=45.0)


def _table_or_empty(extra: Any) -> dict[str, Any]:
    """Return a site's additions; empty where they are a function and not a table."""
    return dict(extra) if isinstance(extra, Mapping) else {}


class MIGDockerSpawner(PoolSpawnerMixin, ServerNetworks, DockerSpawner):
    """DockerSpawner with MIG slices; ``c.JupyterHub.spawner_class = "mig-docker"``."""

    harden = Bool(
        True,
        help="""Drop all capabilities, allow no new privileges, apply `shape_limits`, allow no swap,
        limit log, open files and core dumps, and refuse a network on which servers can reach
        one another.

        `extra_host_config` overrides single settings; False leaves all of them to the site, as
        DockerSpawner does.
        """,
    ).tag(config=True)

    disk_gib = Float(
        0,
        min=0,
        help="""How many GiB a container may write outside its volumes; 0 for no limit.

        It needs an engine whose file system supports it: overlay2 on XFS mounted with `pquota`, or
        ZFS.  Other engines refuse to create the container, and Btrfs does not keep the limit.
        Home volumes are not counted.
        """,
    ).tag(config=True)

    home_volume = Unicode(
        "miglab-home-{username}",
        help="""Named volume for the home directory, which outlives every container.

        It is used only if `volumes` and `mounts` are empty; if it is empty itself, there is no
        volume.
        """,
    ).tag(config=True)

    home_dir = Unicode(
        "",
        help="""Where `home_volume` is mounted in the container.

        If it is empty, the image says where its home is: by `HOME` in its environment, or else by
        its working directory if that lies under `/home`.  If the image says neither, the start is
        refused with the reason `no-home`.  Set it for an image that chooses the home only when it
        starts, such as Jupyter's with `NB_USER`.
        """,
    ).tag(config=True)

    runner_cmd = List(
        Unicode(),
        COMMAND,
        help="""The program that measures on borrowed slices, in the student's image.

        It must be `labkit.measuring.job_server`, run by a Python that has labkit.
        """,
    ).tag(config=True)

    object_id: str
    _has_logged_remove = False
    _configured_remove: bool | None = None

    @property
    def escaped_name(self) -> str:
        """Return what ``{username}`` stands for in the names of volumes and containers.

        As DockerSpawner, but of the home's name: that of the user may be another's by now.
        """
        return str(self.escape(self.home_name))

    # The spawn page: DockerSpawner's own choice of an image stays.

    def read_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of a form: the shape, and the image that DockerSpawner offers."""
        options = dict(DockerSpawner._default_options_from_form(self)(formdata))
        return {**options, **super().read_form(formdata)}

    async def base_form(self) -> str:
        """Return DockerSpawner's form for choosing an image, where there are several."""
        return str(DockerSpawner._default_options_form(self))

    async def measure_home(self) -> home_size.HomeUse | None:
        """Measure the home volume; an engine that cannot measure it is no reason to refuse."""
        if not self._has_home_volume:
            return home_size.HomeUse()
        volume = self.format_volume_name(self.home_volume, self)
        measurement = (self.image, volume, self.lab_id, self.home_gib)
        try:
            await self._ensure_home_volume()
            return await self._with_engine(
                measure_volume, *measurement, executor=self.measurement_threads
            )
        except ENGINE_ERRORS as error:
            self.log.warning("The home %s was not measured: %s", volume, error)
            return home_size.HomeUse()

    @property
    def _has_home_volume(self) -> bool:
        """Whether the home is a volume of ours: the site names no storage of its own."""
        return bool(self.home_volume) and not self.volumes and not self.mounts

    # Attach, then start.

    async def start(self) -> Any:
        """Start as the mixin does, and explain errors of the engine to the student."""
        try:
            return await super().start()
        except ENGINE_ERRORS as error:
            explanation = getattr(error, "explanation", None) or error
            message = (
                "Docker could not start your server. Try again; if it stays so, tell your "
                f"instructor: {explanation}"
            )
            error.jupyterhub_message = message  # type: ignore[union-attr]  # JupyterHub shows it
            raise

    async def keep_home_name(self) -> None:
        """Keep the name as the mixin does, and name the next container after it."""
        await super().keep_home_name()
        if not self.object_id:
            self.object_name = self._object_name_default()

    async def prepare(self) -> None:
        """Remove a leftover container whose slices are not this start's, and prepare the network.

        A leftover that never ran is removed as well.  A container of the server's name without the
        server's labels is left alone.
        """
        leftover = await self._inspect(self.object_name)
        if leftover is None or leftover["Id"] != self.object_id:
            self.object_id = ""
        if leftover is not None and self._labels.matches_server(labels_of(leftover)):
            had = from_labels(self.lab_id, labels_of(leftover))
            has_run = leftover["State"]["Status"] != "created"
            if had is not None or self.grant is not None or not has_run:
                await self._remove_leftover(leftover)
        if self.grant is not None:
            self._force_removal()
        await self._prepare_network()

    async def _remove_leftover(self, leftover: dict[str, Any]) -> None:
        self.log.warning("Removing %s, left over", self.object_name)
        await self._remove(leftover["Id"])
        await self._end_orphaned_processes(leftover["Id"])
        self.object_id = ""

    async def create_object(self) -> Any:
        """Create the container as DockerSpawner does, with slices, labels, limits and hardening."""
        site_create = await self._evaluate(self.extra_create_kwargs)
        site_host = await self._evaluate(self.extra_host_config)
        own_labels = escape_braces(self._labels.as_labels())
        create = {**site_create, "labels": {**site_create.get("labels", {}), **own_labels}}
        hard = hard_host_config(self.grant, await self._hook_driver())
        host = {**self._soft_host_config(self.limits, site_host), **escape_braces(hard)}
        home = await self._find_home()
        await self._ensure_home_volume()
        with self._temporary_traits(
            extra_create_kwargs=create, extra_host_config=host, home_dir=home
        ):
            return await self._create_container()

    async def _create_container(self) -> Any:
        """Create the container; a leftover of this server is removed if it has the name.

        Raises:
            NotStarted: the name is taken by a container that is not this server's.
        """
        try:
            return await super().create_object()
        except APIError as error:
            other = await self._inspect(self.object_name) if error.status_code == BUSY else None
            if other is None:
                raise
            if not self._labels.matches_server(labels_of(other)):
                raise self._name_taken_error("container", self.object_name) from error
            await self._remove_leftover(other)
        return await super().create_object()

    async def start_object(self) -> None:
        """Attach the container to its lease, start it, and check that it has its slices."""
        await self.attach(container_holder(self.container_id))
        async with _STARTS.turn():
            await super().start_object()
        await self._check_slices()
        await self.announce_running()

    async def _hook_driver(self) -> str:
        """Return the name by which the engine knows NVIDIA's hook; an upgrade may change it."""
        if self.grant is None:
            return ""
        return gpu_driver_name(str((await self.docker("version"))["Version"]))

    async def _check_slices(self) -> None:
        """Check that the container has its slices, while the server itself starts up.

        Raises:
            NotStarted: the container has not exactly the slices of the lease, or nobody can tell.
        """
        if self.grant is None:
            return
        try:
            with listing_thread() as thread:
                await self._with_engine(
                    check_container, self.container_id, self.grant.uuids, executor=thread
                )
        except SlicesMissing as missing:
            raise self._slices_missing(missing) from None

    def get_env(self) -> dict[str, str]:
        """Return DockerSpawner's environment, with the leased GPUs and no others."""
        env = gpu_environment(super().get_env(), self.grant)
        if self.harden:
            limits = self._with_site_limits(self.limits, _table_or_empty(self.extra_host_config))
            env["MEM_LIMIT"], env["CPU_LIMIT"] = str(limits.mem_bytes), str(limits.cpus)
        return env

    @property
    def volume_binds(self) -> dict[str, dict[str, str]]:
        """Return DockerSpawner's binds, and the home volume where the site names no storage."""
        binds: dict[str, dict[str, str]] = super().volume_binds
        if self._has_home_volume:
            volume = self.format_volume_name(self.home_volume, self)
            binds[volume] = {"bind": self.home_dir, "mode": "rw"}
        return binds

    async def _ensure_home_volume(self) -> None:
        """Make the home volume with this lab's label, unless it is there.

        Raises:
            NotStarted: it is another lab's, in which the name may be somebody else's.
        """
        if not self._has_home_volume:
            return
        volume = self.format_volume_name(self.home_volume, self)
        try:
            await self._with_engine(ensure_home_volume, volume, self.lab_id, self.escaped_name)
        except HomeTaken as taken:
            self.log.error(
                "The volume %s is a home of the lab %s, so it is left alone. Set "
                "c.MIGDockerSpawner.home_volume to names that nobody else uses.",
                volume,
                taken,
            )
            raise NotStarted(
                "Your server was not started, because another lab on this host keeps somebody's "
                "files where yours would lie. Tell your instructor; the hub's log says what to do.",
                reason="name-taken",
            ) from taken

    async def _find_home(self) -> str:
        """Return where the home volume is mounted in a container of this image.

        Raises:
            NotStarted: nobody knows, and what students write elsewhere ends with the container.
        """
        if self.home_dir or not self._has_home_volume:
            return str(self.home_dir)
        image = await self.docker("inspect_image", self.image)
        home = home_directory(image["Config"], self.get_env())
        if not home:
            raise NotStarted(
                "Your server was not started, because your files would be lost at its end: the "
                f"image {self.image} does not say where its home directory is. Tell your "
                "instructor: whoever runs the hub must set c.MIGDockerSpawner.home_dir to it.",
                reason="no-home",
            )
        return home

    # Its end.

    async def poll(self) -> Any:
        """Poll as DockerSpawner does; with a lease, an error of the engine means: alive."""
        try:
            return await super().poll()
        except ENGINE_ERRORS as error:
            if self.grant is None:
                raise
            self.log.warning("Is %s there? Docker: %s", self.object_name, error)
            return None

    async def get_object(self) -> Any:
        """Return the server's container as DockerSpawner does, but never one by its name alone.

        With a lease, only Docker's 404 means gone: DockerSpawner reads an HTTP 500 as gone as well,
        and forgets the id.
        """
        expected_id = self.object_id
        if self.grant is not None:
            container = await self._inspect(expected_id or self.object_name)
        else:
            container = await super().get_object()
        if container is None or not self._is_server(container, expected_id):
            # An id is kept for as long as another container goes by the name, so that no later look
            # takes that one for a server whose id was lost.
            self.object_id = expected_id if container else ""
            return None
        self.object_id = container["Id"]
        if self.grant is None and (had := from_labels(self.lab_id, labels_of(container))):
            self.take_over_lease(had, container_holder(container["Id"]))
            self._force_removal()
        return container

    def _is_server(self, container: Mapping[str, Any], expected_id: str) -> bool:
        """Whether this is the server's container: by its id, or where that is lost, by its labels.

        Of a server with a lease the labels must name that lease: one that was started since a
        backup goes by the same name.
        """
        if expected_id:
            return bool(container["Id"] == expected_id)
        labels = labels_of(container)
        return self._labels.matches_lease(labels) or (
            self.grant is None and self._labels.matches_server(labels)
        )

    async def stop(self, now: bool = False) -> None:
        """Stop as DockerSpawner does; do nothing if no container was created."""
        if self.object_id or await self.get_object():
            await super().stop(now)
            await self._drop_network()

    async def remove_object(self) -> None:
        """Remove the container; with a lease also a running one, and wait until it is gone."""
        if self.grant is None:
            await super().remove_object()
            await self._end_orphaned_processes(self.object_id)
        else:
            await self._remove(self.object_id)

    async def end_holder(self, holder: str) -> None:
        """Read why the container ended, stop it if it runs, remove it."""
        container_id = container_of(holder)
        if not container_id:
            return
        try:
            inspected = await self._inspect(container_id)
            if inspected is not None:
                memory = inspected["HostConfig"].get("Memory") or self.limits.mem_bytes
                if news := container_end_message(inspected["State"], memory):
                    self.show_on_next_spawn_page(news)
                await self.docker("stop", container_id)
                await self._remove(container_id)
            await self._drop_network()
        except ENGINE_ERRORS as error:
            self.log.warning("Could not end %s; the pool will look: %s", holder, error)

    async def run_post_stop_hook(self) -> None:
        """Run the hook as the mixin does, then restore the site's ``remove``."""
        try:
            await super().run_post_stop_hook()
        finally:
            if self._configured_remove is not None:
                self.remove, self._configured_remove = self._configured_remove, None

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the state; a container with a lease will be removed after its end."""
        super().load_state(state)
        if self.grant is not None:
            self._force_removal()

    # What its measurements borrow.

    def make_runner(self, lease: LeaseView) -> SliceRunner:
        """Return a runner: a container like the server's, without network, home and token."""
        loan = SavedLease.from_lease(lease)
        # The site's own additions, where they are plain tables: a function is for a server.
        extras = (self.extra_create_kwargs, self.extra_host_config)
        create, host = map(_table_or_empty, extras)
        return ContainerRunner(
            self.client,
            image=self.image,
            name=f"{self.object_name}-run-{lease.id}",
            labels=to_labels(self.lab_id, loan),
            env=gpu_environment(self.runner_env(lease), loan),
            host_config=self._soft_host_config(limits_of(lease.shape, self.shape_limits), host),
            grant=loan,
            command=self.runner_cmd,
            user=create.get("user"),
        )

    # The site's settings, and ours.

    def _force_removal(self) -> None:
        """Set ``remove``: a stopped container would start again with its old slice."""
        if self.remove:
            return
        self._configured_remove, self.remove = False, True
        if not MIGDockerSpawner._has_logged_remove:
            MIGDockerSpawner._has_logged_remove = True
            self.log.info("Containers with a lease are always removed; `remove` is for the others")

    def _with_site_limits(
        self, limits: ContainerLimits, host: Mapping[str, Any]
    ) -> ContainerLimits:
        return limits.with_site_limits(host, mem_limit=self.mem_limit, cpu_limit=self.cpu_limit)

    def _soft_host_config(
        self, limits: ContainerLimits, site_host: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return our limits and hardening, overridden by the site's host configuration."""
        if not self.harden:
            return dict(site_host)
        limits = self._with_site_limits(limits, site_host)
        return soft_host_config(limits, site_host, disk_gib=self.disk_gib)

    async def _evaluate(self, extra: Any) -> dict[str, Any]:
        value = self._eval_if_callable(extra)
        return dict(await value if inspect.isawaitable(value) else value)

    @contextmanager
    def _temporary_traits(self, **values: Any) -> Iterator[None]:
        """Set traits for the time of a call, in which DockerSpawner reads them."""
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)
