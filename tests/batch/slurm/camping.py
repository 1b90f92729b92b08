"""A private Slurm site where each node has an agent of its own, and jobs run in real machines."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from encamp.agent.bait.records import found
from encamp.batch.install.slurm_rules import rules_text
from encamp.batch.slurm.places import Running
from encamp.home import Home
from encamp.model.batch import BatchSettings, Rule
from encamp.model.batch_record import UNDER_WAY, BatchRecord
from tests.batch.slurm.private import Cluster, User, private_cluster
from tests.builds import give_images, give_verdict
from tests.conftest import ENCAMP, ROOT

TEMPLATE = files("encamp.batch.slurm").joinpath("job_submit.lua").read_text()
STARTER = ROOT / "src" / "encamp" / "batch" / "encamp-starter"

ENVIRONMENTS = """
small: {extends: mini}
again: {extends: mini, reuse: true}
broken: {extends: mini, ready: {command: [/bin/false], timeout: 1s}}
"""


class Camp(Cluster):
    """`agents` and `homes` are in the order of the nodes."""

    agents: list[Running]
    homes: list[Home]

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.site, cluster.users, cluster.place)
        self.agents = []
        self.homes = []

    # ── setting up ───────────────────────────────────────────────────────────────────────────────

    def prepare(self, images: Home, settings: str, rules: tuple[Rule, ...]) -> None:
        etc = self.place / "etc"
        etc.mkdir()
        self.settings = settings
        self.require("0")
        (etc / "environments.yaml").write_text(ENVIRONMENTS)
        starter = self.place / "encamp-starter"
        shutil.copy(STARTER, starter)
        (self.site.conf.parent / "encamp_rules.lua").write_text(
            rules_text(BatchSettings(system="slurm", rules=rules), str(starter))
        )
        for node in self.site.nodes:
            home = Home(self.place / f"home-{node.name}").prepare()
            give_images(home, images)
            give_verdict(home, images)
            self.homes.append(home)

    def require(self, memory: str) -> None:
        """So much must be free on a node that takes jobs."""
        (self.place / "etc" / "batch.yaml").write_text(
            f"system: slurm\nprograms: {{conf: {self.site.conf}}}\n"
            f"shares: [{self.place}/people]\nclose: {{memory: {memory}, disk: 0}}\n"
            f"open: {{memory: {memory}, disk: 0}}\nevery: 1s\n{self.settings}"
        )

    def plug(self, *, yes: bool = True) -> None:
        """Have the plug-in, or not. Slurm's commands read this file each time."""
        plugin = self.place / "encamp_spank.so"
        if not plugin.exists():  # Whoever has loaded it must not lose it.
            shutil.copy(STARTER.with_name(plugin.name), plugin)
        stack = self.site.directory / "etc" / "plugstack.conf"
        stack.write_text(f"optional {plugin} {self.place / STARTER.name}\n" if yes else "")

    def start_agent(self, at: int) -> None:
        node = self.site.nodes[at]
        running = node.start(
            [ENCAMP, "agent", "--alone", "--verbose"],
            log=self.place / f"agent-{node.name}.log",
            variables={
                "ENCAMP_HOME": str(self.homes[at].root),
                "ENCAMP_SITE_CONFIG": str(self.place / "etc"),
                "ENCAMP_USER_CONFIG": str(self.place / "none"),
            },
        )
        self.agents[at:] = [running, *self.agents[at + 1 :]]

        def answers() -> bool:
            assert running.alive(), running.said()
            door = Path(f"/proc/{running.pid}/root/run/encamp/bait")
            with suppress(OSError):
                return door.is_socket()
            return False

        self.wait_for("an agent's door", answers)

    def wait_for(self, what: str, true: Any) -> Any:
        try:
            return super().wait_for(what, true)
        except AssertionError as error:
            logs = "\n".join(agent.said()[-4000:] for agent in self.agents)
            raise AssertionError(f"{error}\n── agents\n{logs}") from None

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def output(self, job: str, user: User | None = None) -> str:
        path = (user or self.users[0]).directory / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def done(self, job: str, *states: str, user: User | None = None) -> str:
        """What a job has printed that has ended, well unless said otherwise."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        state = self.wait_for_state(job, *ends)
        said = self.output(job, user)
        assert state in (states or ("COMPLETED",)), f"{state}: {said}"
        return said

    def exit_code(self, job: str) -> str:
        """As Slurm has recorded it: code:signal."""
        said = self.run("scontrol", "show", "job", "-o", job)
        return said.partition(" ExitCode=")[2].split()[0]

    def records(self, job: str, node: int = 0) -> list[BatchRecord]:
        """What an agent has written down of a job, the latest run first."""
        return found(self.homes[node], id=job)

    def settled(self, job: str) -> BatchRecord:
        """What stands there when nothing is to be decided any more."""

        def over() -> list[BatchRecord]:
            return [one for one in self.records(job)[:1] if one.outcome not in UNDER_WAY]

        record: BatchRecord = self.wait_for(f"the end of job {job}", over)[0]
        return record

    def machines(self) -> list[int]:
        """Processes of machines with jobs in them."""
        pids = []
        for name in os.listdir("/proc"):
            try:
                where = Path(f"/proc/{name}/cwd").readlink()
                if "qemu" in Path(f"/proc/{name}/comm").read_text() and any(
                    where.is_relative_to(home.root) for home in self.homes
                ):
                    pids.append(int(name))
            except OSError:
                continue
        return pids

    def left(self) -> list[str]:
        left = [f"machine {pid}" for pid in self.machines()]
        for home in self.homes:
            for pattern in (
                "commands/under-way/*",
                "claims/*",
                "owners/*/machines/*",
                "machines/*",
            ):
                left += map(str, home.root.glob(pattern))
        return left

    def clear(self) -> None:
        super().clear()
        self.wait_for("no machine and nothing of one", lambda: not self.left())
        for user in self.users:
            for path in user.directory.iterdir():
                path.unlink()


def submitting(etc: Path) -> str:
    script = TEMPLATE.replace("@ENCAMP_RULES@", str(etc / "encamp_rules.lua"))
    return script.replace("@ENCAMP_SITE_SCRIPT@", "")


@contextmanager
def a_camp(
    images: Home,
    *,
    users: int = 1,
    settings: str = "",
    rules: tuple[Rule, ...] = (),
    **options: Any,
) -> Iterator[Camp]:
    with private_cluster(users=users, script=submitting, **options) as cluster:
        camp = Camp(cluster)
        camp.prepare(images, settings, rules)
        for at in range(len(camp.site.nodes)):
            camp.start_agent(at)
        try:
            yield camp
        finally:
            for agent in camp.agents:
                agent.stop()
            for pid in camp.machines():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
