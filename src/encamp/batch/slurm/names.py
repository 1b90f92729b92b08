"""Which environment a job in Slurm's queue wants: what job_submit.lua has noted, what its user has
written, or what the site's rules give it."""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Sequence

from encamp.batch.slurm.queue import Entry
from encamp.model.batch import ENVIRONMENT, Rule

NOTED = re.compile(rf"(?:^|;\s*)env=({ENVIRONMENT})(?=;|$)")
"""In the administrators' comment on a job."""
ASKED = re.compile(rf"(?:^|[\s,;])env:({ENVIRONMENT})(?=[\s,;]|$)")
"""In a user's."""
FEATURE = re.compile(ENVIRONMENT)
ONCE = "it may begin only once"
"""In the administrators' comment on a job that was not to be queued again, and had to be."""
RETURNS = re.compile(r"; given back (\d+) times?")
"""There, too: other reasons for which it was begun again are no fault of its machines'."""
LEFT_ALONE = "none"


def noted(entry: Entry) -> str:
    """The one that it is sure to run in; empty: it will run as it is."""
    found = NOTED.search(entry.admin_comment)
    return found[1] if found else ""


def may_begin_again(entry: Entry) -> bool:
    return entry.requeue and ONCE not in entry.admin_comment


def returns_of(entry: Entry) -> int:
    """How often it was given back."""
    found = RETURNS.search(entry.admin_comment)
    return int(found[1]) if found else 0


class People:
    """Who is who: each is looked up once, for the directory may be far away."""

    def __init__(self) -> None:
        self._users: dict[int, str] = {}
        self._groups: dict[int, str] = {}

    def user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def group(self, gid: int) -> str:
        if gid not in self._groups:
            try:
                self._groups[gid] = grp.getgrgid(gid).gr_name
            except KeyError:
                self._groups[gid] = str(gid)
        return self._groups[gid]


def wanted(entry: Entry, rules: Sequence[Rule], people: People) -> tuple[str, ...]:
    """Those that it waits for. Features may be names of environments whose machines are nodes."""
    if name := noted(entry):
        return (name,)
    if asked := ASKED.search(entry.comment):
        return () if asked[1] == LEFT_ALONE else (asked[1],)
    features = re.split(r"[&,|\[\]()*]+", entry.features)
    if names := tuple(dict.fromkeys(name for name in features if FEATURE.fullmatch(name))):
        return names
    for rule in rules:
        if fits(rule, entry, people):
            return (rule.environment,) if rule.environment else ()
    return ()


def fits(rule: Rule, entry: Entry, people: People) -> bool:
    return (
        (not rule.queue or rule.queue in entry.queue.split(","))
        and (not rule.account or rule.account.lower() == entry.account.lower())
        and (not rule.user or rule.user == people.user(entry.uid))
        and (not rule.group or rule.group == people.group(entry.gid))
    )
