"""What simulations have found, as people and as programs read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.table import Table

from encamp.cli.cleaning import clean
from encamp.cli.machines import print_json
from encamp.cli.tables import format_bytes, show, table
from encamp.model.quantity import duration
from encamp.sim.measures import Course, Measured, Waits
from encamp.sim.soaking import Driven


def title(site: str, trace: Path | None) -> str:
    name = Path(site).stem
    return f"{name}: {trace.name}" if trace is not None else name


def span(seconds: float) -> str:
    return duration(round(seconds, 3)) if seconds else "0s"


OVERALL: dict[str, Callable[[Measured], str]] = {
    "jobs done": lambda found: f"{found.ended.get('done', 0):,} of {found.jobs:,}",
    "waiting, mean": lambda found: span(found.waiting.mean),
    "waiting, median": lambda found: span(found.waiting.median),
    "waiting, 95 % below": lambda found: span(found.waiting.p95),
    "waiting, longest": lambda found: span(found.waiting.longest),
    "bounded slowdown, mean": lambda found: f"{found.waiting.slowdown:.2f}",
    "bounded slowdown, 95 % below": lambda found: f"{found.waiting.slowdown_p95:.2f}",
    "processors used": lambda found: f"{found.utilisation * 100:.1f} %",
    "jobs done an hour": lambda found: f"{found.throughput:.1f}",
    "from first job to last": lambda found: span(found.hours * 3600),
    "machines made": lambda found: f"{found.machines_made:,}",
    "  from a template there": lambda found: f"{found.template_hits:,}",
    "  booted": lambda found: f"{found.booted:,}",
    "templates made": lambda found: f"{found.templates_made:,}",
    "images copied": lambda found: (
        f"{found.images_copied:,} ({format_bytes(found.bytes_copied)})"
        if found.images_copied
        else "0"
    ),
    "claims refused": lambda found: f"{found.claims_refused:,} of {found.claims:,}",
}
"""What is told of each policy, and how."""

OF_READY: dict[str, Callable[[Measured], str]] = {
    "jobs in machines that were idle": lambda found: f"{found.machines_reused:,}",
    "machines made ahead": lambda found: f"{found.machines_ahead:,}",
    "idle machines held, processors": lambda found: f"{found.idle_cpu_hours:,.1f} h",
    "idle machines held, memory": lambda found: f"{found.idle_memory_hours:,.1f} GiB h",
}
"""And where machines stand idle, or triggers are at work."""

OF_CLASS: dict[str, Callable[[Waits], str]] = {
    "jobs": lambda waits: f"{waits.jobs:,}",
    "waiting, mean": lambda waits: span(waits.mean),
    "waiting, median": lambda waits: span(waits.median),
    "waiting, 95 % below": lambda waits: span(waits.p95),
    "bounded slowdown, mean": lambda waits: f"{waits.slowdown:.2f}",
}


def print_courses(courses: Sequence[Course], as_json: bool) -> None:
    found = [course.measured for course in courses]
    if as_json:
        print_json(found)
        return
    made = table("", *(clean(one.policy) for one in found), whole=[one.policy for one in found])
    for column in made.columns[1:]:
        column.justify = "right"
    for name, text in OVERALL.items():
        made.add_row(name, *(text(one) for one in found))
    if any(one.machines_reused or one.idle_cpu_hours or one.triggers_fired for one in found):
        for name, text in OF_READY.items():
            made.add_row(name, *(text(one) for one in found))
    _add_triggers(made, found)
    for name in sorted({state for one in found for state in one.ended} - {"done"}):
        made.add_row(f"jobs {name}", *(f"{one.ended.get(name, 0):,}" for one in found))
    classes = sorted({name for one in found for name in one.by_class})
    for name in classes if len(classes) > 1 else ():
        made.add_section()
        for what, of_class in OF_CLASS.items():
            waits = [one.by_class.get(name) for one in found]
            cells = [of_class(one) if one is not None else "" for one in waits]
            made.add_row(f"{name}: {what}", *cells)
    show(made)
    _print_not_done(found)


def _add_triggers(made: Table, found: Sequence[Measured]) -> None:
    """How often each has fired."""
    for name in dict.fromkeys(name for one in found for name in one.triggers_fired):
        fired = [one.triggers_fired.get(name) for one in found]
        cells = ["" if times is None else f"{times:,}" for times in fired]
        made.add_row(f"trigger {name} fired", *cells)


def _print_not_done(found: Sequence[Measured]) -> None:
    for one in found:
        for left in one.not_done:
            times = "once" if left.times == 1 else f"{left.times:,} times"
            by = f"by trigger {left.trigger}" if left.trigger else "by a trigger"
            print(
                f"'{clean(one.policy)}': {clean(left.what)} was not carried out, {times} {by};"
                f" the first: {clean(left.first)}"
            )


def print_driven(driven: dict[str, list[Driven]], as_json: bool) -> None:
    """What was done to the site, and that it kept what it promises."""
    if as_json:
        print_json(
            {
                policy: {
                    "seeds": [one.seed for one in several],
                    "faults": _sum(one.faults for one in several),
                    "ended": _sum(one.ended for one in several),
                    "happened": sum(one.happened for one in several),
                }
                for policy, several in driven.items()
            }
        )
        return
    made = table("", *map(clean, driven), whole=list(driven))
    for column in made.columns[1:]:
        column.justify = "right"

    def row(name: str, *values: float) -> None:
        made.add_row(name, *(f"{value:,.0f}" for value in values))

    row("simulations", *map(len, driven.values()))
    row("things that happened", *(sum(one.happened for one in s) for s in driven.values()))
    made.add_section()
    faults = {policy: _sum(one.faults for one in several) for policy, several in driven.items()}
    for name in sorted({name for counts in faults.values() for name in counts}):
        row(name, *(counts.get(name, 0) for counts in faults.values()))
    made.add_section()
    ended = {policy: _sum(one.ended for one in several) for policy, several in driven.items()}
    for name in sorted({name for counts in ended.values() for name in counts}):
        row(f"jobs {name}", *(counts.get(name, 0) for counts in ended.values()))
    show(made)
    print("Every promise was kept.")


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))
