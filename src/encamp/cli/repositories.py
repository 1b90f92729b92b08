"""Images between hosts: pull and push."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Where = Annotated[str, typer.Argument(metavar="REPOSITORY", show_default=False)]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="Sign with this secret key of minisign.", show_default=False
    ),
]


def pull(
    image: Annotated[list[str], typer.Argument(metavar="IMAGE...", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPOSITORY",
            help="Only from this one, a directory or http(s) address; otherwise the configured"
            " ones are asked in their order.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Let a NAME:VERSION that is another image here move to it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring images from a repository to this host.

    With what they are layers over; only what is not here is transferred. A pull that broke off goes
    on where it stopped; several that want the same image wait for the one that pulls it. Nothing is
    used before it is verified.

    Example: encamp image pull debian12 --from https://images.example.org/encamp
    """
    from encamp.cli.bar import Bar
    from encamp.cli.images import store
    from encamp.cli.machines import print_json
    from encamp.images.pulling import pull as pull_image
    from encamp.images.pulling import pull_anywhere
    from encamp.images.repository import Repository

    images = store()
    pulled = []
    for reference in image:
        with Bar() as bar:
            if source is None:
                pulled.append(pull_anywhere(images, reference, bar, force=force))
            else:
                repository = Repository.open(source)
                pulled.append(pull_image(images, repository, reference, bar, force=force))
        if not as_json:
            print(f"{pulled[-1].name or '-'} {pulled[-1].digest}")
    if as_json:
        print_json([{"name": one.name, "digest": one.digest} for one in pulled])


def push(
    image: Annotated[str, typer.Argument(metavar="IMAGE", show_default=False)],
    repository: Where,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="NAME[:VERSION]",
            help="Its name there, instead of those it has here. May be given more than once.",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace what is there: another image of that version, or damaged files.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put an image into a repository, with what it is a layer over.

    A repository is a directory, or a web server that takes PUT; credentials for it are in ~/.netrc.
    Only what it does not have is transferred, and nobody sees an image there before it is
    complete. A NAME moves on to the image pushed last, a NAME:VERSION stays what it is.

    Example: encamp image push analysis /srv/images --as analysis:2026.1 --key ~/site.key
    """
    from encamp.cli.bar import Bar
    from encamp.cli.images import store
    from encamp.cli.machines import print_json
    from encamp.cli.verify import open_key
    from encamp.images.pushing import push as push_image
    from encamp.images.reference import name_of
    from encamp.images.repository import Repository

    signer = None if key is None else open_key(key)
    tags = {tag for name in names or () for tag in (name, name_of(name))}
    with Bar() as bar:
        pushed = push_image(
            store(), Repository.open(repository), image, bar, tags=tags, signer=signer, force=force
        )
    if as_json:
        print_json(pushed)
    else:
        print(f"{' '.join(pushed.names) or '-'} {pushed.digest}")
