"""What those work with who see to requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from encamp.bus.bus import Bus
from encamp.core.happenings import Happening
from encamp.core.step import Core
from encamp.manager.dispatching import Dispatcher
from encamp.manager.recording import Recorder
from encamp.manager.store.store import Store
from encamp.manager.traffic import Pace
from encamp.model.site import Site


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    core: Core
    store: Store
    dispatcher: Dispatcher
    bus: Bus
    pace: Pace
    recorder: Recorder
    happened: Callable[[Happening], None]
    site: Callable[[], Site]
    """How it is set up now."""
    ticket_key: bytes
    """What the tickets to machines are made from."""
