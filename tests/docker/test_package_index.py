"""An image built as docs/howto/next-image.md says, behind a site's own package index and CA."""

import functools
import http.server
import os
import re
import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import docker

pytestmark = [pytest.mark.docker, pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs/howto/next-image.md"
TAG = "miglab-test-own-index"
STUDENT = f"{TAG}-student"
VENV = "FROM miglab-base\nRUN python3 -m venv /opt/student\n"
NAME = "einops-0.8.1"


def printed() -> str:
    """The printed `docker build`, with the environment that it is given left to the test."""
    section = PAGE.read_text(encoding="utf-8").partition("## Behind your own package index")[2]
    (block,) = re.findall(r"(?ms)^```\n(.*?)^```$", section)
    return "docker build" + block.partition("docker build")[2]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for the index that nobody's bundle knows, and its key."""
    file, key = tmp_path / "site-ca.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
         "-subj", "/CN=index", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", file],
        check=True, capture_output=True,
    )  # fmt: skip
    return file, key


@pytest.fixture
def index(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    """An index with one package, over TLS on loopback."""
    folder = tmp_path / "index/simple/einops"
    folder.mkdir(parents=True)
    wheel = f"{NAME}-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: einops\nVersion: 0.8.1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        archive.writestr("einops.py", "FROM = 'the site'")
        for name, text in about.items():
            archive.writestr(f"{NAME}.dist-info/{name}", text)
    (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel}">{wheel}</a>')
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index")
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    thread.join()
    server.server_close()


def build(command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it, on the host's network: the index listens on loopback alone."""
    local = command.replace("docker build", "docker build --network host")
    local = local.replace("FROM miglab-student", f"FROM {STUDENT}")
    local = local.replace("miglab-student:week-7", TAG)
    environ = {**os.environ, **env, "PIP_NO_PROXY": "*", "DOCKER_BUILDKIT": "0"}
    return subprocess.run(local, shell=True, env=environ, capture_output=True, text=True)


def test_an_image_is_built_from_a_sites_own_index(
    engine: docker.DockerClient, base_image: str, certificate: tuple[Path, Path], index: str
) -> None:
    """With its certificate as printed; without it, pip does not trust the index."""
    lines = ["docker", "build", "--quiet", "--tag", STUDENT, "-"]
    environ = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(lines, input=VENV.encode(), env=environ, check=True, capture_output=True)
    try:
        refused = build(printed(), PIP_INDEX_URL=index)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stdout + refused.stderr
        built = build(printed(), PIP_INDEX_URL=index, SITE_CA=certificate[0].read_text())
        assert built.returncode == 0, built.stderr
        look = ["/opt/student/bin/python", "-c", "import einops; print(einops.FROM)"]
        assert engine.containers.run(TAG, look, remove=True) == b"the site\n"
    finally:
        for tag in (TAG, STUDENT):
            if engine.images.list(tag):
                engine.images.remove(tag, force=True)
