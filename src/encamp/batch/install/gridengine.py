"""What is changed for Grid Engine, by its documented hooks alone: a complex that jobs name their
environment with, the script that looks at every job that is submitted, and what queues begin jobs
with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from encamp.batch.gridengine.answers import FOR_NODES
from encamp.batch.install import objects
from encamp.batch.install.changes import Change, Installed, Object, Plan
from encamp.batch.install.gridengine_cell import CALENDAR, Cell, GridEngineWanted, changed
from encamp.batch.install.gridengine_queues import STARTER_METHOD, not_offered, queue_changes
from encamp.batch.install.gridengine_rules import rules_text
from encamp.batch.install.lines import Look
from encamp.batch.install.masters import left_to_shadows, refuse_unseen
from encamp.batch.install.wanted import (
    directories,
    first_descriptions,
    own_file,
    same_descriptions,
    settings_of,
    shipped,
)
from encamp.model.errors import Code, EncampError

COMPLEXES = ("env env RESTRING != YES NO NONE 0", "bait bait RESTRING == NO NO NONE 0")
"""What jobs name their environment by; and where a host that is closed says why."""
FORMER = ("env env RESTRING == YES NO NONE 0",)
"""How we have described them before."""
NODE_COMPLEX = f"{FOR_NODES} {FOR_NODES} RESTRING == FORCED NO NONE 0"
"""What keeps jobs from worker nodes that are not for them."""
CLOSED = "year NONE\nweek mon-sun=off"
"""What the calendar says that a closed host's queues go by."""
JSV, RULES = "gridengine-jsv", "gridengine-rules"
SHIPPED_JSV = "gridengine/jsv.bash"
JSV_URL = "jsv_url"
MODIFIABLE = "jsv_allowed_mod"
"""What users may change of their jobs where jobs are verified:"""
NEEDED = ("a", "ac", "h")
"""what agents change, too, of those that go back into the queue;"""
NOT_VERIFIED = (
    *("a", "ac", "ar", "A", "binding", "c_interval", "c_occasion", "ckpt", "cwd", "dl", "e"),
    *("hold_jid", "hold_jid_ad", "h", "i", "j", "js", "m", "masterq", "notify", "M", "N", "o"),
    *("p", "pe_name", "pe_min", "q_soft", "R", "r", "S", "t", "w"),
)
"""and all that our verifier does not go by."""
GLOBAL = "global"
SITES_OWN = re.compile(r"(?:script:)?(/[^\s@]+)", re.IGNORECASE)
"""A verifier that can be called by ours."""


def plan(
    wanted: GridEngineWanted, look: Look, found: Cell | None, former: Installed | None = None
) -> Plan:
    """What is to be changed; nothing, if all is as it should be. `found`: None on a host that only
    runs jobs."""
    settings, made = settings_of(wanted, look)
    files = own_file(wanted.starter, shipped("encamp-starter"), look, mode=0o755)
    if made is not None:
        files.append(made)
    changes: list[Change] = []
    if found is not None:
        if not wanted.shared:
            refuse_unseen(found.masters, wanted.prefix)
        rules = f"{wanted.prefix}/{RULES}"
        verifier, own = _verifier(wanted, found, former)
        text = rules_text(settings, wanted.nodes, wanted.descriptions, wanted.other_nodes)
        files += first_descriptions(wanted, settings, look)
        files += own_file(rules, text.encode(), look)
        script = jsv_text(rules, own)
        files += own_file(f"{wanted.prefix}/{JSV}", script, look, mode=0o755, watched=True)
        changes += [*_complexes(wanted, found), *_calendar(wanted, found)]
        changes += [*_hosts(wanted, found), *_modifiable(wanted, found, former)]
        changes += [*verifier, *queue_changes(wanted, found, former)]
    above: list[Change] = list(directories([file.path for file in files]))
    return Plan(
        system=wanted.system,
        changes=(*above, *files, *changes),
        left=tuple(_left(wanted, found)),
        warnings=(
            *_warnings(wanted, found, changes),
            *_not_modifiable(found, changes),
            *not_offered(wanted, found, former),
            *_in_vain(changes),
        ),
    )


def jsv_text(rules: str, own: str = "") -> bytes:
    """The verifier of jobs, of which a site may have had one before."""
    template = shipped(SHIPPED_JSV).decode()
    return template.replace("@ENCAMP_RULES@", rules).replace("@ENCAMP_SITE_JSV@", own).encode()


def _complexes(wanted: GridEngineWanted, found: Cell) -> list[Object]:
    changes = []
    for line in (*COMPLEXES, *((NODE_COMPLEX,) if wanted.nodes else ())):
        name = line.split()[0]
        present = objects.complex_line(found.complexes, name)
        if present and present not in (line, *FORMER):
            raise EncampError(
                Code.WRONG_STATE,
                f"There is a complex '{name}' already, and it is another one: {present}",
                f"Encamp needs one of this name. Give the site's own another name, or make it"
                f" '{line}' with 'qconf -mc'.",
            )
        if present != line:
            changes.append(changed(wanted, objects.COMPLEX, name, "", before=present, after=line))
    return changes


