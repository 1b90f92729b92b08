"""What Grid Engine's commands print, as data."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree.ElementTree import Element

import msgspec

from encamp.model.errors import Code, EncampError

ANYWHERE = "any"
"""What hosts offer that may get jobs for an environment: none has that name, and jobs go where
another one is offered than they have asked for. Grid Engine asks whether a job can run anywhere
(`-w e`) also before its verifier has seen it, and so a plain name has to fit every such host."""
FOR_NODES = "encamp_node"
"""What jobs for worker nodes ask for by the environment's name, and no others do: a forced complex
of such hosts."""
UNITS = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
UNITS |= {"t": 10**12, "T": 2**40}
AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]*)?)([kKmMgGtT]?)")
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What may not be there, and can be if a user's job is called so."""
BAD_NAME = re.compile(r"<(/?)[A-Za-z_]+:[^<>=\"]*>")
"""What a master that was restarted calls the tasks of jobs: `<JATASK:      53.>`. Signs like these
are never a user's."""
ANSWERS = frozenset({"detailed_job_info", "unknown_jobs"})
RERUN = {"1": True, "2": False}
"""What a job says of being run again; otherwise its queue decides."""
ATTENDED = 0x1E
"""In a job's type: one of `qsh`, `qlogin`, `qrsh` with a command and without."""


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the master tells when asked for that one."""

    owner: str
    requests: dict[str, str]
    context: dict[str, str]
    rerun: bool | None
    """None: as its queue says."""
    attended: bool = False
    """Is it no batch job: does somebody sit before it?"""
    not_before: float = 0.0
    """When it may begin at the earliest."""
    errors: tuple[str, ...]
    messages: tuple[str, ...]
    """Why it waits."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the list of jobs."""

    id: str
    tasks: str
    state: str
    owner: str
    queue: str
    slots: int
    submitted: float
    environment: str

    @property
    def count(self) -> int:
        return sum(len(each) for each in tasks_in(self.tasks)) or 1

    def has(self, task: str) -> bool:
        return not task or any(int(task) in each for each in tasks_in(self.tasks))


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A queue on one host."""

    name: str
    state: str
    starter: str
    calendar: str


def amount(text: str) -> int | None:
    """Bytes; None: unlimited, or not said."""
    found = AMOUNT.fullmatch(text.strip())
    return int(float(found[1]) * UNITS[found[2]]) if found else None


def environment_asked(request: str) -> str:
    return request.removesuffix(f"|{ANYWHERE}")


def parse(text: str) -> Element:
    """XML, maybe with a complaint before it."""
    begin = max(0, text.find("<?xml"))
    try:
        return ElementTree.fromstring(BAD_NAME.sub(r"<\1task>", NOT_XML.sub("?", text[begin:])))
    except ElementTree.ParseError as error:
        raise EncampError(
            Code.PROTOCOL, f"Grid Engine's answer cannot be read: {error}.", detail=text[-2000:]
        ) from error


def read_detail(text: str) -> Detail | None:
    """The answer of `qstat -xml -j ID`; None: there is no such job. That the master is away is said
    in the same way, and with the same exit code."""
    root = _parse_details(text)
    job = root.find("djob_info/element")
    if job is None or job.find("JB_owner") is None:
        return None
    errors = [
        said(each, "QIM_message") for each in job.iter() if each.find("QIM_message") is not None
    ]
    messages = [each.text or "" for each in root.iter("MES_message")]
    return Detail(
        owner=said(job, "JB_owner"),
        requests=dict(pairs(job.find("JB_hard_resource_list"), "CE_name", "CE_stringval")),
        context=dict(pairs(job.find("JB_context"), "VA_variable", "VA_value")),
        rerun=RERUN.get(said(job, "JB_restart")),
        attended=bool(int(said(job, "JB_type") or 0) & ATTENDED),
        not_before=float(said(job, "JB_execution_time") or 0),
        errors=tuple(errors),
        messages=tuple(messages),
    )


def read_begins(text: str) -> dict[str, float]:
    """The answer of `qstat -xml -j ID,...`: when jobs may begin at the earliest, by their ids."""
    return {
        said(job, "JB_job_number"): float(said(job, "JB_execution_time") or 0)
        for job in _parse_details(text).findall("djob_info/element")
    }


def _parse_details(text: str) -> Element:
    root = parse(text)
    if root.tag not in ANSWERS:
        raise EncampError(
            Code.UNREACHABLE,
            f"Grid Engine's master does not answer: {said(root, 'AN_text') or root.tag}.",
            transient=True,
            detail=text[-2000:],
        )
    return root


def read_jobs(text: str) -> Iterator[Listed]:
    """The answer of `qstat -xml -r`, whose times are UTC's."""
    for job in parse(text).iter("job_list"):
        asked = [
            each.text or "" for each in job.findall("hard_request") if each.get("name") == "env"
        ]
        when = said(job, "JB_submission_time") or said(job, "JAT_start_time")
        yield Listed(
            id=said(job, "JB_job_number"),
            tasks=said(job, "tasks"),
            state=said(job, "state"),
            owner=said(job, "JB_owner"),
            queue=said(job, "queue_name"),
            slots=int(said(job, "slots") or "1"),
            submitted=datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp() if when else 0.0,
            environment=environment_asked(asked[-1]) if asked else "",
        )


def read_states(text: str) -> dict[str, str]:
    """The answer of `qstat -f -xml`: queue instances, and the letters of how they are."""
    return {said(each, "name"): said(each, "state") for each in parse(text).iter("Queue-List")}


def read_values(text: str) -> Iterator[dict[str, str]]:
    """Objects as `qconf` shows them: a name and a value a line, which may go on over lines."""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():
        words = line.split(maxsplit=1)
        if not words:
            continue
        if words[0] in found:
            yield found
            found = {}
        found[words[0]] = words[1].strip() if len(words) > 1 else ""
    if found:
        yield found


def tasks_in(tasks: str) -> Iterator[range]:
    """Of `1-9:2,12`."""
    for part in filter(None, tasks.split(",")):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        yield range(int(first), int(last or first) + 1, int(step or "1"))


def pairs(parent: Element | None, name: str, value: str) -> Iterator[tuple[str, str]]:
    for each in parent if parent is not None else ():
        yield said(each, name), said(each, value)


def said(element: Element, name: str) -> str:
    return (element.findtext(name) or "").strip()
