"""A new image for next week while servers of the old one run: docs/howto/next-image.md."""

import io
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.students import served

import docker
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab

pytestmark = [pytest.mark.docker, pytest.mark.long]

SHAPE = "1g.5gb"


@pytest.fixture
def next_image(engine: docker.DockerClient, student_image: str) -> Iterator[str]:
    """An image over this week's, as the how-to builds one."""
    name = f"{student_image}:week-{uuid.uuid4().hex[:6]}"
    recipe = f'FROM {student_image}\nLABEL week="7"\n'
    engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=name, pull=False, rm=True)
    yield name
    engine.images.remove(name)


def test_next_weeks_image(engine: docker.DockerClient, student_image: str, next_image: str) -> None:
    """Who runs keeps image, server and slice; who starts from now on gets the new image."""
    with temporary_lab(docker=True, shapes=(SHAPE, "cpu"), image=student_image) as lab:
        ada = served(lab, "ada", SHAPE)
        lease = lab.leases()["ada"]
        file = lab.settings.file
        text = file.read_text(encoding="utf-8")
        old, new = f'image = "{student_image}"', f'image = "{next_image}"'
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")
        lab.kill("hub", "pool")  # they start again, and read lab.toml anew
        bo = served(lab, "bo", SHAPE)
        assert lab.leases()["ada"].id == lease.id
        assert image_of(engine, lab, "ada") == student_image
        assert image_of(engine, lab, "bo") == next_image
        ada.leave()
        ada.ask(SHAPE)
        ada.wait_until_ready()
        assert image_of(engine, lab, "ada") == next_image
        for student in (ada, bo):
            student.leave()
            student.close()


def image_of(engine: docker.DockerClient, lab: TemporaryLab, user: str) -> Any:
    """The image of the container that holds the user's lease."""
    holder = lab.leases()[user].holder or ""
    return engine.containers.get(holder.removeprefix("container:")).attrs["Config"]["Image"]
