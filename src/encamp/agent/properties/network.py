"""The network interfaces of the host."""

from __future__ import annotations

import functools
import os

from encamp.agent.properties.plugin import Asked, NoValueError
from encamp.agent.properties.rates import rate
from encamp.model.property import Value

LOOPBACK = "lo"
INTERFACES = "/sys/class/net"
COUNTERS = {"received": 0, "sent": 1}
TOTALS = {"received_total": 0, "sent_total": 1}


async def network(asked: Asked) -> Value:
    """`received` or `sent`, bytes a second since the last reading; `received_total` or
    `sent_total`, bytes since the interface came up; or `interfaces`, their names. Of the
    interfaces named next; of the host's network cards, if none is."""
    what, *interfaces = asked.parameters or ("",)
    look = functools.partial(_count, tuple(interfaces))
    if what in TOTALS:
        return int(look()[TOTALS[what]])
    if what in COUNTERS:
        growth, seconds = await rate(asked.kept, look)
        return round(growth[COUNTERS[what]] / seconds, 1)
    if what == "interfaces" and not interfaces:
        return [*sorted(_interfaces())]
    choices = ", ".join((*COUNTERS, *TOTALS, "interfaces"))
    raise NoValueError(f"'network' takes one of {choices}, and then perhaps names of interfaces.")


def _interfaces() -> dict[str, tuple[int, int]]:
    """Bytes that each interface has received and sent."""
    found = {}
    with open("/proc/net/dev") as file:
        for line in file.readlines()[2:]:
            # A name may have colons of its own.
            name, _, counters = line.rpartition(":")
            fields = counters.split()
            found[name.strip()] = int(fields[0]), int(fields[8])
    return found


def _count(interfaces: tuple[str, ...]) -> tuple[float, ...]:
    there = _interfaces()
    for name in interfaces:
        if name not in there:
            raise NoValueError(
                f"There is no interface '{name}' on this host; there are: {', '.join(there)}."
            )
    chosen = interfaces or _cards(tuple(there))
    return tuple(float(sum(there[name][place] for name in chosen)) for place in (0, 1))


def _cards(names: tuple[str, ...]) -> tuple[str, ...]:
    """The interfaces with a device behind them: what passes a bridge or a machine's end of it
    passes a card too, and is counted once. Where there are none, as in a container, all others."""
    cards = tuple(name for name in names if os.path.exists(f"{INTERFACES}/{name}/device"))  # noqa: PTH110
    return cards or tuple(name for name in names if name != LOOPBACK)
