"""`python -m bench [NAME...] [--write] [--quick]`: run benchmarks and report what they found."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

from bench.report import Report, merge, section
from bench.single import measure

NAMES = [
    *("latency", "environments", "rate", "crowd", "leaks", "streams", "shares", "speed"),
    *(
        "emulation",
        "rebuild",
        "pull",
        "describe",
        "storage",
        "triggers",
        "placement",
        "api_listing",
    ),
    "simulation",
    *("site_traffic", "site_salt", "site_agents", "site_latency", "site_run"),
    "takeover",
    *("batch_latency", "batch_mixed", "batch_classes"),
]
DOCUMENT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def apart(name: str, quick: bool) -> tuple[Report, str]:
    """Run a benchmark in a process of its own, so that none inherits another's memory."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(measure, name, quick).result()
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)}")
    parser.add_argument("--write", action="store_true", help=f"also write docs/{DOCUMENT.name}")
    parser.add_argument("--quick", action="store_true", help="few samples, only to see it work")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark '{unknown[0]}'; there are: {', '.join(NAMES)}")
    sections = {}
    plots = []
    for name in asked.names or NAMES:
        report, circumstances = apart(name, asked.quick)
        plots += report.plots
        module = import_module(f"bench.{name}")
        sections[name] = section(name, module.TITLE, report, module.EXPLANATION, circumstances)
        print(sections[name].rsplit(module.EXPLANATION.strip(), 1)[0], flush=True)
    if asked.write:
        written = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(merge(written, sections, NAMES))
        for plot in plots:
            (DOCUMENT.parent / f"{plot.name}.svg").write_text(plot.svg)
        print(f"Written to docs/{DOCUMENT.name}.", file=sys.stderr)


if __name__ == "__main__":
    main()
