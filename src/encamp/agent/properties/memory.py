"""Memory of the host, in bytes."""

from __future__ import annotations

from encamp.agent.properties.plugin import Asked, NoValueError, one_of
from encamp.model.property import Value

MEMINFO = "/proc/meminfo"


def meminfo() -> dict[str, int]:
    """What the kernel says, by its own names; sizes in bytes."""
    found = {}
    with open(MEMINFO) as file:
        for line in file:
            name, _, rest = line.partition(":")
            amount, *unit = rest.split()
            found[name] = int(amount) * (1024 if unit else 1)
    return found


def memory(asked: Asked) -> Value:
    """`total`, `free` (what could be had without swapping) or `used`."""
    found = meminfo()
    total, free = found["MemTotal"], found["MemAvailable"]
    return one_of(asked, {"total": total, "free": free, "used": total - free})  # type: ignore[no-any-return]


def ram(asked: Asked) -> Value:
    """One line of /proc/meminfo, by its name there."""
    found = meminfo()
    if len(asked.parameters) != 1:
        raise NoValueError(f"'ram' takes one name of {MEMINFO}, such as MemFree.")
    name = asked.parameters[0]
    if name not in found:
        import difflib

        near = difflib.get_close_matches(name, found, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise NoValueError(f"There is no '{name}' in {MEMINFO}.{hint}")
    return found[name]
