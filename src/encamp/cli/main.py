"""The command `encamp`: puts the commands together, prints errors and picks exit codes."""

from __future__ import annotations

import errno
import io
import os
import re
import sys

import typer
from typer.exceptions import Abort, TyperException

from encamp.cli import run
from encamp.model.errors import Code, EncampError

NOT_WHOLE = re.compile(r"is not a valid int(eger)?\.")
"""Typer's words for a number that is none."""


def application(wanted: str = "") -> typer.Typer:
    """All commands; or only those around the wanted one, if it is one that must start fast."""
    app = typer.Typer(
        name="encamp",
        help="Run a job in a fresh virtual machine of the environment it asks for.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_encamp)
    run.register(app)
    if wanted not in run.COMMANDS:
        from encamp.cli import environments, images, machines, save, serve, simulate, stores

        machines.register(app)
        environments.register(app)
        save.register(app)
        images.register(app)
        stores.register(app)
        serve.register(app)
        _register_site(app)
        simulate.register(app)
    return app


def _register_site(app: typer.Typer) -> None:
    """The commands that ask a manager."""
    from encamp.cli import (
        batch,
        commands,
        events,
        hosts,
        jobs,
        login,
        properties,
        site,
        status,
        tokens,
        top,
        triggers,
    )

    jobs.register(app)
    status.register(app)
    login.register(app)
    hosts.register(app)
    properties.register(app)
    events.register(app)
    top.register(app)
    commands.register(app)
    triggers.register(app)
    tokens.register(app)
    site.register(app)
    batch.register(app)


def _encamp(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from encamp import __version__

        print(f"encamp {__version__}")
        raise typer.Exit


def say(error: EncampError) -> None:
    """An error as a person reads it: what was said before it, what is wrong, what to do. Names and
    words of others in it tell the terminal nothing."""
    from encamp.cli.cleaning import clean

    if error.detail:
        for line in error.detail.splitlines():
            print(f"  | {clean(line)}", file=sys.stderr)
    print(f"encamp: {clean(error.sentence)}", file=sys.stderr)
    if error.hint:
        print(f"        {clean(error.hint)}", file=sys.stderr)


def main() -> None:
    _have_streams()
    code = run_command(sys.argv[1:])
    # Everything is closed and written: taking the interpreter apart would only cost time.
    sys.stderr.flush()
    os._exit(code)


def _have_streams() -> None:
    """Whoever starts a command without one of the three streams gets nothing by it: no file or
    socket that is opened later may be taken for it. Letters that the other side cannot read are
    spelled out. What is said at both outputs comes in the order in which it was said."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # The lowest number that is free: this one.
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = _carry_out(arguments)
        sys.stdout.flush()
        return code
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code != 1:
            return error.code
        # Whoever read our output has gone, for which Typer exits; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        why = f"What was asked for could not be written: {os.strerror(error.errno or 0)}."
        say(EncampError(Code.DISK_FULL, why, "Is standard output a file on a full disk?"))
        return Code.DISK_FULL.value


def exit_code(error: EncampError) -> int:
    """To ask for what there will never be room for makes no sense: who waits would wait in vain.
    Over HTTP it is 422."""
    if error.code is Code.NO_ROOM and not error.transient:
        return Code.USAGE.value
    return error.code.value


def _carry_out(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        app = application(arguments[0] if arguments else "")
        result = app(arguments, prog_name="encamp", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except EncampError as error:
        say(error)
        return exit_code(error)
    except TyperException as error:
        if not arguments:
            print(error.format_message())
            return 0
        hint = f"See '{_path(error, arguments)} --help'."
        sentence = NOT_WHOLE.sub("is not a whole number.", error.format_message())
        say(EncampError(Code.USAGE, sentence, hint))
        return Code.USAGE.value
    except (Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            raise
        if os.environ.get("ENCAMP_DEBUG"):
            raise
        if isinstance(error, PermissionError) and error.filename:
            why = f"You may not use {error.filename}: {error.strerror}."
            say(EncampError(Code.NOT_PERMITTED, why, "Whose is it? ENCAMP_HOME may name another."))
            return Code.NOT_PERMITTED.value
        say(
            EncampError(
                Code.INTERNAL,
                f"Encamp made a mistake: {type(error).__name__}: {error}",
                "Please report it; ENCAMP_DEBUG=1 shows where it happened.",
            )
        )
        return Code.INTERNAL.value


def _path(error: TyperException, arguments: list[str]) -> str:
    """The command that was used in a wrong way, in whole: `encamp command send`."""
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else f"encamp {arguments[0]}"


if __name__ == "__main__":
    main()
