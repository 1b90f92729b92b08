"""What things take on a host: measured, and where.

All of it was measured with software emulation on the machine of docs/benchmarks.md. A site's
description can say otherwise for each environment and each kind of host.
"""

from __future__ import annotations

import msgspec

from encamp.model.size import MIB


class Costs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Seconds, unless said otherwise."""

    clone: float = 0.248
    """From the request to the first output in a clone of `debian12`: bench `environments`."""
    boot: float = 3.681
    """The same, not cloned but booted: bench `latency`, "library, cold boot"."""
    template: float = 5.784
    """Making a template: phase "machine made" of the first `encamp run --timings` in a new home."""
    end: float = 0.006
    """Phase "machine ended" of `encamp run --timings`."""
    image: int = 33 * MIB
    """Bytes of an image: `debian12`'s, bench `storage`."""
    network: float = 125e6
    """Bytes a second at which a host copies an image: a network of 1 Gbit/s. The copying itself
    does 995 MiB/s (bench `pull`), so that a host's network is what limits it."""
    message: float = 0.001
    """From one daemon to another over the bus; bench `site_latency` says what a command takes."""


MEASURED = Costs()
