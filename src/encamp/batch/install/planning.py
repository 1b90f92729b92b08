"""From what was asked for, and what is on this host, to a plan."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from encamp.batch.adapters import unknown
from encamp.batch.install import gridengine, recording, slurm
from encamp.batch.install.applying import look
from encamp.batch.install.changes import Plan
from encamp.batch.install.gridengine_cell import GridEngineWanted, cell
from encamp.batch.install.lines import setting
from encamp.batch.install.wanted import PREFIX, check_prefix
from encamp.describe.environments import environments_that_enrol
from encamp.describe.places import daemon_directory

SLURM_SYSTEMS = ("slurm", "pbs")
"""Batch systems whose jobs Slurm begins."""

SURROUNDINGS = (
    "SGE_ROOT",
    "SGE_CELL",
    "SGE_QMASTER_PORT",
    "SGE_EXECD_PORT",
    "SGE_CLUSTER_NAME",
    "SGE_ARCH",
)
NAMES = {"SGE_ROOT": "root", "SGE_CELL": "cell"}
"""What they are called in batch.yaml."""


PLUGIN_PLACES = (
    "/usr/lib/*/slurm*",
    "/usr/lib64/slurm*",
    "/usr/lib/slurm*",
    "/usr/local/lib/slurm*",
)
"""Where packages have Slurm's plug-ins."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asked to have set up."""

    system: str
    conf: str = ""
    """slurm.conf; empty: where SLURM_CONF says, or the package has it."""
    prefix: str = PREFIX
    queues: tuple[str, ...] = ()
    spank: bool = False
    node: bool = False
    shared: bool = False
    """Grid Engine: does its master see the prefix of this host?"""


def plan(asked: Asked) -> Plan:
    check_prefix(asked.prefix)
    former = recording.installed(asked.system)
    if asked.system in SLURM_SYSTEMS:
        conf = named(asked.conf or os.environ.get("SLURM_CONF") or slurm.CONF)
        return slurm.plan(
            slurm.SlurmWanted(
                system=asked.system,
                prefix=asked.prefix,
                configuration=daemon_directory(),
                programs={} if conf == slurm.CONF else {"conf": conf},
                node=asked.node,
                nodes=enrolling("slurm"),
                other_nodes=enrolling("gridengine"),
                conf=conf,
                spank=asked.spank,
                plugin=has_plugin(conf),
            ),
            look,
            former,
        )
    if asked.system != "gridengine":
        raise unknown(asked.system)
    surroundings = {name: os.environ[name] for name in SURROUNDINGS if os.environ.get(name)}
    programs = {NAMES[name]: value for name, value in surroundings.items() if name in NAMES}
    return gridengine.plan(
        GridEngineWanted(
            system=asked.system,
            prefix=asked.prefix,
            configuration=daemon_directory(),
            programs=programs,
            node=asked.node,
            nodes=enrolling(asked.system),
            other_nodes=enrolling("slurm"),
            queues=asked.queues,
            surroundings=surroundings,
            shared=asked.shared,
        ),
        look,
        None if asked.node else cell(surroundings),
        former,
    )


def named(conf: str) -> str:
    """A file by one name, whatever links lead to its directory; but not where the file itself may
    lead to: Slurm looks for others beside the name that it is given."""
    path = Path(conf).absolute()
    return str(path.parent.resolve() / path.name)


def enrolling(system: str) -> tuple[str, ...]:
    """The environments whose machines are worker nodes of a batch system."""
    return tuple(sorted(one.name for one in environments_that_enrol(system)))


def has_plugin(conf: str) -> bool:
    """Is Slurm's part there that calls scripts of a site?"""
    said = setting(conf, "PluginDir", look)
    places = said.value.split(":") if said else PLUGIN_PLACES
    return any(
        any(Path("/").glob(f"{place.lstrip('/')}/job_submit_lua.so")) for place in places if place
    )