def _calendar(wanted: GridEngineWanted, found: Cell) -> list[Object]:
    if found.calendar == CLOSED:
        return []
    if found.calendar:
        raise EncampError(
            Code.WRONG_STATE,
            f"There is a calendar '{CALENDAR}' already, and it is another one.",
            f"Look at it with 'qconf -scal {CALENDAR}', and give it another name.",
        )
    return [changed(wanted, objects.CALENDAR, CALENDAR, "", before="", after=CLOSED)]


def _hosts(wanted: GridEngineWanted, found: Cell) -> list[Object]:
    """An agent closes and opens its own host, and changes jobs that it gives back."""
    lists = ((objects.ADMINISTRATIVE, found.administrative), (objects.SUBMIT, found.submit))
    return [
        changed(wanted, sort, host, "", before="", after=host)
        for sort, present in lists
        for host in found.hosts
        if host not in present
    ]


def _verifier(
    wanted: GridEngineWanted, found: Cell, former: Installed | None
) -> tuple[list[Object], str]:
    """The change that has ours called; and the site's own, which ours calls."""
    url = f"script:{wanted.prefix}/{JSV}"
    present = found.configuration.get(JSV_URL, "")
    if present == url:
        changes = former.changes if former else ()
        before = [
            each.before
            for each in changes
            if isinstance(each, Object) and each.attribute == JSV_URL
        ]
        own = SITES_OWN.fullmatch(before[0]) if before else None
        return [], own[1] if own else ""
    own = SITES_OWN.fullmatch(present)
    if own is None and present.lower() not in ("", "none"):
        raise EncampError(
            Code.WRONG_STATE,
            f"The cell has a job submission verifier that cannot be called by another one:"
            f" {JSV_URL} {present}",
            f"Only scripts can. Have it call {wanted.prefix}/{JSV}, or take it out with"
            " 'qconf -mconf' first.",
        )
    change = changed(
        wanted, objects.CONFIGURATION, GLOBAL, JSV_URL, before=present or "none", after=url
    )
    return [change], own[1] if own else ""


def _modifiable(wanted: GridEngineWanted, found: Cell, former: Installed | None) -> list[Object]:
    """Without a verifier users may change everything of their jobs that wait. What an administrator
    has made of our list since is left."""
    is_verified = found.configuration.get(JSV_URL, "").lower() not in ("", "none")
    present = found.configuration.get(MODIFIABLE, "none")
    listed = _listed(found)
    missing = [name for name in (NEEDED if is_verified else NOT_VERIFIED) if name not in listed]
    was_ours = any(
        isinstance(each, Object) and each.attribute == MODIFIABLE
        for each in (former.changes if former else ())
    )
    if not missing or was_ours:
        return []
    after = ",".join([*listed, *missing])
    return [changed(wanted, objects.CONFIGURATION, GLOBAL, MODIFIABLE, before=present, after=after)]


def _listed(found: Cell) -> list[str]:
    present = found.configuration.get(MODIFIABLE, "none")
    return [] if present.lower() == "none" else re.split(r"[,\s]+", present)


def _not_modifiable(found: Cell | None, changes: Sequence[Change]) -> list[str]:
    missing = [name for name in NEEDED if found is not None and name not in _listed(found)]
    if not missing or any(
        isinstance(one, Object) and one.attribute == MODIFIABLE for one in changes
    ):
        return []
    names = ", ".join(missing)
    sentence = f"Agents cannot put the start of a lost job off, or hold it: add {names} to"
    return [f"{sentence} {MODIFIABLE} with 'qconf -mconf'."]


def _in_vain(changes: Sequence[Change]) -> list[str]:
    if not any(isinstance(change, Object) and change.before in FORMER for change in changes):
        return []
    sentence = (
        "Jobs with an environment that wait now have asked for it in a way that no host offers"
    )
    return [f"{sentence} any more: have them submitted anew ('qstat -r' shows them)."]


def _left(wanted: GridEngineWanted, found: Cell | None) -> list[str]:
    agent = "The agent of each host has to run, as root: 'encamp agent --alone', or that of a site."
    if found is None:
        return [agent]
    files = [f"{wanted.prefix}/{name}" for name in (JSV, RULES)]
    return [
        agent,
        same_descriptions(wanted),
        *([] if wanted.shared else left_to_shadows(found.masters, files)),
        "Nothing has to be started anew: Grid Engine takes its changes over at once.",
        "Jobs that were submitted before, and name no environment, run as they would have.",
    ]


def _warnings(wanted: GridEngineWanted, found: Cell | None, changes: Sequence[Change]) -> list[str]:
    """A queue's jobs fail on hosts where what begins them is missing, whether they name an
    environment or not."""
    if found is None or not any(
        isinstance(change, Object) and change.attribute == STARTER_METHOD for change in changes
    ):
        return []
    hosts = f"{', '.join(found.hosts[:5])}{' and so on' if len(found.hosts) > 5 else ''}"
    sentence = (
        f"No job begins on a host without {wanted.starter} from now on. On each of them ({hosts}),"
        " run 'encamp batch install gridengine --node' first."
    )
    return [sentence]
