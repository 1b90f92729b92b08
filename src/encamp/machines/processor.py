"""The host's processor and its KVM, as far as the saved state of a machine depends on them.

Under KVM a guest is shown the host's own processor. What the kernel's version and the parameters
of KVM's modules let it see of that is part of its state.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MODULES = Path("/sys/module")
KVM_MODULES = ("kvm", "kvm_amd", "kvm_intel")

MODEL = ("vendor_id", "cpu family", "model", "model name", "stepping")


def processor() -> str:
    """The model of the host's processor. A guest that was saved on one goes on only there."""
    found = _cpuinfo(MODEL)
    numbers = "/".join(found.get(name, "?") for name in ("cpu family", "model", "stepping"))
    return f"{found.get('model name', 'unknown')} ({found.get('vendor_id', '?')} {numbers})"


def kvm_release() -> str:
    """The kernel, and a digest of all else that KVM makes of the processor."""
    features = [_cpuinfo(("flags",)).get("flags", ""), *_parameters()]
    digest = hashlib.sha256("\n".join(features).encode()).hexdigest()
    return f"Linux {os.uname().release}, KVM {digest[:8]}"


def _cpuinfo(wanted: tuple[str, ...]) -> dict[str, str]:
    """What the kernel says of the first processor; the others are the same."""
    found: dict[str, str] = {}
    with CPUINFO.open() as file:
        for line in file:
            name, colon, value = line.partition(":")
            if not colon:
                break
            if name.strip() in wanted:
                found[name.strip()] = value.strip()
    return found


def _parameters() -> list[str]:
    found = []
    for module in KVM_MODULES:
        for path in sorted((MODULES / module / "parameters").glob("*")):
            try:
                value = path.read_text().strip()
            except OSError:
                continue  # Some are for writing only.
            found.append(f"{module}.{path.name}={value}")
    return found
