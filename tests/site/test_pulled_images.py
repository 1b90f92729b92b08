"""Machines of images that came from a repository, or lie in one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.images.pushing import push
from encamp.images.repository import Repository
from encamp.images.store import ImageStore
from encamp.model.errors import Code
from encamp.model.image import Image
from encamp.progress import Silent
from tests.builds import give_verdict
from tests.conftest import ENCAMP, left_behind
from tests.images.servers import Nginx, nginx

pytestmark = pytest.mark.site

ENVIRONMENTS = "tiny: {image: 'tiny:1', memory: 128M}"


@pytest.fixture(scope="module")
def ground(site_home: Home) -> Iterator[Path]:
    """A directory that machines' processes, which are not root's, can enter."""
    directory = Path(tempfile.mkdtemp(prefix="node-", dir=site_home.root.parent))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def image(site_home: Home, ground: Path) -> Image:
    """`mini`, pushed as `tiny:1`."""
    images = ImageStore(site_home, shared=None)
    (ground / "www").mkdir()
    names = ["tiny", "tiny:1"]
    push(images, Repository.open(str(ground / "www")), "mini", Silent(), tags=names)
    return images.get("mini")


@pytest.fixture(scope="module")
def server(ground: Path, image: Image) -> Iterator[Nginx]:
    with nginx(ground) as server:
        yield server


def variables(ground: Path, site_home: Home, name: str, settings: str) -> dict[str, str]:
    """A node of its own, where `tiny` is described and these settings hold."""
    home = Home(ground / name).prepare()
    give_verdict(home, site_home)
    configuration = ground / f"{name}-configuration"
    configuration.mkdir(mode=0o700, exist_ok=True)
    (configuration / "environments.yaml").write_text(ENVIRONMENTS)
    (configuration / "settings.yaml").write_text(settings)
    return {
        **os.environ,
        "ENCAMP_HOME": str(ground / name),
        # Images that root has on the host that runs the suite would serve this home, too.
        "ENCAMP_SYSTEM_HOME": str(ground / "no-system"),
        "ENCAMP_USER_CONFIG": str(configuration),
        "ENCAMP_QUIET": "1",
    }


def test_jobs_that_reach_a_new_node_at_once_pull_their_image_once(
    ground: Path, site_home: Home, server: Nginx, image: Image
) -> None:
    node = variables(ground, site_home, "node", f"repositories: [{server.url}]")
    command: list[str | Path] = [ENCAMP, "run", "-e", "tiny", "--", "echo", "done"]
    jobs = [
        subprocess.Popen(command, env=node, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for job in jobs:
        out, err = job.communicate(timeout=200)
        assert (out, job.returncode) == (b"done\n", 0), err.decode()
    gets = [line.split()[1] for line in server.requests() if line.startswith("GET")]
    for file in image.files:
        assert gets.count(f"/images/{image.digest}/{file.name}") == 1
    assert left_behind(Home(ground / "node")) == []


def test_machines_read_an_image_in_a_shared_directory_and_never_a_swapped_one(
    ground: Path, site_home: Home, image: Image
) -> None:
    shared = ground / "www"
    node = variables(ground, site_home, "shared", f"repositories: [{shared}]\nin_place: true")
    command: list[str | Path] = [ENCAMP, "run", "--boot", "-e", "tiny", "--", "echo", "done"]
    done = subprocess.run(command, env=node, capture_output=True, timeout=200, check=False)
    assert (done.stdout, done.returncode) == (b"done\n", 0), done.stderr.decode()
    home = Home(ground / "shared")
    assert not (home.images / image.digest).exists()
    root = shared / "images" / image.digest / Image.ROOT
    data = bytearray(root.read_bytes())
    data[len(data) // 2] ^= 1
    root.write_bytes(data)
    done = subprocess.run(command, env=node, capture_output=True, timeout=200, check=False)
    assert (done.stdout, done.returncode) == (b"", Code.CORRUPT.value)
    assert b"is damaged" in done.stderr
    assert left_behind(home) == []
