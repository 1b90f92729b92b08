"""What this host's agent offers to do: its plug-ins, and the programs that are listed.

Plug-ins are other people's code, and descriptions take a parser. Both are read in a process of
their own, `python -m encamp.agent.commands.offers`, so that the agent stays small and whatever is
wrong with them cannot stop it.
"""

from __future__ import annotations

import os
import sys

import msgspec

from encamp.agent.plugins import installed, is_ours
from encamp.model.arguments import check_arguments
from encamp.model.command import CommandDefinition
from encamp.model.errors import Code, EncampError
from encamp.model.program import CommandSettings, ListedProgram
from encamp.model.property import Value

OURS_ONLY = "--ours-only"
"""Tells that process to leave other people's plug-ins alone."""
SAFE = "agent.ping"
"""All that is offered if nobody knows what the administrator would have allowed."""


class Offer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    definition: CommandDefinition
    plugin: str = ""
    """`module:function`, or"""
    program: ListedProgram | None = None
    claimed: bool = False
    """It uses up a claim of the same id."""

    def check(self, arguments: dict[str, Value]) -> dict[str, Value]:
        if self.program is not None:
            return self.program.check(arguments)
        return check_arguments(self.definition, arguments)


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    offers: dict[str, Offer] = {}
    withheld: tuple[str, ...] = ()
    """Names of commands that the host's administrator does not want."""
    at_once: int = 1
    trouble: str = ""
    """What is wrong with `commands.yaml`, if something is: then it counts for nothing."""
    broken: tuple[str, ...] = ()
    """What is wrong with plug-ins that are therefore not offered."""

    @property
    def definitions(self) -> tuple[CommandDefinition, ...]:
        return tuple(offer.definition for _, offer in sorted(self.offers.items()))

    def find(self, name: str) -> Offer:
        offer = self.offers.get(name)
        if offer is not None:
            return offer
        if self.trouble:
            raise EncampError(
                Code.CONFIGURATION, self.trouble, "Only agent.ping is taken until then."
            )
        if name in self.withheld:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"This host does not take the command '{name}'.",
                "Its administrator decides that, with 'accept' in commands.yaml.",
            )
        import difflib

        shown = name if len(name) <= 60 else f"{name[:60]}..."
        near = difflib.get_close_matches(name[:100], self.offers, n=1)
        meant = (
            f"Did you mean '{near[0]}'?" if near else "Its agent has no such plug-in or program."
        )
        raise EncampError(Code.USAGE, f"There is no command '{shown}' on this host.", meant)


def look(*, ours_only: bool = False) -> Offers:
    """Load all plug-ins and descriptions; that imports whatever is installed."""
    from encamp.describe.command_files import load_command_settings

    found, broken = plugins(ours_only=ours_only)
    try:
        settings = load_command_settings()
    except EncampError as error:
        first = (error.detail or str(error)).splitlines()[0]
        trouble = f"This host's list of commands cannot be used: {first}"
        settings, kept = CommandSettings(), {SAFE: found[SAFE]} if SAFE in found else {}
        return Offers(offers=kept, at_once=settings.at_once, trouble=trouble, broken=broken)
    for program in settings.programs:
        found[program.definition.name] = Offer(definition=program.definition, program=program)
    return Offers(
        offers={name: offer for name, offer in found.items() if settings.accepts(name)},
        withheld=tuple(sorted(name for name in found if not settings.accepts(name))),
        at_once=settings.at_once,
        broken=broken,
    )


def plugins(*, ours_only: bool = False) -> tuple[dict[str, Offer], tuple[str, ...]]:
    """All plug-ins that are installed, and what is wrong with those that cannot be used."""
    from encamp.agent.commands.plugin import GROUP, definition_of, settings_of, unusable

    found: dict[str, Offer] = {}
    entries, others = installed(GROUP)
    broken = [
        unusable(entry.name, f"another one has its name, and {entry.value} is left out.").sentence
        for entry in others
    ]
    for entry in entries.values():
        if ours_only and not is_ours(entry):
            continue
        try:
            try:
                function = entry.load()
            except BaseException as error:
                why = f"{entry.value} cannot be imported: {type(error).__name__}: {error}."
                raise unusable(entry.name, why) from error
            definition = definition_of(entry.name, function)
            settings = settings_of(function)
            if (settings.internal or settings.claimed) and not is_ours(entry):
                raise unusable(entry.name, "only Encamp's own can be internal.")
            found[entry.name] = Offer(
                definition=definition, plugin=entry.value, claimed=settings.claimed
            )
        except EncampError as error:
            broken.append(error.sentence)
    return found, tuple(broken)


def main() -> None:
    """Print what is offered; or what went wrong, and fail."""
    answer = os.dup(1)
    # What a plug-in prints while it is imported is not to be mistaken for the answer.
    silence = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with open(answer, "wb") as file:
        try:
            file.write(msgspec.json.encode(look(ours_only=OURS_ONLY in sys.argv)))
        except BaseException:
            import traceback

            file.write(traceback.format_exc().encode())
            file.flush()
            os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
