"""An H100 beside an A100 in one lab: docs/howto/gpu-host.md, "Another model of GPU"."""

from collections.abc import Callable

from miglab_pool.settings import Course, PoolSettings

from .conftest import SETTINGS, World

ON_THE_A100, ON_THE_H100 = "3g.20gb", "3g.40gb"
NEED = "at least 30 GiB"
COURSES = {"everyone": Course(title="Everyone", shapes=(ON_THE_A100, ON_THE_H100, NEED))}
BOTH = PoolSettings(
    courses=COURSES, pool=SETTINGS.pool, reclaim=SETTINGS.reclaim, tuning=SETTINGS.tuning
)


def test_a_shape_names_the_card(make_world: Callable[..., World]) -> None:
    """A profile that one model has is created there; a need is met where it fits best.

    Who waits for the one card does not hold up those whose shape the other has.
    """
    lab = make_world(BOTH, models=("A100-40GB", "H100-80GB"))
    names = [gpu.name for gpu in lab.pool.snapshot().gpus]
    assert ["A100" in name for name in names] == [True, False]
    assert gpus_of(lab, "bo", ON_THE_H100) == [1]
    assert gpus_of(lab, "cy", NEED) == [1]
    waiting = lab.ask("dora", ON_THE_H100)
    lab.work()
    assert lab.pool.tickets.find(waiting.id).position == 1
    assert gpus_of(lab, "ada", ON_THE_A100) == [0]


def gpus_of(lab: World, user: str, shape: str) -> list[int]:
    """The indices of the GPUs on which the slices lie that the user now gets."""
    lease = lab.run(user, shape)
    found = lab.pool.snapshot().gpus
    return [gpu.index for gpu in found for item in gpu.slices if item.uuid in lease.uuids]
