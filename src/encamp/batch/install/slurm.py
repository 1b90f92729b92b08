"""What is changed for Slurm, by its documented hooks alone: a line of slurm.conf, the script that
is called for every job that is submitted, and, if wished for, a plug-in that adds an option."""

from __future__ import annotations

from encamp.batch.install.changes import Change, Edit, File, Installed, Plan
from encamp.batch.install.lines import Look, appended, replaced, setting
from encamp.batch.install.slurm_rules import rules_text
from encamp.batch.install.wanted import (
    LONGEST_NAME,
    LONGEST_PATH,
    PREFIX,
    Wanted,
    directories,
    first_descriptions,
    is_ours,
    own_file,
    same_descriptions,
    settings_of,
    shipped,
)
from encamp.batch.system import AROUND
from encamp.model.errors import Code, EncampError
from encamp.model.wanted import LEAST_MEMORY

CONF = "/etc/slurm/slurm.conf"
SCRIPT, SITES_SCRIPT = "job_submit.lua", "job_submit_site.lua"
RULES = "encamp_rules.lua"
PLUGINS, PLUGIN = "JobSubmitPlugins", "lua"
PLUG_STACK, PLUG_STACK_FILE = "PlugStackConfig", "plugstack.conf"
GROUPS_CONF, LIMITS = "cgroup.conf", "ConstrainRAMSpace"
SPANK = "encamp_spank.so"
NO_CONF = (
    "Name the file of your Slurm with --conf or SLURM_CONF. On a node that gets its configuration"
    " from the controller, use --node."
)
NO_PBS = " PBS' commands need Slurm behind them, as slurm-wlm-torque's have."
NO_SPANK = (
    "It is compiled for the Slurm of this host, with the package libslurm-dev: 'make' in a checkout"
    " does so, or installing Encamp again."
)
MARK = b"Encamp's part of Slurm's job_submit/lua"
"""Stands in a script that is Encamp's own, however it came there."""


class SlurmWanted(Wanted, frozen=True, kw_only=True):
    conf: str = CONF
    spank: bool = False
    plugin: bool = True
    """Is Slurm's part there that calls the script?"""

    @property
    def directory(self) -> str:
        return self.conf.rpartition("/")[0]


def plan(wanted: SlurmWanted, look: Look, former: Installed | None = None) -> Plan:
    """What is to be changed; nothing, if all is as it should be."""
    if look(wanted.conf) is None and (wanted.spank or not wanted.node):
        raise EncampError(
            Code.INPUT_MISSING,
            f"There is no {wanted.conf}.",
            NO_CONF + (NO_PBS if wanted.system == "pbs" else ""),
        )
    settings, made = settings_of(wanted, look)
    files = own_file(wanted.starter, shipped("encamp-starter"), look, mode=0o755)
    if wanted.spank:
        files += own_file(f"{wanted.prefix}/{SPANK}", shipped(SPANK, NO_SPANK), look)
    if made is not None:
        files.append(made)
    changes: list[Change] = []
    if not wanted.node:
        rules = f"{wanted.directory}/{RULES}"
        spank = wanted.spank or _is_plugged(wanted, look)
        text = rules_text(
            settings,
            wanted.starter,
            spank=spank,
            nodes=wanted.nodes,
            other_nodes=wanted.other_nodes,
            least_memory=_least_memory(wanted, look),
            descriptions=wanted.descriptions,
        )
        files += first_descriptions(wanted, settings, look)
        files += own_file(rules, text.encode(), look)
        files += _script(wanted, look, former)
        changes += _plugin(wanted, look)
    if wanted.spank:
        changes += _plug_stack(wanted, look)
    above: list[Change] = list(directories([file.path for file in files]))
    return Plan(
        system=wanted.system,
        changes=(*above, *files, *changes),
        left=tuple(_left(wanted, settings.bait_feature)),
        warnings=tuple(_warnings(wanted)),
    )


def _least_memory(wanted: SlurmWanted, look: Look) -> int:
    """Only where control groups limit a job's memory is that of the processes around the machine
    taken from what the job is granted."""
    limits = setting(f"{wanted.directory}/{GROUPS_CONF}", LIMITS, look)
    return LEAST_MEMORY + (AROUND if limits and limits.value.lower() == "yes" else 0)


def script_text(rules: str, site_script: str = "") -> bytes:
    """The script for every job that is submitted, of which a site may have had one before."""
    template = shipped("slurm/job_submit.lua").decode()
    return (
        template.replace("@ENCAMP_RULES@", rules)
        .replace("@ENCAMP_SITE_SCRIPT@", site_script)
        .encode()
    )


