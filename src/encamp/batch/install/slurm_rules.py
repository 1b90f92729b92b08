"""batch.yaml's rules as Slurm's `job_submit.lua` reads them: Lua, and numbers for names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from encamp.batch.install.names import gid_of, uid_of
from encamp.model.batch import BatchSettings, Rule
from encamp.model.size import MIB

HEAD = "-- Made by 'encamp batch install' from batch.yaml. Change that, and run it again."

Number = Callable[[str], int | None]


def rules_text(
    settings: BatchSettings,
    starter: str,
    *,
    spank: bool = False,
    nodes: Iterable[str] = (),
    other_nodes: Iterable[str] = (),
    least_memory: int = 0,
    descriptions: Iterable[str] = (),
    uid: Number = uid_of,
    gid: Number = gid_of,
) -> str:
    """`spank`: is the option --vmenv there, so that interactive jobs can have machines, too?
    `nodes`: environments whose machines are worker nodes; `other_nodes`: those whose machines are
    worker nodes of another batch system. `least_memory`: bytes with which a job can have a machine.
    `descriptions`: files that describe the environments, where batch.yaml does not list those that
    jobs may name."""
    allowed = [f"{_key(name)} = true" for name in settings.environments]
    enrolled = [f"{_key(name)} = true" for name in nodes]
    elsewhere = [f"{_key(name)} = true" for name in other_nodes]
    files = ", ".join(_escaped(path) for path in descriptions)
    lines = [
        HEAD,
        "return {",
        f"   system = {_quoted(settings.system)},",
        f"   starter = {_quoted(starter)},",
        f"   features = {str(settings.features).lower()},",
        f"   spank = {str(spank).lower()},",
        *(
            [f"   bait_feature = {_quoted(settings.bait_feature)},"]
            if settings.bait_feature
            else []
        ),
        *([f"   environments = {{ {', '.join(allowed)} }},"] if allowed else []),
        *([f"   descriptions = {{ {files} }},"] if files and not allowed else []),
        *([f"   nodes = {{ {', '.join(enrolled)} }},"] if enrolled else []),
        *([f"   other_nodes = {{ {', '.join(elsewhere)} }},"] if elsewhere else []),
        *([f"   least_memory = {least_memory // MIB},"] if least_memory else []),
        "   rules = {",
        *(f"      {_rule(rule, uid, gid)}," for rule in settings.rules),
        "   },",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule, uid: Number, gid: Number) -> str:
    words = {
        "environment": rule.environment,
        "queue": rule.queue or None,
        "account": rule.account or None,
        "user": rule.user or None,
        "group": rule.group or None,
    }
    parts = [f"{name} = {_quoted(word)}" for name, word in words.items() if word is not None]
    numbers = {
        "uid": uid(rule.user) if rule.user else None,
        "gid": gid(rule.group) if rule.group else None,
    }
    parts += [f"{name} = {number}" for name, number in numbers.items() if number is not None]
    return "{ " + ", ".join(parts) + " }"


def _key(name: str) -> str:
    return f"[{_quoted(name)}]"


def _quoted(text: str) -> str:
    """What needs no escaping: everything else has been refused where it was read."""
    assert '"' not in text
    assert "\\" not in text
    assert "\n" not in text
    return f'"{text}"'


def _escaped(path: str) -> str:
    for mark, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        path = path.replace(mark, written)
    return f'"{path}"'
