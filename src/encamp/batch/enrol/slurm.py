"""Slurm's dynamic nodes: machines that run slurmd, get its configuration from the controller, and
are known to it from when they speak up until they are deleted.

Slurm may also have a node written down that only exists while it is needed (State=CLOUD): then it
says itself when its machine is to be made and ended, and the node stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from encamp.batch.enrol.accounts import accounts, joining
from encamp.batch.enrol.slurm_conf import SlurmConf
from encamp.batch.enrol.workers import Seen, Workers, listens, not_offered, refused, taken
from encamp.batch.install.recording import all_installed
from encamp.batch.install.wanted import PREFIX, STARTER, starters_of
from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.calls import CONF, Calls
from encamp.batch.slurm.sending import Sending
from encamp.describe.environments import environments_that_enrol
from encamp.model.batch import BatchSettings
from encamp.model.environment import Context, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine
from encamp.model.recipe import AddedFile
from encamp.model.size import MIB

OFFERS = "encamp-offers-"
"""Begins the names of nodes that are never there."""
KEY = "/etc/munge/munge.key"
UNKNOWN = re.compile(r"(?i)invalid node name|node .* not found")
BUSY = re.compile(r"(?i)busy|in use")
DOWN = frozenset({"DOWN", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "POWERED_DOWN", "POWERING_UP"})
POWER_DOWN = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"})
AT_WORK = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
"""Jobs that are at a node in any way, also those that are just being ended there."""


class SlurmWorkers(Workers):
    system: ClassVar[str] = "slurm"

    def __init__(self, settings: BatchSettings) -> None:
        super().__init__(settings)
        self._conf = self.setting("conf", CONF)
        self._call = Calls(conf=self._conf, commands=self.setting("commands", ""))

    def context(self, machine: Machine, environment: Environment) -> Context:
        assert environment.enrol is not None
        conf = SlurmConf.read(Path(self._conf))
        features = ",".join(dict.fromkeys((environment.name, *environment.enrol.features)))
        state = self._states([machine.name]).get(machine.name, {})
        words = {
            "NODE": machine.name,
            "CONTROLLERS": self.setting("controller", conf.controllers),
            "PROCESSORS": str(machine.size.cpus),
            "FEATURES": features,
            # What stands in the controller's own files must not be described once more.
            "WRITTEN_DOWN": "yes" if state and "DYNAMIC_NORM" not in state["State"] else "",
            "MUNGE_SOCKET": conf.munge_socket,
            "PLACES": " ".join(conf.places(machine.name)),
            "LOG": conf.log(machine.name),
            "STARTERS": " ".join(self._starters()),
            "ENVIRONMENT": environment.name,
            "CONTROL_GROUPS": "2" if conf.second_control_groups else "1",
        }
        key = AddedFile(path=KEY, source=self.setting("munge_key", KEY), mode=0o400)
        return Context(files=(key, *accounts()), run=(joining("join-slurm.sh", words),))

    def _starters(self) -> list[str]:
        """Where jobs for baits look for it."""
        paths = [self.setting("starter", f"{PREFIX}/{STARTER}")]
        for installed in all_installed():
            paths += starters_of(installed)
        return list(dict.fromkeys(paths))

    def check(self, name: str, address: str | None) -> None:
        described = self._states([name]).get(name)
        if described is None:
            return
        state = _parts(described["State"])
        if "DYNAMIC_NORM" not in state and "CLOUD" not in state:
            raise taken(name, "Slurm", "it is a host of the site's, and no machine's")
        if state & (DOWN | POWER_DOWN) or address is None:
            return
        # Slurm believes for minutes that a machine is there that was killed.
        if described.get("NodeAddr") == address:
            answers = listens(address, SlurmConf.read(Path(self._conf)).port)
            if answers is False or (answers is None and not self._jobs(name)):
                return
        raise taken(name, "Slurm", f"it answers, at {described.get('NodeAddr', 'its address')}")

    def register(self, machine: Machine, environment: Environment) -> None:
        """It makes itself known. One of that name that has not gone is nobody's any more, unless
        Slurm is waiting for it."""
        state = self._states([machine.name]).get(machine.name)
        if state is not None and "CLOUD" not in state["State"]:
            self.lost(machine.name)

    def offer(self, environment: Environment) -> None:
        """Slurm refuses jobs that ask for a feature which no node has. One that is never there
        (State=FUTURE) is enough; no job is ever sent to it. What was offered before may have been
        another size."""
        size, name = environment.size, f"{OFFERS}{environment.name}"
        words = [f"nodename={name}", f"CPUs={size.cpus}", f"RealMemory={usable(size.memory)}"]
        enrolment = environment.enrol
        more = enrolment.features if enrolment is not None else ()
        features = ",".join(dict.fromkeys((environment.name, *more)))
        words += ["State=FUTURE", f"Feature={features}"]
        purpose = f"offering environment {environment.name}"
        with suppress(EncampError):  # There may be none.
            self._call("scontrol", "delete", f"nodename={name}", purpose=purpose)
        self._call("scontrol", "create", *words, purpose=purpose)

    def offered(self) -> list[str]:
        said = self._call(
            *("scontrol", "-a", "--future", "show", "node", "-o"),
            purpose="asking Slurm what it is offered",
        )
        return sorted(re.findall(rf"^NodeName={OFFERS}(\S+)", said, re.MULTILINE))

    def withdraw(self, name: str) -> None:
        if name not in self.offered():
            raise not_offered(name)
        self._call(
            *("scontrol", "delete", f"nodename={OFFERS}{name}"), purpose=f"withdrawing {name}"
        )

    def look(self, nodes: Collection[str]) -> dict[str, Seen]:
        return {
            name: Seen(
                up=not _parts(described["State"]) & DOWN,
                jobs=self._jobs(name),
                closed=_is_closed(_parts(described["State"])),
                ended={"CLOUD", "POWERED_DOWN"} <= _parts(described["State"]),
                busy=_time(described.get("LastBusyTime", "")),
            )
            for name, described in self._states(nodes).items()
        }

    def remark(self, node: str) -> str:
        described = self._all_states()
        own = _list(described.get(node, {}), "Partitions")
        kinds = self._kinds()
        mixed = {
            partition
            for words in described.values()
            if not kinds & _list(words, "AvailableFeatures")
            for partition in own & _list(words, "Partitions")
        }
        if not mixed or self.settings.bait_feature:
            return ""
        return (
            f"Slurm's partition {' and '.join(sorted(mixed))} has other hosts, too: jobs that are"
            f" not for node {node} may be sent to it. 'bait_feature' in batch.yaml keeps those for"
            " baits away, and a NodeSet all of them."
        )

    def _kinds(self) -> frozenset[str]:
        return frozenset(one.name for one in environments_that_enrol(self.system))

    def send_on(self, nodes: Mapping[str, str]) -> None:
        kinds = self._kinds() | {*nodes.values()}
        offered = {
            name: kinds & _list(words, "AvailableFeatures")
            for name, words in self._all_states().items()
        }
        good = {name: offered[name] | {nodes[name]} for name in nodes if name in offered}
        avoided = [name for name in offered if offered[name] or name in nodes]
        if good:
            Sending(Slurm(self.settings), self._call).send_on(good, avoided, offered)

    def _states(self, nodes: Collection[str]) -> dict[str, dict[str, str]]:
        """What Slurm says of these; of those that it knows."""
        known = self._all_states()
        return {name: known[name] for name in nodes if name in known}

    def _all_states(self) -> dict[str, dict[str, str]]:
        said = self._call(
            *("scontrol", "-a", "show", "node", "-o"), purpose="asking Slurm for its nodes"
        )
        found = {}
        for line in said.splitlines():
            words = dict(re.findall(r"(\w+)=(\S*)", line.partition(" OS=")[0]))
            words |= dict(re.findall(r" (State|LastBusyTime|Partitions)=(\S+)", line))
            if "NodeName" in words:
                found[words["NodeName"]] = words
        return found

    def _jobs(self, node: str) -> int:
        said = self._call(
            *("squeue", "-h", "-a", "-w", node, "-o", "%A", "-t", AT_WORK),
            purpose=f"asking Slurm for the jobs of node {node}",
        )
        return len(said.split())

    def close(self, node: str, reason: str) -> None:
        state = self._cloud(node)
        if state and any("POWER" in part for part in state):
            return  # Slurm itself is about to have it end.
        self._update(node, "power_down_asap" if state else "drain", reason)

    def _cloud(self, node: str) -> set[str]:
        """The state of a node that Slurm keeps whether there is a machine or not."""
        described = self._states([node]).get(node)
        state = _parts(described["State"]) if described else set()
        return state if "CLOUD" in state else set()

    def _update(self, node: str, state: str, reason: str) -> None:
        self._call(
            *("scontrol", "update", f"nodename={node}", f"state={state}", f"reason={reason}"),
            purpose=f"having node {node} be {state}",
        )

    def remove(self, node: str) -> None:
        if self._cloud(node):
            self.close(node, "encamp: its machine ends")
            # Asked after it was closed: nothing can come meanwhile.
            if self._jobs(node):
                raise refused(node, "it has a job")
            return
        try:
            self._call("scontrol", "delete", f"nodename={node}", purpose=f"removing node {node}")
        except EncampError as error:
            said = f"{error.sentence} {error.detail}"
            if BUSY.search(said):
                raise refused(node, "it has a job") from error
            if not UNKNOWN.search(said):
                raise

    def lost(self, node: str) -> None:
        stays = self._cloud(node)
        try:
            self._update(node, "down", "encamp: its machine is gone")
        except EncampError as error:
            if UNKNOWN.search(f"{error.sentence} {error.detail}"):
                return
            raise
        if stays:
            self._update(node, "power_down_force", "encamp: its machine is gone")
        else:
            self.remove(node)

    def not_coming(self, node: str) -> None:
        """As long as Slurm waits for it, nobody else's machine is that node."""
        if "POWERING_UP" in self._cloud(node):
            self.lost(node)

    def environment_of(self, node: str, known: Collection[str]) -> str:
        """Which of these environments a node is to be of, by what Slurm says that it offers."""
        described = self._states([node]).get(node, {})
        features = described.get("AvailableFeatures", "").split(",")
        found = [feature for feature in features if feature in known]
        if not found:
            raise EncampError(
                Code.CONFIGURATION,
                f"Node {node} offers no environment that machines of this site could have.",
                "Name one among its features: NodeName=... State=CLOUD Feature=ENVIRONMENT.",
            )
        return found[0]


def usable(memory: int) -> int:
    """MiB that a node is sure to tell Slurm of: its kernel keeps the rest to itself. A job that
    asked for more would have one node after the other come for nothing."""
    return max(1, memory * 96 // 100 // MIB - 48)


def _list(words: Mapping[str, str], name: str) -> frozenset[str]:
    return frozenset(words.get(name, "").split(",")) - {"", "(null)"}


def _parts(state: str) -> set[str]:
    """A state such as `IDLE*+DRAIN`: an asterisk says that the node does not answer."""
    parts = {part for part in re.split(r"[+*]", state.upper()) if part}
    return parts | {"NOT_RESPONDING"} if "*" in state else parts


def _is_closed(state: set[str]) -> bool:
    """A node that stays without its machine is sent no job when that is to end, either."""
    return "DRAIN" in state or ("CLOUD" in state and bool(state & POWER_DOWN))


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() else None
