"""The mixin's settings: traits alone, no behaviour.  docs/reference/spawner.md lists them."""

from typing import Any

from traitlets import Bool, Dict, Float, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from miglab_spawner.containers.host_config import SHAPE_LIMITS, check_limits


class SpawnerTraits(LoggingConfigurable):
    """Settings of all our spawners."""

    lab_id = Unicode(
        "miglab",
        help="""This lab's name in container labels and network names.

        Two labs on one Docker engine need different names, because each lab removes everything
        that carries its name and has no lease.
        """,
    ).tag(config=True)

    default_shape = Unicode(
        "cpu",
        help="""Shape of a server that is started without a choice, for example through the API.

        `cpu` needs nothing from the pool, so such a server starts even while the pool is down.
        """,
    ).tag(config=True)

    default_course = Unicode(
        "everyone", help="Course of users who are in no group that the pool knows as a course."
    ).tag(config=True)

    longest_wait_s = Float(
        86400.0,
        min=0,
        help="""How long a start may wait in the queue at most, in seconds.

        The pool asks students now and then whether they still wait; at this limit the start fails.
        `start_timeout` is derived from it: for every start with a slice it is raised to at least
        `longest_wait_s` + `create_timeout_s` + `pool_patience_s`.
        """,
    ).tag(config=True)

    create_timeout_s = Float(
        120.0,
        min=1,
        help="""Longest time in seconds to create and start a server once its slices exist.

        After that the start fails and the slices are released.
        """,
    ).tag(config=True)

    student_api_url = Unicode(
        "",
        help="""Address of the pool's student listener as students' servers reach it.

        It is passed on as `MIGLAB_API`, unless it is empty.
        """,
    ).tag(config=True)

    home_gib = Float(
        0,
        min=0,
        help="""How large a home may be, in GiB; 0 for no limit, and then nothing is measured.

        With a larger home, or with more than 65,536 files for each GiB, a start with a slice is
        refused with the reason `home-too-large`, and the student is told what to delete.  A server
        without a GPU still starts.  With containers, a container of its own measures the home
        volume, which takes a few seconds per start; after 30 s the start is refused with the
        reason `home-not-measured`.
        """,
    ).tag(config=True)

    simulated = Bool(
        False, help="Whether the GPUs are simulated; servers then see `MIGLAB_SIMULATED=1`."
    ).tag(config=True)

    course_titles = Dict(
        help="""The name of each course, for JupyterLab's start page; without one, its group's.""",
    ).tag(config=True)

    reading_dir = Unicode(
        "",
        help="""Folder of notebooks, the first of which students can read while they wait.

        The hub shows it on a page of its own, without running anything.  If it is empty, there is
        no such page.
        """,
    ).tag(config=True)

    says_simulated = Bool(
        True,
        help="""Whether the spawn page says that the pool's GPUs are simulated.

        Set it to False if the hub's own announcement says so on every page.
        """,
    ).tag(config=True)


class PoolTraits(LoggingConfigurable):
    """Settings of the spawners whose slices come from the lab's own pool."""

    pool_url = Unicode(
        "http://127.0.0.1:8091/services/pool",
        help="""Address of the pool service's management listener, with its prefix.

        Only the hub needs to reach it; students' servers must not.
        """,
    ).tag(config=True)

    pool_secret_file = Unicode(
        "pool.secret",
        help="""File (mode 0600) with the secret by which the pool recognises the spawner.

        It is read at each call, so you can change it while the hub runs.
        """,
    ).tag(config=True)

    home_names_file = Unicode(
        "miglab-homes.json",
        help="""File that keeps under which name each user's home and containers go.

        A home keeps the name that its user had at first, so that a rename loses nothing, and a new
        account that gets the old name has a home of its own.  Keep the file with the hub's
        database.  If that database is made anew, remove the file: homes are then found by the
        users' names again.
        """,
    ).tag(config=True)

    pool_patience_s = Float(
        60.0,
        min=0,
        help="""How many seconds a waiting start tolerates a pool that does not answer.

        The default is long enough for a restart of the pool service.  After that the start is
        refused with the reason `pool-unreachable`, but the pool may keep the position in the queue.
        """,
    ).tag(config=True)

    borrow_linger_s = Float(
        30.0,
        min=0,
        help="""How many seconds borrowed slices stay with a student after a measurement, unless
        somebody waits for them: as long as in the pool.
        """,
    ).tag(config=True)

    shape_limits = Dict(
        SHAPE_LIMITS,
        help="""What a container may use, by shape: `mem_gib`, `cpus`, `pids`, `shm_gib`.

        A shape without a row of its own uses `default`; `2x1g.5gb` gets twice the row of `1g.5gb`.
        If the spawner's `mem_limit` and `cpu_limit` are set, they apply instead.  Local processes
        are not limited.
        """,
    ).tag(config=True)

    @validate("shape_limits")
    def _check_shape_limits(self, proposal: Any) -> Any:
        try:
            check_limits(proposal["value"])
        except ValueError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]
