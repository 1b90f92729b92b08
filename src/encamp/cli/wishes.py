"""What a request to a site may say beyond what one host has to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.job import Job, MachineRequest
    from encamp.model.request import Request, Together

Local = Annotated[
    bool, typer.Option("--local", help="Here, without the site, even if there is one.")
]
Count = Annotated[
    int, typer.Option("--count", metavar="N", min=1, help="So many machines: all, or none.")
]
Requirements = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        metavar="EXPRESSION",
        help="Only hosts of which this is true, such as 'host.memory_free > 8 * GiB'.",
    ),
]
Rank = Annotated[
    str | None,
    typer.Option(
        "--rank",
        metavar="EXPRESSION",
        help="The host for which this is highest; or one of pack, spread, ready, fastest.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="N", help="Before your own jobs of lower priority.", show_default="0"
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="NAME",
        help="What it can be called: by you, and by --near and --away of others.",
    ),
]
Near = Annotated[
    list[str] | None,
    typer.Option("--near", metavar="LABEL", help="Where a machine with this label is."),
]
Away = Annotated[
    list[str] | None,
    typer.Option("--away", metavar="LABEL", help="Where no machine with this label is."),
]
How = Annotated[
    str | None,
    typer.Option(
        "--together",
        metavar="HOW",
        help="Machines of --count: 'anywhere', on 'one-host', or 'apart'.",
        show_default="anywhere",
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--retries",
        metavar="N",
        min=0,
        help="Begin it anew so often, if its host is lost or restarted under it.",
        show_default="0",
    ),
]

WaitAtMost = Annotated[
    str | None,
    typer.Option(
        "--wait-at-most",
        metavar="TIME",
        help="Withdraw it, with exit code 85, if it still waits for room after this: 90, 10m, 2h.",
        show_default="wait for ever",
    ),
]
Reuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help="In a machine that an earlier job of yours has left, if the environment allows it.",
    ),
]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a site."""

    count: int = 1
    requirements: str | None = None
    rank: str | None = None
    priority: int | None = None
    label: str | None = None
    near: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    together: str | None = None
    retries: int | None = None
    wait_at_most: str | None = None
    reuse: bool = False
    detach: bool = False

    def check_alone(self, *, local: bool) -> None:
        """Without a site, nobody can grant them. `local`: the caller has said so."""
        for name in self.__struct_fields__:
            if getattr(self, name) != getattr(NONE, name):
                wish = f"--{name.replace('_', '-')} is a matter of a site, and"
                if local:
                    raise EncampError(
                        Code.USAGE, f"{wish} --local does without.", "Leave one of them out."
                    )
                raise EncampError(
                    Code.USAGE,
                    f"{wish} there is none to ask here.",
                    "'encamp serve' makes one of this host; 'encamp login' goes to another.",
                )


NONE = Wishes()


def request_of(wishes: Wishes, machine: MachineRequest, job: Job | None) -> Request:
    """The request, as far as it is the caller's to say."""
    from encamp.cli.options import parse_duration
    from encamp.model.request import Request
    from encamp.model.size import Size

    if wishes.count > 1 and machine.name is not None:
        raise EncampError(Code.USAGE, "Several machines cannot have one name.", "Leave --name out.")
    requirements = wishes.requirements or ""
    if machine.shares:
        requirements = _only_here(requirements)
    return Request(
        # Who asks, when, and how much that is are the manager's to say.
        id="",
        owner="",
        submitted=0.0,
        size=Size(cpus=0, memory=0),
        environment=machine.environment,
        count=wishes.count,
        together=_together(wishes.together),
        label=wishes.label or "",
        near=wishes.near,
        away=wishes.away,
        requirements=requirements,
        rank=wishes.rank or "",
        priority=wishes.priority or 0,
        retries=wishes.retries or 0,
        wait_at_most=(None if wishes.wait_at_most is None else parse_duration(wishes.wait_at_most)),
        reuse=wishes.reuse,
        job=job,
        machine=machine,
        detached=wishes.detach,
    )


def _together(text: str | None) -> Together:
    from encamp.model.request import Together

    if text is None:
        return Together.ANYWHERE
    try:
        return Together(text.replace("-", " "))
    except ValueError:
        words = ", ".join(one.value.replace(" ", "-") for one in Together)
        raise EncampError(
            Code.USAGE,
            f"--together '{text}' is none of the ways there are.",
            f"There are: {words}.",
        ) from None


def _only_here(requirements: str) -> str:
    """A directory that is shown live is one of this host's."""
    from encamp.cli.site_door import far_door, this_host

    name = this_host()
    if far_door() is not None:
        _check_is_of_the_site(name)
    here = f"host.name == {name!r}"
    return f"({requirements}) and {here}" if requirements else here


def _check_is_of_the_site(name: str) -> None:
    """Where there is no door, there need not be an agent either."""
    from encamp.cli.asking import asked
    from encamp.door.questions import AskHosts
    from encamp.model.host import Host

    try:
        asked(AskHosts(hosts=(name,), brief=()), Host)
    except EncampError as error:
        if error.code is not Code.USAGE:
            raise
        raise EncampError(
            Code.USAGE,
            f"--share shows a directory of this host, {name}, which is none of the site's hosts.",
            "Copy what the job needs: --in and --out.",
        ) from error
