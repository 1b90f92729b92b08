"""What belongs to the host that built a tree, or differs from build to build, goes."""

from __future__ import annotations

import fnmatch
import re
import tarfile
from dataclasses import replace

from encamp.images.tree import ROOT, Entries, Entry

REMOVED = (
    "etc/.pwd.lock",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/ssh/ssh_host_*_key",  # every machine of the image would have the same
    "etc/ssh/ssh_host_*_key.pub",
    "root/.bash_history",
    "root/.wget-hsts",
    "root/.cache/pip/*",
    "run/*",
    "tmp/*",
    "var/cache/apt/*.bin",
    "var/cache/apt/archives/*.deb",
    "var/cache/apt/archives/partial/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*_*",
    "var/lib/dbus/machine-id",
    "var/lib/dpkg/*-old",
    "var/lib/systemd/random-seed",
    "var/tmp/*",
)
"""Paths; what is below one that goes, goes too."""

MOUNTED = ("dev", "proc", "sys")
"""Where something else was, while commands ran; a machine has its own."""
PARTIAL = ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial")
"""apt gives these to an account of its own if it gets so far; the next one does so again."""
LOGS = "var/log/"
EMPTIED = ("etc/machine-id",)
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)

PATTERN = re.compile("|".join(fnmatch.translate(pattern) for pattern in REMOVED))


def tidied(entries: Entries) -> Entries:
    kept: Entries = {}
    for path, entry in entries.items():
        if goes(path, entry):
            continue
        if path in EMPTIED:
            entry = emptied(entry)
        if path in PARTIAL:
            entry = replace(entry, mode=0o700, uid=0, gid=0)
        kept[path] = ROOT if path in MOUNTED else entry
    return kept


def goes(path: str, entry: Entry) -> bool:
    if entry.type in DEVICES or (path.partition("/")[0] in MOUNTED and "/" in path):
        return True
    if path.startswith(LOGS) and entry.type == tarfile.REGTYPE:
        return True
    return PATTERN.match(path) is not None


def emptied(entry: Entry) -> Entry:
    return replace(entry, size=0, sha256=EMPTY, source=None, offset=0)


EMPTY = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
