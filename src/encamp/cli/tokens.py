"""`encamp token`, `encamp audit` and `encamp api`: who may call the manager over HTTP, who did
what, and what can be called."""

from __future__ import annotations

from typing import Annotated

import typer

from encamp.model.token import Scope

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Tokens: what programs show to the manager's HTTP API.")
    group.command("create")(token_create)
    group.command("ls")(token_ls)
    group.command("revoke")(token_revoke)
    app.add_typer(group, name="token")
    app.command()(audit)
    api = typer.Typer(help="The manager's HTTP API.")
    api.callback()(lambda: None)
    api.command("schema")(api_schema)
    app.add_typer(api, name="api")


def token_create(
    scope: Annotated[
        Scope,
        typer.Option(
            "--scope",
            help="How far it goes: read (see the site), use (what its owner may do), administer"
            " (everything).",
        ),
    ] = Scope.READ,
    owner: Annotated[
        str,
        typer.Option(
            "--owner",
            metavar="USER",
            help="Whom it speaks for; yourself, if not given. Administrators name others.",
            show_default=False,
        ),
    ] = "",
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="When it ends: 12h, 30d.")
    ] = "90d",
    label: Annotated[
        str, typer.Option("--label", metavar="TEXT", help="What it is for.", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make a token, and print it: this once.

    Whoever shows it to the manager's HTTP API ('api' in site.yaml) speaks for its owner. Only its
    hash is kept.

    Example: encamp token create --scope use --label 'nightly builds' > ~/.encamp-token

    Example: encamp token create --owner prometheus --scope read --expires 365d
    """
    import sys

    from encamp.cli.asking import asked_one
    from encamp.cli.machines import print_json
    from encamp.cli.options import parse_duration
    from encamp.cli.tables import moment
    from encamp.door.questions import CreateToken
    from encamp.model.token import NewToken

    question = CreateToken(owner=owner, scope=scope, label=label, lifetime=parse_duration(expires))
    made = asked_one(question, NewToken)
    if as_json:
        print_json(made)
        return
    print(made.secret)
    token = made.token
    print(
        f"encamp: token {token.id} is for {token.owner} ({token.scope.value}) until"
        f" {moment(token.expires)}. It is not shown again.",
        file=sys.stderr,
    )


def token_ls(as_json: AsJson = False) -> None:
    """List your tokens; administrators see everybody's."""
    from encamp.cli.asking import asked
    from encamp.cli.listing import show_list
    from encamp.cli.machines import print_json
    from encamp.cli.tables import ago, moment
    from encamp.door.questions import AskTokens
    from encamp.model.token import Token

    found = asked(AskTokens(), Token)
    if as_json:
        print_json(found)
        return
    columns = ("token", "owner", "scope", "created", "by", "ends", "used", "label")
    rows = [
        (
            token.id,
            token.owner,
            token.scope.value,
            f"{ago(token.created)} ago",
            token.creator,
            moment(token.expires),
            f"{ago(token.used)} ago" if token.used else "",
            token.label,
        )
        for token in found
    ]
    show_list(columns, rows, below=("label",))


def token_revoke(
    tokens: Annotated[
        list[str],
        typer.Argument(metavar="TOKEN...", help="Their ids, as 'encamp token ls' shows them."),
    ],
) -> None:
    """Take tokens back: from now on they open nothing."""
    from encamp.cli.asking import asked_one
    from encamp.door.questions import RevokeToken
    from encamp.model.token import Token

    for name in tokens:
        token = asked_one(RevokeToken(id=name), Token)
        print(f"{token.id} of {token.owner} is revoked.")


def audit(
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=0, help="So many of the latest.")
    ] = 50,
    who: Annotated[
        str,
        typer.Option("--who", metavar="USER", help="Only what this user did.", show_default=False),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one line for each.")] = False,
) -> None:
    """Tell who changed what, through which door, with what result.

    For administrators. Each entry was written down before the thing was done.

    Example: encamp audit --who alice --last 1000
    """
    from encamp.cli.asking import asked
    from encamp.cli.cleaning import json_text
    from encamp.cli.listing import show_list
    from encamp.cli.tables import moment, some
    from encamp.door.questions import AskAudit
    from encamp.model.audit import AuditEntry

    found = asked(AskAudit(last=last, who=who), AuditEntry)
    if as_json:
        for entry in found:
            print(json_text(entry))
        return
    columns = ("when", "who", "through", "action", "about", "outcome", "")
    rows = [
        (
            moment(entry.at),
            entry.who,
            " ".join(part for part in (entry.through, entry.address, entry.token) if part),
            entry.action,
            entry.about,
            entry.outcome.value,
            entry.sentence or some([name[:8] for name in entry.made]),
        )
        for entry in found
    ]
    show_list(columns, rows, below=("", "about"))


def api_schema() -> None:
    """Print the OpenAPI document of the HTTP API. It needs no manager.

    Example: encamp api schema > openapi.json
    """
    import sys

    from encamp.manager.api.document import document

    sys.stdout.write(document().decode() + "\n")
