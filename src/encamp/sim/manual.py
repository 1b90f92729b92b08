"""The tables of docs/simulation.md, made from what checks descriptions of simulated sites.

`python -m encamp.sim.manual FILE...` brings documents up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from encamp.describe.manual import table
from encamp.describe.records import Record
from encamp.sim.attributes import (
    COMPARED,
    ENVIRONMENT,
    GENERATED,
    HOST_KIND,
    NEED,
    OURS,
    READING,
    RULE,
)

PLACE = re.compile(
    r"(<!-- simulation: (\w+) -->\n).*?(<!-- end of simulation -->)",
    re.DOTALL,
)

TABLES = {
    "hosts": HOST_KIND,
    "environments": ENVIRONMENT,
    "jobs": GENERATED,
    "trace": READING,
    "rules": RULE,
    "needs": NEED,
    # What else a policy says is told with the policy of real sites.
    "policies": Record("", {name: COMPARED.attributes[name] for name in OURS}),
}


def updated(document: str) -> str:
    return PLACE.sub(lambda match: f"{match[1]}\n{table(TABLES[match[2]])}\n{match[3]}", document)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(updated(path.read_text()))
