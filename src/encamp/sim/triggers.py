"""The triggers of a simulated site: which are at work under a policy, and whether they can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from encamp.core.kinds import schema_of
from encamp.describe.nodes import Mistakes
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import check_definitions
from encamp.model.errors import EncampError
from encamp.model.policy import Policy
from encamp.model.trigger import TriggerDefinition
from encamp.sim.properties import PROPERTIES, wanted
from encamp.sim.site import Compared, Sharing, SimulatedSite
from encamp.sim.workload import SimulatedJob
from encamp.sim.world import World


def watched(site: SimulatedSite, compared: Compared) -> tuple[TriggerDefinition, ...]:
    """Of those of one name the last counts. Where each environment is installed on its hosts, no
    machine could stand ready, and there are none."""
    if compared.sharing is Sharing.STATIC:
        return ()
    return with_others(site.triggers, compared.triggers)


def with_others(
    first: Iterable[TriggerDefinition], others: Iterable[TriggerDefinition]
) -> tuple[TriggerDefinition, ...]:
    return tuple({one.name: one for one in (*first, *others)}.values())


def check_triggers(world: World) -> None:
    """Raises EncampError, if they make no sense here: all mistakes at once, with their places."""
    if not world.triggers:
        return
    paths = {one.path for one in world.triggers}
    sources = {path: Source(path, Level.HERE, 0, "", path) for path in paths}
    facts = schema_of(PROPERTIES, world.groups)
    mistakes = Mistakes()
    check_definitions(world.triggers, sources, facts, world.commands, mistakes)
    if mistakes:
        error = mistakes.error()
        raise EncampError(
            error.code,
            error.sentence,
            f"Simulated hosts tell: {', '.join(sorted(facts.kinds['host'].facts))}.",
            detail=error.detail,
        )


def told(
    triggers: Iterable[TriggerDefinition], jobs: Sequence[SimulatedJob], policy: Policy
) -> tuple[str, ...]:
    """The moving properties of hosts that somebody speaks of."""
    texts = [passage.text for one in triggers for passage in (one.when, *one.do)]
    texts += {text for job in jobs for text in (job.requirements, job.rank)}
    return wanted([*texts, *policy.rank])
