"""Where an image says that its home is."""

import pytest

from miglab_spawner.containers.home_volume import home_of

JUPYTERS = {"Env": ["PATH=/bin", "HOME=/home/jovyan"], "WorkingDir": "/home/jovyan/work"}


@pytest.mark.parametrize(
    ("image", "env", "home"),
    [
        (JUPYTERS, {}, "/home/jovyan"),
        (JUPYTERS, {"HOME": "/home/ada"}, "/home/ada"),
        ({"Env": ["HOME=/root"], "WorkingDir": "/home/ada"}, {}, "/root"),
        ({"Env": ["HOME=/home/a=b/"]}, {}, "/home/a=b"),
        ({"Env": None, "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME="], "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME=/"], "WorkingDir": "/home/ada"}, {}, "/home/ada"),
        ({"Env": ["HOME=here"], "WorkingDir": "/homes/ada"}, {}, ""),
        ({"Env": [], "WorkingDir": "/home/"}, {}, ""),
        ({"Env": [], "WorkingDir": "/home/../srv"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_where_the_home_is(image: dict[str, object], env: dict[str, str], home: str) -> None:
    """HOME, the site's before the image's; else the working directory if it lies under /home."""
    assert home_of(image, env) == home
