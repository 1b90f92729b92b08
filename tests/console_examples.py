"""Reads the console examples of a document, so that they can be run as a reader would.

A block fenced with ```console holds commands after `$ ` (going on after `> `) and, where it is the
same every time, what they print; `...` stands for anything. The comment `<!-- not run: why -->`
before a block leaves it out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

FENCE = "```"
NOT_RUN = re.compile(r"<!-- not run: .+ -->")


@dataclass
class Command:
    text: str
    line: int
    expected: list[str] = field(default_factory=list)

    def matches(self, output: str) -> bool:
        """Is this the output the document shows? Without any, all outputs are."""
        if not self.expected:
            return True
        pattern = ""
        for line in self.expected:
            if line == "...":
                pattern += r"(?:.*\n)*"
            else:
                pattern += re.escape(line.rstrip()).replace(re.escape("..."), ".*") + r"[ \t]*\n"
        return re.fullmatch(pattern, output if output.endswith("\n") else output + "\n") is not None


def read_examples(document: str) -> list[Command]:
    """All commands of a document that are to be run, in order."""
    commands: list[Command] = []
    language: str | None = None
    skip = False
    for number, line in enumerate(document.splitlines(), 1):
        if language is None:
            if line.startswith(FENCE):
                language = line.removeprefix(FENCE).strip()
            elif line.strip():
                skip = NOT_RUN.fullmatch(line.strip()) is not None
        elif line.startswith(FENCE):
            language, skip = None, False
        elif language == "console" and not skip:
            if line.startswith("$ "):
                commands.append(Command(line.removeprefix("$ "), number))
            elif line.startswith("> ") and commands and not commands[-1].expected:
                commands[-1].text += "\n" + line.removeprefix("> ")
            else:
                assert commands, f"line {number}: output before any command"
                commands[-1].expected.append(line)
    return commands


MARK = "\x1eexample"


def script(commands: list[Command]) -> str:
    """A shell script that runs the commands one after the other and marks where each one ends."""
    lines = []
    for command in commands:
        lines.append(command.text)
        # The next command still sees this one's exit code.
        lines.append(f"last=$?; printf '%s %d\\n' '{MARK}' $last; (exit $last)")
    return "\n".join(lines) + "\n"


def results(output: str) -> list[tuple[str, int]]:
    """What each command of the script printed, and its exit code."""
    found = re.findall(rf"(.*?){MARK} (\d+)\n", output, re.DOTALL)
    return [(printed, int(code)) for printed, code in found]
