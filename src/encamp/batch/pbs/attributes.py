"""What `qstat -f` and `pbsnodes` print: records of `name = value` lines below a first line.

Users choose some of the values, and may write into them what looks like another line. So nothing
that is told twice is believed.
"""

from __future__ import annotations

import re

from encamp.model.errors import Code, EncampError

JOB = re.compile(r"Job Id:\s*(\S+)")
LINE = re.compile(r"\s+([A-Za-z_.]+) = (.*)")
HOLDER = re.compile(r"([^()\s]+)\((\d+)\)")
"""A user or a group, and its number."""


def one_job(said: str, id: str) -> dict[str, str]:
    """The attributes of the only job that is described."""
    lines = said.splitlines()
    heads = [match[1] for line in lines if (match := JOB.fullmatch(line.rstrip()))]
    if heads != [id]:
        raise unreadable(said)
    return attributes(lines)


def one_node(said: str, name: str) -> dict[str, str]:
    lines = [line for line in said.splitlines() if line.strip()]
    if [line for line in lines if not line[0].isspace()] != [name]:
        raise unreadable(said)
    return attributes(lines)


def attributes(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        if match := LINE.fullmatch(line):
            if match[1] in found:
                raise unreadable("\n".join(lines))
            found[match[1]] = match[2]
    return found


def number_of(holder: str) -> int:
    """Of `alice(1000)`."""
    match = HOLDER.fullmatch(holder)
    if match is None:
        raise unreadable(holder)
    return int(match[2])


def shares_of(text: str) -> dict[str, int]:
    """Processors on each host, of `n1/2+n2/1`."""
    found: dict[str, int] = {}
    for part in filter(None, text.split("+")):
        host, slash, count = part.rpartition("/")
        if not slash or not count.isdecimal():
            raise unreadable(text)
        found[host] = found.get(host, 0) + int(count)
    return found


def unreadable(said: str) -> EncampError:
    return EncampError(
        Code.PROTOCOL,
        "A PBS command has said what Encamp does not understand.",
        "Is it of another release?",
        detail=said[:2000],
    )
