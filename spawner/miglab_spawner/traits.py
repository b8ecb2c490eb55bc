"""The mixin's settings: traits alone, no behaviour.  docs/reference/spawner.md lists them."""

from typing import Any

from traitlets import Bool, Dict, Float, TraitError, Unicode, validate
from traitlets.config import LoggingConfigurable

from miglab_spawner.containers.limits import SHAPE_LIMITS, checked


class SpawnerTraits(LoggingConfigurable):
    """Settings of all our spawners."""

    lab_id = Unicode(
        "miglab",
        help="""This lab's name in container labels and network names.

        Two labs on one Docker engine need two names: each removes what carries its own and has no
        lease.
        """,
    ).tag(config=True)

    default_shape = Unicode(
        "cpu",
        help="""Shape of a server that is started without a choice, as by an API call.

        `cpu` asks the pool for nothing and starts also while the pool is down.
        """,
    ).tag(config=True)

    default_course = Unicode(
        "everyone", help="Course of users who are in no group that the pool knows as a course."
    ).tag(config=True)

    longest_wait_s = Float(
        1800.0,
        min=0,
        help="""Longest wait in line, seconds: the pool's own limit of that name.

        The pool refuses at that limit; `start_timeout` is derived from it and is raised for every
        start with a slice to at least `longest_wait_s` + `create_timeout_s` + `pool_patience_s`.
        """,
    ).tag(config=True)

    create_timeout_s = Float(
        120.0,
        min=1,
        help="""Longest time to create and start a server once its slices are there, seconds.

        At the limit the start fails and the slices go back.
        """,
    ).tag(config=True)

    student_api_url = Unicode(
        "",
        help="""Address of the pool's student listener, as students' servers reach it.

        Passed on as `MIGLAB_API`; empty: not passed on.
        """,
    ).tag(config=True)

    simulated = Bool(
        False, help="Whether the GPUs are simulated; servers see `MIGLAB_SIMULATED=1`."
    ).tag(config=True)

    says_simulated = Bool(
        True,
        help="""Whether the spawn page says so when the pool's GPUs are simulated.

        False where the hub's own announcement says it on every page.
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
        help="""File with the secret that tells the pool it is the spawner who asks (mode 0600).

        Read at each call, so that it may be changed while the hub runs.
        """,
    ).tag(config=True)

    pool_patience_s = Float(
        60.0,
        min=0,
        help="""How long a start that already waits bears a pool that does not answer, seconds.

        A restart of the pool service fits in.  At the limit the start is refused with the reason
        `pool-unreachable`; the place in line is the pool's and may outlive it.
        """,
    ).tag(config=True)

    shape_limits = Dict(
        SHAPE_LIMITS,
        help="""What a container may use, by shape: `mem_gib`, `cpus`, `pids`, `shm_gib`.

        A shape without a row of its own takes `default`, `2x1g.5gb` twice the row of `1g.5gb`.
        `mem_limit` and `cpu_limit` of the spawner take over where they are set.  Local processes
        are not limited.
        """,
    ).tag(config=True)

    @validate("shape_limits")
    def _known_limits(self, proposal: Any) -> Any:
        try:
            checked(proposal["value"])
        except ValueError as error:
            raise TraitError(str(error)) from error
        return proposal["value"]
