"""The reader of console examples finds what a person would, and notices what is wrong."""

from __future__ import annotations

import subprocess

from tests.console_examples import Command, read_examples, results, script

DOCUMENT = """
Some text.

```console
$ cat <<END
> one
> END
one
$ false
$ echo $?
1
```

<!-- not run: it would take a day -->
```console
$ sleep 86400
```

```python
$ not a command
```

```console
$ date
```
"""


def test_commands_and_their_output_are_found() -> None:
    assert read_examples(DOCUMENT) == [
        Command("cat <<END\none\nEND", 5, ["one"]),
        Command("false", 9),
        Command("echo $?", 10, ["1"]),
        Command("date", 24),
    ]


def test_dots_stand_for_anything() -> None:
    command = Command("ps", 1, ["ID ... STATE", "...", "end"])
    assert command.matches("ID  NAME  STATE\na\nb\nend\n")
    assert command.matches("ID  NAME  STATE\nend\n")
    assert not command.matches("ID  NAME  STATE\na\nb\n")
    assert not command.matches("STATE\nend\n")


def test_output_is_compared_exactly_when_it_is_shown() -> None:
    assert Command("echo", 1, ["a"]).matches("a\n")
    assert not Command("echo", 1, ["a"]).matches("a\nb\n")
    assert not Command("echo", 1, ["a"]).matches("")
    assert Command("echo", 1).matches("whatever\n")


def test_commands_of_one_document_share_a_shell() -> None:
    commands = [Command(text, 1) for text in ("x=3", "(exit $x)", "echo $?", "echo -n unended")]
    printed = subprocess.run(
        ["bash", "-c", script(commands)], capture_output=True, text=True, check=True
    ).stdout
    assert results(printed) == [("", 0), ("", 3), ("3\n", 0), ("unended", 0)]
