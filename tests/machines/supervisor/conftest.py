from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from encamp.images.usermode_kernel import usermode_kernel
from encamp.machines.usermode import own_kernel
from tests.builds import Told, built_once
from tests.machines.supervisor import running


@pytest.fixture(scope="session", autouse=True)
def _kernel(tmp_path_factory: pytest.TempPathFactory) -> None:
    def build(home: Home) -> None:
        if own_kernel() is None:
            usermode_kernel(home)

    running.KERNEL = running.find_kernel(built_once(tmp_path_factory, "usermode", Told(), build))


@pytest.fixture(scope="session")
def initramfs(tmp_path_factory: pytest.TempPathFactory, _kernel: None) -> Path:
    return running.build_initramfs(tmp_path_factory.mktemp("initramfs"))


@pytest.fixture(params=[True, False], ids=["seccomp", "ptrace"])
def seccomp(request: pytest.FixtureRequest) -> bool:
    """How the kernel keeps its programs: by seccomp, or by tracing them."""
    return bool(request.param)


@pytest.fixture
def machine(tmp_path: Path, initramfs: Path) -> Iterator[running.Machine]:
    with running.running(tmp_path / "machine", initramfs) as made:
        yield made