def _script(wanted: SlurmWanted, look: Look, former: Installed | None) -> list[File]:
    path, aside = f"{wanted.directory}/{SCRIPT}", f"{wanted.directory}/{SITES_SCRIPT}"
    rules = f"{wanted.directory}/{RULES}"
    present = look(path)
    ours = present is not None and (MARK in present or is_ours(former, path, present))
    if present is not None and not ours:
        if look(aside) is not None:
            raise EncampError(
                Code.WRONG_STATE,
                f"{aside} is there already, and {path} is not Encamp's.",
                f"Put what the site needs of both into {path}, and take the other away.",
            )
        return [File(path=path, after=script_text(rules, aside), aside=aside, watched=True)]
    content = script_text(rules, aside if look(aside) is not None else "")
    return own_file(path, content, look, watched=True)


def _plugin(wanted: SlurmWanted, look: Look) -> list[Change]:
    found = setting(wanted.conf, PLUGINS, look)
    if found is None:
        data = look(wanted.conf)
        line = f"{PLUGINS}={PLUGIN}"
        return [Edit(path=wanted.conf, before=data, after=appended(data, line), added=line)]
    names = [name.strip() for name in found.value.split(",") if name.strip()]
    if PLUGIN in [name.removeprefix("job_submit/") for name in names]:
        return []
    more = f",{PLUGIN}" if names else PLUGIN
    line = found.line[: found.end] + more + found.line[found.end :]
    return [_edit(found.path, found.line, line, look)]


def _plug_stack(wanted: SlurmWanted, look: Look) -> list[Change]:
    if _is_plugged(wanted, look):
        return []
    path, line = _plug(wanted, look)
    data = look(path)
    return [Edit(path=path, before=data, after=appended(data, line), added=line)]


def _is_plugged(wanted: SlurmWanted, look: Look) -> bool:
    """Also if the plug-in was wished for before, and is not mentioned now."""
    path, line = _plug(wanted, look)
    data = look(path)
    return data is not None and replaced(data, line, "") is not None


def _plug(wanted: SlurmWanted, look: Look) -> tuple[str, str]:
    """The file, and the line in it."""
    found = setting(wanted.conf, PLUG_STACK, look)
    path = found.value if found else f"{wanted.directory}/{PLUG_STACK_FILE}"
    return path, f"optional {wanted.prefix}/{SPANK} {wanted.starter} comment=yes"


def _edit(path: str, removed: str, added: str, look: Look) -> Edit:
    data = look(path)
    after = replaced(data or b"", removed, added)
    assert after is not None
    return Edit(path=path, before=data, after=after, removed=removed, added=added)


def _left(wanted: SlurmWanted, bait_feature: str) -> list[str]:
    variable = "" if wanted.conf == CONF else f"SLURM_CONF={wanted.conf} "
    agent = "the agent of each node has to run: 'encamp agent --alone', or that of a site"
    if wanted.node:
        return [f"{agent}, as root."]
    options = " --spank" if wanted.spank else ""
    options += "" if wanted.prefix == PREFIX else f" --prefix {wanted.prefix}"
    node = f"'encamp batch install {wanted.system} --node{options}'"
    again = (
        f"The controller reads its configuration again with '{variable}scontrol reconfigure'; jobs"
        " that wait or run are left alone."
    )
    told = [
        again,
        f"Where nodes have a slurm.conf of their own, it has to be the same as {wanted.conf}.",
        same_descriptions(wanted),
        f"On every node, as root: {node} puts the starter and batch.yaml there; and {agent}.",
    ]
    if bait_feature:
        told.append(
            f"The nodes with agents, and no others, need Feature={bait_feature} in {wanted.conf}:"
            " Slurm refuses jobs for machines as long as none has it."
        )
    if wanted.spank:
        told.append(
            "On hosts from which jobs are submitted, too: the option --vmenv is added there."
        )
    return told


def _warnings(wanted: SlurmWanted) -> list[str]:
    found = []
    if not wanted.plugin and not wanted.node:
        found.append(
            "Slurm's plug-in job_submit/lua was not found on this host, and a controller without it"
            " does not start any more. Debian has it in slurm-wlm-basic-plugins."
        )
    if len(wanted.starter) > LONGEST_PATH:
        most = LONGEST_PATH + LONGEST_NAME - len(wanted.starter)
        found.append(
            f"With the starter at {wanted.starter}, names of environments have {most} letters at"
            " most."
        )
    return found
