"""The image students' servers run in: what is in it, what is not, and what it does at a start."""

import io
import json
import re
import tarfile
import time
import uuid
from collections.abc import Iterator

import jupyterhub
import pytest
from docker.models.containers import Container

import docker
from miglab_bench.harness.student import STEP_S

from .conftest import STAYS, image

pytestmark = [pytest.mark.docker, pytest.mark.long]

NOTEBOOKS = "/home/jovyan/notebooks"
RUN_NOTEBOOK = """
import nbclient, nbformat, os, sys
notebook = nbformat.read(sys.argv[1], 4)
beside = {"metadata": {"path": os.path.dirname(sys.argv[1])}}  # as Jupyter does
nbclient.NotebookClient(notebook, timeout=120, resources=beside).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text") or output.get("data", {}).get("text/plain", ""))
"""


def lines(container: Container, *command: str) -> str:
    """What a program in the container prints; it must succeed."""
    code, printed = container.exec_run(list(command))
    assert code == 0, printed.decode(errors="replace")
    return printed.decode()


def put(container: Container, folder: str, name: str, content: bytes) -> None:
    """Write a file into a container, as root would."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o644
        archive.addfile(entry, io.BytesIO(content))
    assert container.put_archive(folder, packed.getvalue())


@pytest.fixture
def home(engine: docker.DockerClient) -> Iterator[dict[str, dict[str, str]]]:
    """A named volume for a home; removed after the test."""
    volume = engine.volumes.create(f"miglab-test-{uuid.uuid4().hex[:8]}")
    yield {volume.name: {"bind": "/home/jovyan", "mode": "rw"}}
    volume.remove(force=True)


@pytest.fixture(scope="module")
def idle(engine: docker.DockerClient, student_image: str) -> Iterator[Container]:
    """A container of the image after its start script, with no server in it."""
    container = engine.containers.run(student_image, STAYS, detach=True)
    wait_for_notebooks(container)
    yield container
    container.remove(force=True, v=True)


def wait_for_notebooks(container: Container) -> None:
    """Wait until the start script has become the given program, `STAYS`."""
    end = time.monotonic() + STEP_S
    while "sleep" not in lines(container, "sh", "-c", "cat /proc/[0-9]*/comm || true").split():
        assert time.monotonic() < end, container.logs().decode()


PYTHON_SAYS = {
    "no question about news": (
        "from jupyterlab_server.config import get_page_config as g; print(g([]))",
        ".*@jupyterlab/apputils-extension:announcements.*",
    ),
    "CPU time is told": (
        "from miglab_jupyterlab.signals import process_cpu_s as s; print(s() > 0)", "True\n",
    ),
    "handing in is for students": ("import labkit; print(labkit.hand_in.__name__)", "hand_in\n"),
    "all that notebooks need, and the lab's JupyterHub": (
        "import jupyterlab, jupyterhub.singleuser.extension, ipywidgets, torch; "
        "print(jupyterhub.__version__)",
        re.escape(f"{jupyterhub.__version__}\n"),
    ),
}  # fmt: skip
SHELL_SAYS = {
    "no search for language servers": (
        "jupyter server --show-config-json 2>/dev/null", r'.*"autodetect":\s*false.*',
    ),
    "the slice in JupyterLab": (
        "jupyter labextension list 2>&1; jupyter server extension list 2>&1",
        ".*@miglab/jupyterlab.*miglab_jupyterlab.*",
    ),
    "grading is for who has a checkout": (
        "labkit grade /tmp --csv /tmp/marks.csv 2>&1; echo $?", ".*Run it in a checkout.*\n2\n",
    ),
    "no root, who owns the home": (
        f"id -u; stat -c %u /home/jovyan {NOTEBOOKS}; command -v sudo doas", "(1000\n){3}",
    ),
    "nothing to build with": (
        "for t in cc gcc g++ clang make cmake ld as nvcc cargo go node; do command -v $t; done; "
        "ls /usr/include/python3.11/Python.h 2>/dev/null", "",
    ),
    "unhealthy without a server": (
        "/opt/student/bin/python /opt/miglab/healthcheck.py >/dev/null 2>&1; echo $?", "1\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), PYTHON_SAYS.values(), ids=PYTHON_SAYS)
def test_what_is_in_it(idle: Container, code: str, expected: str):
    """Asked of its Python."""
    assert re.fullmatch(expected, lines(idle, "python", "-c", code), re.DOTALL)


@pytest.mark.parametrize(("command", "expected"), SHELL_SAYS.values(), ids=SHELL_SAYS)
def test_what_a_student_finds_and_does_not_find(idle: Container, command: str, expected: str):
    """In a shell."""
    printed = lines(idle, "sh", "-c", f"{command}; true")
    assert re.fullmatch(expected, printed, re.DOTALL), printed


def test_the_large_part_is_a_layer_of_its_own(engine, student_image: str, capsys):
    """PyTorch's layer is apart from the rest, and what changes often is small."""
    history = engine.images.get(student_image).history()
    sizes = [round(layer["Size"] / 1e6) for layer in history if layer["Size"] > 1e5]
    with capsys.disabled():
        print(f"\n  {student_image}: {sum(sizes)} MB in layers of {sizes} MB")
    assert max(sizes) > sum(sizes) / 2
    assert sizes[0] < 20  # the newest: this repository's own


