"""How a machine is on a network of its host's: a bridge, and an address of its own there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Bridge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A bridge of the host that machines with `network: bridge` are on, as a site sets it."""

    name: str
    addresses: str
    """What this host may give to its machines: `10.99.0.100-10.99.0.199/24`."""
    gateway: str | None = None
    dns: str | None = None
    hosts: dict[str, str] = {}
    """Names that machines there know, and their addresses."""

    @property
    def prefix(self) -> int:
        return self._parts()[2]

    def range(self) -> Iterator[str]:
        import ipaddress

        first, last, _ = self._parts()
        return (str(ipaddress.IPv4Address(number)) for number in range(first, last + 1))

    def _parts(self) -> tuple[int, int, int]:
        import ipaddress  # By those alone who need it: every command reads this file.

        ends, _, prefix = self.addresses.partition("/")
        first, _, last = ends.partition("-")
        low, high = ipaddress.IPv4Address(first), ipaddress.IPv4Address(last or first)
        return int(low), int(high), int(prefix)

    def mistake(self) -> str:
        """What cannot be right about it, if something cannot."""
        import ipaddress

        try:
            low, high, prefix = self._parts()
            network = ipaddress.ip_network((low, prefix), strict=False)
            others = [ipaddress.IPv4Address(other) for other in (self.gateway, self.dns) if other]
            others += [ipaddress.IPv4Address(address) for address in self.hosts.values()]
        except ValueError as error:
            return str(error)
        if low > high:
            return "the range of addresses ends before it begins"
        if ipaddress.IPv4Address(high) not in network:
            return f"the range of addresses leads out of {network}"
        if any(low <= int(other) <= high for other in others):
            return "an address that somebody has is in the range that machines are given"
        return ""


def node_name(address: str) -> str:
    """What a worker node with this address is called."""
    return f"node-{address.replace('.', '-')}"


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one machine has there. It keeps it for life, also when it is put into a file."""

    bridge: str
    address: str
    prefix: int
    gateway: str | None = None
    dns: str | None = None
    hosts: dict[str, str] = {}

    @classmethod
    def on(cls, bridge: Bridge, address: str) -> Link:
        return cls(
            bridge=bridge.name,
            address=address,
            prefix=bridge.prefix,
            gateway=bridge.gateway,
            dns=bridge.dns,
            hosts=bridge.hosts,
        )

    @property
    def _hexadecimal(self) -> str:
        return bytes(int(part) for part in self.address.split(".")).hex()

    @property
    def device(self) -> str:
        """The host's name for the machine's end of the wire. Made from the address, so that the
        kernel itself refuses to give one address to two machines."""
        return f"encamp-{self._hexadecimal}"

    @property
    def mac(self) -> str:
        """Made from the address, too: whoever remembers who has an address is right for ever."""
        digits = f"5254{self._hexadecimal}"
        return ":".join(digits[at : at + 2] for at in range(0, 12, 2))
