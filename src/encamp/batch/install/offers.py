"""What a queue of Grid Engine's offers: a list for all of its hosts, and other lists for some that
count instead of it."""

from __future__ import annotations

import re

from encamp.batch.install.objects import NOTHING

OTHERS = re.compile(r"\[([^=\]]+)=([^\]]*)\]")
"""The hosts, and their list."""


def with_offer(present: str, offer: str) -> str:
    """`complex_values`, with an offer more in each list that says nothing of its kind."""
    usual = present.partition("[")[0]
    others = [(found[1], found[2]) for found in OTHERS.finditer(present)]
    lists = [_added(usual, offer), *(f"[{hosts}={_added(some, offer)}]" for hosts, some in others)]
    return ",".join(lists)


def _added(some: str, offer: str) -> str:
    kind = offer.partition("=")[0]
    offers = [one for one in re.split(r"[,\s]+", some) if one and one.upper() != NOTHING]
    if kind in [one.partition("=")[0] for one in offers]:
        return ",".join(offers)
    return ",".join([offer, *offers])