COMPILES = """
import labkit, torch
assert labkit.exercises.kernels.has_compiler(on_gpu=True)
function = lambda x: (x.exp() / x.exp().sum(-1, keepdim=True)).tanh()
x = torch.randn(8, 64)
compiled, _ = labkit.exercises.kernels.compile_anew(function, x)
print(torch.allclose(compiled(x), function(x), atol=1e-6))
"""


def test_with_a_compiler_what_is_compiled_computes_the_same(engine, student_image: str, capsys):
    """Beside PyTorch, its C++ and Python's headers are all that it takes; the rest is the same."""
    name = image(engine, f"{student_image}:compiler", "images/build compiler")
    printed = engine.containers.run(name, ["python", "-c", COMPILES], remove=True)
    assert printed.decode().endswith("True\n")
    sizes = {tag: engine.images.get(tag).attrs["Size"] / 1e6 for tag in (student_image, name)}
    with capsys.disabled():
        print(f"\n  {', '.join(f'{tag}: {size:.0f} MB' for tag, size in sizes.items())}")
    assert engine.images.get(name).attrs["Config"]["User"] == "1000:1000"


def test_the_server_answers_and_is_healthy(start, student_image: str):
    """The image's health check turns healthy with a server, and it knows the hub's prefix."""
    prefix = "/user/a/"
    environment = {"JUPYTERHUB_SERVICE_URL": f"http://0.0.0.0:8888{prefix}"}
    command = [
        *("jupyter", "server", "--ip=0.0.0.0", "--port=8888"),
        f"--ServerApp.base_url={prefix}",
    ]
    container = start(student_image, command, environment=environment)
    check = ["/opt/student/bin/python", "/opt/miglab/healthcheck.py"]
    configured = container.client.api.inspect_image(student_image)["Config"]["Healthcheck"]["Test"]
    assert configured == ["CMD", *check]
    end = time.monotonic() + STEP_S
    while container.exec_run(check).exit_code != 0:
        assert time.monotonic() < end, container.logs().decode()


def test_your_slice_runs_headless(home, start, student_image: str):
    """The notebook runs to its end without a GPU, and says what it measured on."""
    uuids = "MIG-11111111-2222-5333-8444-555555555555"
    environment = {
        "MIGLAB_SHAPE": "1g.5gb",
        "MIGLAB_LEASE": "7",
        "MIGLAB_SLICES": uuids,
        "MIGLAB_SIMULATED": "1",
    }
    container = start(student_image, STAYS, volumes=home, environment=environment)
    wait_for_notebooks(container)
    printed = lines(container, "python", "-c", RUN_NOTEBOOK, f"{NOTEBOOKS}/1_your_slice.ipynb")
    assert f"Leased slice: {uuids}" in printed
    assert "GFLOP/s" in printed
    assert "Simulated GPUs: measured on this server's CPU" in printed


def test_notebooks_carry_no_outputs(idle: Container):
    """What is shipped was made from the source, and nobody's results are in it."""
    names = lines(idle, "ls", NOTEBOOKS).split()
    assert "1_your_slice.ipynb" in names
    for name in (name for name in names if name.endswith(".ipynb")):
        cells = json.loads(lines(idle, "cat", f"{NOTEBOOKS}/{name}"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.fixture
def later_image(engine: docker.DockerClient, student_image: str) -> Iterator[str]:
    """The image with another version of a notebook, and one more; removed after the test."""
    container = engine.containers.create(student_image)
    try:
        put(container, "/opt/miglab/notebooks", "1_your_slice.ipynb", b"version 2")
        put(container, "/opt/miglab/notebooks", "added_later.ipynb", b"new")
        image = container.commit()
    finally:
        container.remove()
    yield image.id
    engine.images.remove(image.id, force=True)


def test_an_edited_notebook_outlives_a_new_image(later_image, home, start, student_image: str):
    """In the same home, a later image brings what is new and leaves what was edited."""
    first = start(student_image, STAYS, volumes=home)
    wait_for_notebooks(first)
    lines(first, "sh", "-c", f"echo mine > {NOTEBOOKS}/1_your_slice.ipynb")
    first.kill()
    later = start(later_image, STAYS, volumes=home)
    wait_for_notebooks(later)
    assert lines(later, "cat", f"{NOTEBOOKS}/1_your_slice.ipynb") == "mine\n"
    assert lines(later, "cat", f"{NOTEBOOKS}/added_later.ipynb") == "new"


def test_a_home_that_cannot_be_written_still_starts(start, student_image: str):
    """A read-only home keeps the notebooks away, not the server."""
    options = {"read_only": True, "tmpfs": {"/tmp": ""}}
    container = start(student_image, STAYS, **options)
    wait_for_notebooks(container)
    assert b"could not be brought up to date" in container.logs()
