"""A private Slurm on a bridge, and machines there that become its nodes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from encamp.agent.caller import caller
from encamp.agent.keeper import Keeper
from encamp.agent.nodes.joining import start_node
from encamp.agent.nodes.keeping import Nodes, nodes_of, record
from encamp.batch.slurm.site import SlurmSite
from encamp.describe.environments import find_environment
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.job import MachineRequest
from encamp.model.machine import Machine
from encamp.model.node import Node, NodeState
from encamp.model.recipe import Recipe
from encamp.progress import Silent
from tests.batch.enrol.imaging import gridengine_tree, slurm_tree
from tests.conftest import ENCAMP
from tests.site.bridging import HOST, SETTINGS, Wire, wire

PATIENCE = 150.0
"""Seconds after which what was waited for will not come about any more."""
NEW_NETWORK = 0x40000000

OF_THEIR_OWN = ("NodeSet=tiny Feature=tiny-slurm", "PartitionName=tiny Nodes=tiny")
"""A partition that has nodes of an environment, and no others."""

ENVIRONMENTS = """
{name}:
  extends: mini
  memory: 192M
  network: bridge
  enrol: {{system: {system}, idle: 1h, features: [test]}}
  image:
    from: mini
    files:
"""


@contextmanager
def within(net: Wire) -> Iterator[None]:
    """Whatever this process does and starts meanwhile is in that network."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(fd, NEW_NETWORK) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(fd)

    # By way of a thread's own entry: the process's is that of its first thread.
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(net.namespace)
        yield
    finally:
        enter(Path(f"/proc/self/fd/{own}"))
        os.close(own)


def describe(name: str, system: str, tree: Path) -> str:
    """An environment whose image has a tree of files over BusyBox."""
    text = ENVIRONMENTS.format(name=name, system=system)
    for path in sorted((*tree.glob("*"), *tree.glob("etc/*"))):
        if path.name != "etc":
            text += f"    - {{path: /{path.relative_to(tree)}, source: {path}}}\n"
    return text


@pytest.fixture(scope="session")
def node_trees(site_home: Home) -> Path:
    """Where files for images lie: at the same place each time, so that images are built once."""
    place = site_home.root.with_name(f"{site_home.root.name}-nodes")
    for name, make in (("slurm", slurm_tree), ("gridengine", gridengine_tree)):
        if not (place / name).exists():
            new = place / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            make(new)
            new.rename(place / name)
    return place


@pytest.fixture(scope="module")
def net() -> Iterator[Wire]:
    with wire() as made:
        yield made


def power_saving(place: Path) -> tuple[str, ...]:
    """Slurm asks for machines itself; its programs read there what they are told."""
    for name in ("resume", "suspend"):
        script = place / name
        script.write_text(
            f'#!/bin/sh\n. {place}/variables\n"{ENCAMP}" batch {name} $ON "$1" 2>>{place}/said\n'
        )
        script.chmod(0o755)
    return (
        f"ResumeProgram={place}/resume",
        f"SuspendProgram={place}/suspend",
        f"ResumeTimeout={PATIENCE:.0f}",
        "SuspendTimeout=3",
        "SuspendTime=3600",
        "ResumeRate=0",
        "SuspendRate=0",
        "PrivateData=cloud",
        "SlurmctldParameters=enable_configless,cloud_reg_addrs,idle_on_node_suspend",
    )


@pytest.fixture(scope="module")
def slurm(net: Wire) -> Iterator[SlurmSite]:
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="encamp-")))
        place.chmod(0o755)  # What others have to pass through.
        with within(net):
            site = held.enter_context(
                SlurmSite(
                    place / "site",
                    nodes=(),
                    address=HOST,
                    lines=(*power_saving(place), *OF_THEIR_OWN),
                )
            )
        yield site


@pytest.fixture
def site_directory(
    encamp_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """What the site's administrator has written, for this process and all that it starts."""
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "settings.yaml").write_text(SETTINGS)
    for name, value in encamp_environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(directory))
    monkeypatch.chdir(tmp_path)
    return directory


class Host:
    """A host whose machines become nodes; time passes for it when `look` is called."""

    def __init__(self, home: Home, net: Wire, environment: str) -> None:
        self.keeper = Keeper.open(home)
        self.net = net
        self.environment = environment
        self.nodes = Nodes(home)

    def start(self, name: str | None = None, **options: float) -> Machine:
        request = MachineRequest(environment=self.environment, owner=caller(), name=name)
        return asyncio.run(start_node(self.keeper, request, Silent(), **options))

    def look(self) -> None:
        asyncio.run(self.nodes.look())

    def node(self, machine: Machine) -> Node | None:
        current = self.keeper.journal.read(machine.id)
        return None if current is None else current.node

    def members(self) -> list[str]:
        """The names of those that have joined."""
        found = nodes_of(self.keeper.journal)
        return [one.name for one in found if one.node and one.node.state is NodeState.MEMBER]

    def look_until_gone(self, machine: Machine) -> None:
        self.look_until(lambda: self.keeper.journal.read(machine.id) is None)

    def look_until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, "what was waited for has not come about"
            self.look()
            time.sleep(0.25)

    def change(self, machine: Machine, **fields: float) -> None:
        """As if time had passed, or somebody had decided so."""
        node = self.node(machine)
        assert node is not None
        record(self.keeper.journal, machine, msgspec.structs.replace(node, **fields))

    def encamp(self, *words: str) -> str:
        done = subprocess.run([ENCAMP, *words], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def inside(self, machine: Machine, script: str) -> str:
        return self.encamp("exec", machine.name, "--", "sh", "-c", script)

    def clear(self) -> None:
        asyncio.run(self.keeper.kill_all())


@pytest.fixture
def slurm_host(
    site_home: Home,
    site_directory: Path,
    node_trees: Path,
    net: Wire,
    slurm: SlurmSite,
    nothing_left: None,
) -> Iterator[Host]:
    key = slurm.directory / "munge" / "key"
    settings = f"system: slurm\nprograms: {{conf: {slurm.conf}, munge_key: {key}}}\n"
    (site_directory / "batch.yaml").write_text(settings)
    described = describe("tiny-slurm", "slurm", node_trees / "slurm")
    (site_directory / "environments.yaml").write_text(described)
    image = find_environment("tiny-slurm").image
    assert isinstance(image, Recipe)
    ImageStore(site_home, shared=None).ensure(image)
    with within(net):
        host = Host(site_home, net, "tiny-slurm")
        yield host
        host.clear()
        assert net.taps() == []


def wait_until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.25)


@pytest.fixture(scope="session")
def person() -> pwd.struct_passwd:
    """An account of this host that is nobody special."""
    return pwd.getpwnam("nobody")
