"""`encamp env`: the environments that are described, and whether that is in order."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli.cleaning import remark
from encamp.cli.site_door import site_door
from encamp.cli.wishes import Local
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.describe.library import Library
    from encamp.door.questions import SiteEnvironment

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Environments: what jobs can ask for.")
    group.command("ls")(env_ls)
    group.command("show")(env_show)
    group.command("check")(env_check)
    group.command("schema")(env_schema)
    app.add_typer(group, name="env")


def env_ls(as_json: AsJson = False, local: Local = False) -> None:
    """List the environments you can ask for, and their files.

    Where there is a site, these are the site's that you may use, and your own, which go along with
    a job. --local lists those of this host."""
    from encamp.cli.listing import show_list
    from encamp.cli.machines import print_json
    from encamp.describe.environments import open_library

    library = open_library()
    through_site = site_door(local=local) is not None
    of_site, wrong = _of_site() if through_site else ([], None)
    listed = [*of_site]
    listed += _of_files(library, {one.name for one in listed}, own=through_site)
    if as_json:
        print_json(listed)
    else:
        rows = [
            (one.name, one.image, str(one.size) if one.size.cpus else "", _file(one), one.summary)
            for one in sorted(listed, key=lambda one: not one.shipped)
        ]
        columns = ("name", "image", "size", "file", "summary")
        show_list(columns, rows, below=("summary", "file"))
    _tell_ignored(library)
    if wrong is not None:
        remark(" ".join([wrong.sentence, *wrong.detail.splitlines()[:1]]))
    if through_site:
        _tell_left_out(library, of_site)
    else:
        library.mistakes.raise_any()


def _of_site() -> tuple[list[SiteEnvironment], EncampError | None]:
    """Those of the site's, and what is wrong with its files."""
    from encamp.cli.asking import asked, door
    from encamp.door.client import ask
    from encamp.door.questions import AskEnvironments, SiteEnvironment

    try:
        return asked(AskEnvironments(), SiteEnvironment), None
    except EncampError as error:
        if error.code is not Code.CONFIGURATION:
            raise
        wrong = error
    # What came before the error can be used all the same.
    found: list[SiteEnvironment] = []
    with suppress(EncampError):
        found.extend(ask(door(), AskEnvironments(), SiteEnvironment))
    return found, wrong


def _of_files(library: Library, but: set[str], *, own: bool) -> list[SiteEnvironment]:
    """Those of the caller's files, in the same form. `own`: only the caller's own, also those which
    extend what only the site describes: that cannot be judged here."""
    from encamp.describe.environments import is_for_caller, is_shipped
    from encamp.door.questions import SiteEnvironment, site_environment
    from encamp.model.size import Size

    found = []
    for name, description in library.described.items():
        trusted = description.source.level.trusted
        if name in but or library.is_abstract(name) or (own and trusted):
            continue
        environment = library.environment(name)
        if environment is not None and is_for_caller(environment.users):
            shipped = is_shipped(environment)
            found.append(site_environment(environment, environment.origin, shipped=shipped))
        elif own and (strangers := _strangers(library, name)):
            summary = f"extends what the site describes: {', '.join(strangers)}"
            file = description.source.path
            found.append(SiteEnvironment(name=name, size=Size(0, 0), file=file, summary=summary))
    return found


def _strangers(library: Library, name: str) -> list[str]:
    """What it builds on that no file here describes."""
    from encamp.describe.inheritance import lineage

    line = lineage(library.described[name], library.mistakes)
    return [stranger for layer in line for stranger in layer.strangers]


def _tell_left_out(library: Library, of_site: list[SiteEnvironment]) -> None:
    """Which of the caller's own are not listed beside the site's, and why."""
    for one in of_site:
        own = library.described.get(one.name)
        # The manager may read the same file.
        if own is not None and not own.source.level.trusted and own.source.path != one.file:
            remark(f"not listed: {own.source.path} describes '{one.name}', and so does the site.")
    wrong = library.mistakes.without_strangers()
    if wrong:
        more = f" There are {len(wrong) - 1} more mistakes." if len(wrong) > 1 else ""
        remark(f"not listed: {wrong[0]}.{more}")


def env_show(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    resolved: Annotated[
        bool,
        typer.Option("--resolved", help="All that it has and inherits, and where that is written."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how an environment is described, or what comes of that.

    What --resolved prints is a description too; the comments say from which file, line and column
    each value is.

    Example: encamp env show debian12 --resolved
    """
    from encamp.cli.machines import print_json
    from encamp.describe import showing
    from encamp.describe.environments import find_environment, open_library

    library = open_library()
    abstract = name in library.described and library.is_abstract(name)
    environment = None if abstract else find_environment(name)
    if resolved:
        lines = showing.resolved(library, name)
        if as_json:
            print_json(
                {".".join(line.path): {"value": line.value, "from": line.origin} for line in lines}
            )
        else:
            print(showing.as_yaml(name, lines))
    elif as_json:
        if environment is None:
            raise EncampError(
                Code.USAGE, f"Environment '{name}' is abstract.", "--resolved --json shows it."
            )
        print_json(environment)
    else:
        description = library.described[name]
        print(f"# {description.source.path}:{description.line}:{description.column}")
        print(showing.as_written(library, name))


def env_check(
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...")] = None,
    site: Annotated[
        bool, typer.Option("--site", help="Judge FILE as if it were the site's own.")
    ] = False,
) -> None:
    """Check descriptions, and report every mistake at once.

    Without FILE, all files are checked that 'encamp env ls' reads, and the settings. A FILE is
    checked with those it would build on."""
    from encamp.describe.environments import check_file, open_library
    from encamp.describe.settings import load_settings

    failures = []
    for file in files or ():
        try:
            print(f"{file}: {_counted(check_file(file, site=site))} in order")
        except EncampError as error:
            failures.append(error)
    if not files:
        library = open_library()
        library.all()
        _tell_ignored(library)
        library.mistakes.raise_any()
        load_settings()
        for source in library.sources:
            own = [entry for entry in library.described.values() if entry.source is source]
            print(f"{source.path}: {_counted(len(own))} in order")
    if failures:
        raise _all_of(failures)


def env_schema(
    settings: Annotated[
        bool, typer.Option("--settings", help="The one for settings.yaml instead.")
    ] = False,
) -> None:
    """Print a JSON Schema of environments.yaml, for editors.

    Example: encamp env schema > ~/.config/encamp/environments.schema.json
    """
    from encamp.cli.machines import print_json
    from encamp.describe.schema import environments_schema, settings_schema

    print_json(settings_schema() if settings else environments_schema())


def _file(environment: SiteEnvironment) -> str:
    if environment.shipped:
        return "(shipped)"
    return _short(environment.file) if environment.file else "(site)"


def _short(path: str) -> str:
    """A path as its reader would write it."""
    from pathlib import Path

    for start, shown in ((Path.cwd(), "."), (Path.home(), "~")):
        if Path(path).is_relative_to(start):
            return f"{shown}/{Path(path).relative_to(start)}"
    return path


def _counted(number: int) -> str:
    return f"{number} environment{'' if number == 1 else 's'}"


def _tell_ignored(library: Library) -> None:
    for sentence in library.ignored:
        print(f"encamp: not read: {sentence}", file=sys.stderr)


def _all_of(failures: list[EncampError]) -> EncampError:
    if len(failures) == 1:
        return failures[0]
    detail = "\n".join(error.detail or error.sentence for error in failures)
    return EncampError(
        Code.CONFIGURATION,
        f"There are mistakes in {len(failures)} files.",
        "Each mistake is told with its place, and what is expected there.",
        detail=detail,
    )
