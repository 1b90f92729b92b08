"""What the daemons of a private Slurm site are told: slurm.conf and the files beside it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec

GROUPS = Path("/sys/fs/cgroup")
LOOPBACK = "127.0.0.1"
PORTS = range(10240, 32000, 64)
"""First ports that a site may take: below those that the kernel gives to others."""

AT_ONCE = "batch_sched_delay=0,sched_min_interval=1000,sched_interval=1,bf_interval=1"
"""Jobs are looked at as soon as they come."""


class SiteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How large a private site is, and which of Slurm's hooks it uses."""

    nodes: tuple[str, ...] = ("n1", "n2")
    cpus: int = 2
    memory: int = 2000
    """MiB of each node."""
    partitions: tuple[str, ...] = ("main",)
    """Each with all nodes; the first is the default one."""
    features: str = ""
    share_memory: bool = False
    """Is memory given out as processors are?"""
    control_groups: bool = False
    """Are jobs held together by control groups, and measured?"""
    accounting: bool = False
    """Is there slurmdbd, with a database, for `sacct` and `sreport`?"""
    job_submit: str = ""
    """The text of job_submit.lua; empty: no such hook."""
    plugins: str = ""
    """The lines of plugstack.conf."""
    address: str = LOOPBACK
    """Where the controller is found. Another one than the loopback's is for nodes that are
    machines, which join by themselves."""
    lines: tuple[str, ...] = ()
    """Further lines of slurm.conf, which come last."""


def bus_port(first: int) -> int:
    """The last port of a site's row, which the site leaves to a bus."""
    return first + PORTS.step - 1


def accounting_port(first: int) -> int:
    """Where slurmdbd listens: the last port but one, since nodes' ports follow the first."""
    return first + PORTS.step - 2


def slurm_conf(directory: Path, port: int, options: SiteOptions) -> str:
    """Everything is reached by the loopback interface alone; jobs begin as soon as they can."""
    host = socket.gethostname()
    resources = "CR_CPU_Memory" if options.share_memory else "CR_CPU"
    tracking = "proctrack/cgroup" if options.control_groups else "proctrack/linuxproc"
    gathering = "jobacct_gather/cgroup" if options.control_groups else "jobacct_gather/none"
    names = ",".join(options.nodes) if options.address == LOOPBACK else "ALL"
    lines = [
        "ClusterName=encamp",
        f"SlurmctldHost={host}({options.address})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge/socket",
        "CredType=cred/munge",
        f"SlurmctldPort={port}",
        f"SlurmdPort={port + 1}",
        *(
            ["CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"]
            if options.address == LOOPBACK
            else ["SlurmctldParameters=enable_configless", "MaxNodeCount=64", "TreeWidth=65533"]
        ),
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool/%n",
        f"SlurmctldPidFile={directory}/run/slurmctld.pid",
        f"SlurmdPidFile={directory}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={directory}/log/slurmctld",
        f"SlurmdLogFile={directory}/log/slurmd.%n",
        f"PlugStackConfig={directory}/etc/plugstack.conf",
        f"ProctrackType={tracking}",
        "TaskPlugin=task/none",
        # Nodes may claim more than this machine has: it is all of them.
        "SlurmdParameters=config_overrides",
        f"JobAcctGatherType={gathering}",
        "JobAcctGatherFrequency=1",
        *(
            [
                "AccountingStorageType=accounting_storage/slurmdbd",
                f"AccountingStorageHost={LOOPBACK}",
                f"AccountingStoragePort={accounting_port(port)}",
                # With munge a password is the path of munge's socket.
                f"AccountingStoragePass={directory}/munge/socket",
            ]
            if options.accounting
            else ["AccountingStorageType=accounting_storage/none"]
        ),
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={directory}/log/completed",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "SelectType=select/cons_tres",
        f"SelectTypeParameters={resources}",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={AT_ONCE}",
        "DebugFlags=NO_CONF_HASH",
        "ReturnToService=2",
        "SlurmdTimeout=120",
        "KillWait=5",
        "MinJobAge=300",
        *(["JobSubmitPlugins=lua"] if options.job_submit else []),
        *options.lines,
    ]
    for number, name in enumerate(options.nodes):
        features = f" Feature={options.features}" if options.features else ""
        lines.append(
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port + 2 + number} "
            f"CPUs={options.cpus} RealMemory={options.memory}{features} State=UNKNOWN"
        )
    for number, partition in enumerate(options.partitions):
        default = "YES" if number == 0 else "NO"
        lines.append(
            f"PartitionName={partition} Nodes={names} Default={default} MaxTime=INFINITE State=UP"
        )
    return "\n".join(lines) + "\n"


def hosts_file(nodes: Sequence[str], address: str = LOOPBACK) -> str:
    """The nodes are all on this machine."""
    return f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n" + "".join(
        f"127.0.0.1 {node}\n" for node in nodes
    )


def control_group_conf() -> str:
    """Which generation of control groups the machine has is for Slurm to find out."""
    return f"CgroupMountpoint={GROUPS}\nConstrainCores=no\nConstrainRAMSpace=no\n"
