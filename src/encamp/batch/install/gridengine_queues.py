"""What is changed of Grid Engine's queues: what begins their jobs, and that jobs may ask for an
environment there."""

from __future__ import annotations

from encamp.batch.gridengine.answers import ANYWHERE
from encamp.batch.install import objects
from encamp.batch.install.changes import Installed, Object, digest
from encamp.batch.install.gridengine_cell import Cell, GridEngineWanted, changed
from encamp.batch.install.offers import OTHERS, with_offer
from encamp.model.errors import Code, EncampError

STARTER_METHOD, OFFERS = "starter_method", "complex_values"
ANYTHING = f"env={ANYWHERE}"
"""What queues offer whose hosts make machines."""


def queue_changes(wanted: GridEngineWanted, found: Cell, former: Installed | None) -> list[Object]:
    changes: list[Object] = []
    for name in wanted.queues or sorted(found.queues):
        queue = found.queues.get(name)
        if queue is None:
            raise EncampError(
                Code.INPUT_MISSING,
                f"There is no queue '{name}'.",
                f"There are: {', '.join(sorted(found.queues)) or 'none'}.",
            )
        changes += _offer(wanted, name, queue, former)
        present = queue.get(STARTER_METHOD, objects.NOTHING)
        after = _begun_by(wanted.starter, present)
        if after == present:
            continue
        if not after:
            raise EncampError(
                Code.WRONG_STATE,
                f"Queue '{name}' has a {STARTER_METHOD} of its own: {present}",
                "Choose other queues with --queue, or take it out with 'qconf -mq' first.",
            )
        changes.append(
            changed(wanted, objects.QUEUE, name, STARTER_METHOD, before=present, after=after)
        )
    return changes


def _begun_by(starter: str, present: str) -> str:
    """The starter, also for hosts that a queue names apart, as in `NONE,[@small=NONE]`; empty if
    something else begins jobs on any."""
    others = [(found[1], found[2]) for found in OTHERS.finditer(present)]
    values = {present.partition("[")[0].rstrip(", "), *(value for _, value in others)}
    if values == {starter}:
        return present
    if {value.upper() for value in values} != {objects.NOTHING}:
        return ""
    return ",".join([starter, *(f"[{hosts}={starter}]" for hosts, _ in others)])


def _offer(
    wanted: GridEngineWanted, name: str, queue: dict[str, str], former: Installed | None
) -> list[Object]:
    """What an administrator has made of our list since is left."""
    present = queue.get(OFFERS, objects.NOTHING)
    after = with_offer(present, ANYTHING)
    change = changed(wanted, objects.QUEUE, name, OFFERS, before=present, after=after)
    known = [each for each in (former.changes if former else ()) if each.key == change.key]
    is_changed = any(
        isinstance(each, Object) and present != each.before and digest(present) not in each.ours
        for each in known
    )
    return [] if after == present or is_changed else [change]


def not_offered(
    wanted: GridEngineWanted, found: Cell | None, former: Installed | None
) -> list[str]:
    said = []
    for name in () if found is None else wanted.queues or sorted(found.queues):
        queue = found.queues[name] if found is not None else {}
        after = with_offer(queue.get(OFFERS, objects.NOTHING), ANYTHING)
        if after != queue.get(OFFERS, objects.NOTHING) and not _offer(wanted, name, queue, former):
            said.append(
                f"What queue '{name}' offers was changed since, and is left: some of its hosts get"
                f" no job with an environment. To have them get some: qconf -rattr queue {OFFERS}"
                f" '{after}' {name}"
            )
    return said
