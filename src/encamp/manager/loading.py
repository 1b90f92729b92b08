"""Going by the site's files: how hosts are shared, environments, triggers. With a mistake in one of
them, what it said before stays."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from encamp.core.happenings import EnvironmentsRead, Happening, Joined, PolicyRead
from encamp.core.schema import Schema
from encamp.describe.site_file import load_site
from encamp.manager.environments import environment_facts
from encamp.manager.membership import Membership
from encamp.manager.triggers import read_site_triggers
from encamp.model.errors import EncampError
from encamp.model.event import EventKind
from encamp.model.site import Site

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

log = logging.getLogger(__name__)

SHOWN_MISTAKES = 20

Vocabulary = tuple[Schema, int]
"""Differs when there is something new that triggers can speak of."""


class Loading:
    def __init__(self, manager: Manager, members: Membership | None) -> None:
        """`members`: who was given which credential, if that is known here."""
        self._manager = manager
        self._members = members
        self.refused = ""
        """Why the triggers in the files are not the ones that are watched, if they are not."""

    def reload(self) -> None:
        wrong: list[EncampError] = []
        for load in (self._policy, self._environments, self._certificate, self.triggers):
            try:
                load()
            except EncampError as error:
                wrong.append(error)
        if wrong:
            raise wrong[0]

    def _certificate(self) -> None:
        if self._manager.api is not None:
            self._manager.api.reload()

    def _policy(self) -> None:
        manager = self._manager
        site = load_site() or Site()
        manager.core.check_policy(site.placement)
        manager.site = msgspec.structs.replace(
            manager.site, placement=site.placement, submit=site.submit
        )
        manager.happened(PolicyRead(site.placement))

    def _environments(self) -> None:
        self._manager.happened(EnvironmentsRead(environment_facts()))

    def check_policy(self) -> None:
        """Now that it is known what hosts are like."""
        try:
            self._manager.core.check_policy(self._manager.site.placement)
        except EncampError as error:
            wrong = error.detail.splitlines()[0] if error.detail else error.sentence
            sentence = f"A rank of 'placement' in site.yaml is left aside: {wrong}"
            self._manager.recorder.event(EventKind.TRIGGERS_REFUSED, sentence)

    # ── triggers ─────────────────────────────────────────────────────────────────────────────────

    def triggers(self) -> None:
        """Watch the triggers that are in the site's files now. If there is a mistake in them, those
        that were watched go on, and the error says what is wrong."""
        core, recorder = self._manager.core, self._manager.recorder
        core.picture.learn((), self._groups())
        try:
            definitions = read_site_triggers(core.picture.world.schema, core.commands())
            core.load(definitions, time.time())
        except EncampError as error:
            count = len(core.engine.triggers)
            former = f"the {count} that were watched stay" if count else "none is watched"
            found = error.detail.splitlines()[:SHOWN_MISTAKES] or [error.sentence]
            for line in found:
                log.warning("%s", line)
            self.refused = f"The triggers in the site's files are refused, {former}: {found[0]}"
            recorder.event(EventKind.TRIGGERS_REFUSED, self.refused)
            raise
        self.refused = ""
        count = len(core.engine.triggers)
        what = "1 trigger is" if count == 1 else f"{count} triggers are"
        recorder.event(EventKind.TRIGGERS_LOADED, f"{what} watched.")
        self._manager.poke()

    def _groups(self) -> set[str]:
        """Those that hosts can be in, whether one of them has joined or not."""
        enrolled = self._members.groups() if self._members is not None else frozenset()
        return {*self._manager.site.groups, *enrolled}

    def before(self, happening: Happening) -> Vocabulary | None:
        """What is known to triggers before a host joins that may bring what they lack."""
        return self._vocabulary() if self.refused and isinstance(happening, Joined) else None

    def after(self, known: Vocabulary | None) -> None:
        """What the triggers lacked may be there now."""
        if known is not None and self._vocabulary() != known:
            with contextlib.suppress(EncampError):
                self.triggers()

    def _vocabulary(self) -> Vocabulary:
        core = self._manager.core
        return core.picture.world.schema, len(core.commands())
