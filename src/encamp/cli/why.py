"""`encamp why`: what the manager has to say for itself."""

from __future__ import annotations

from collections import defaultdict

from encamp.cli.asking import asked_one
from encamp.cli.batch_why import NAME, check_number, explain_batch
from encamp.cli.tables import ago, clean, moment, show, some, table
from encamp.door.client import UnansweredError
from encamp.door.questions import AskWhy
from encamp.model.errors import Code, EncampError
from encamp.model.request import Explanation, HostReason

ONE_BY_ONE = 20
"""Hosts that are told each; of more, those with the same reason are told together."""


def explain(id: str, hosts: int, *, as_json: bool) -> None:
    found = _found(id, hosts)
    if as_json:
        from encamp.cli.machines import print_json

        print_json(found)
        return
    _print_facts(found)
    if found.hosts:
        print()
        if len(found.hosts) > ONE_BY_ONE:
            _print_grouped(found.hosts)
        else:
            _print_hosts(found.hosts)
    if found.history:
        print()
        for sentence in found.history:
            print(clean(sentence))


def _check_system(name: str) -> None:
    from encamp.batch.adapters import known, unknown

    if name not in known():
        raise unknown(name)


def _found(id: str, hosts: int) -> Explanation:
    named = NAME.fullmatch(id)
    if named is None:
        check_number(id)
        return asked_one(AskWhy(id=id, hosts=hosts), Explanation)
    of_batch = explain_batch(id)
    if named[1] and of_batch is None:
        _check_system(named[1])
    if named[1]:
        if of_batch is None:
            raise EncampError(
                Code.USAGE,
                f"Nobody knows of a job {id} that you may see.",
                "'encamp jobs --batch --all' lists those that came to hosts in the last week."
                " Without a manager each host knows its own.",
            )
        return of_batch
    try:
        found = asked_one(AskWhy(id=id, hosts=hosts), Explanation)
    except EncampError as error:
        # A number may also be the beginning of several ids of the site's own.
        if of_batch is None or not (isinstance(error, UnansweredError) or _is_unknown(error)):
            raise
        return of_batch
    if of_batch is None:
        return found
    raise EncampError(
        Code.USAGE,
        f"Both {of_batch.kind} {of_batch.id} and {found.kind} {found.id} are called '{id}'.",
        f"Write {of_batch.id}, or more of the other's id.",
    )


def _is_unknown(error: EncampError) -> bool:
    return error.code is Code.USAGE and not error.sentence.startswith("Several")


def _print_facts(found: Explanation) -> None:
    reason = found.reason
    since = f"{moment(reason.since)} ({ago(reason.since)} ago)" if reason.since else ""
    name = f" '{found.name}'" if found.name and found.name != found.id else ""
    facts = {
        found.kind: f"{found.id}{name}",
        "state": found.state,
        "because": reason.sentence,
        "since": since,
        "limit": reason.limit,
        "place in the queue": "" if found.position is None else str(found.position),
        "next": reason.next,
    }
    made = table("", "")
    made.show_header = False
    for key, value in facts.items():
        if value:
            made.add_row(key, value)
    show(made)


def _print_hosts(hosts: tuple[HostReason, ...]) -> None:
    ranked = any(host.rank for host in hosts)
    made = table("host", *(["rank"] if ranked else []), "why not")
    for host in hosts:
        rank = [", ".join(f"{value:g}" for value in host.rank)] if ranked else []
        made.add_row(host.host, *rank, _why_not(host))
    show(made)


def _print_grouped(hosts: tuple[HostReason, ...]) -> None:
    """By the reason's word: sentences differ in figures."""
    groups: defaultdict[str, list[HostReason]] = defaultdict(list)
    for host in hosts:
        groups[host.cause.value].append(host)
    made = table("hosts", "which", "why not, for example")
    made.columns[0].justify = "right"
    for members in sorted(groups.values(), key=len, reverse=True):
        names = [member.host for member in members]
        made.add_row(str(len(members)), some(names), _why_not(members[0]))
    show(made)


def _why_not(host: HostReason) -> str:
    if not host.cause.value:
        return host.sentence or "it could be chosen"
    return host.sentence or host.cause.value
