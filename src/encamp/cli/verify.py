"""Images that can be relied on: reading them again, and signing them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli.cleaning import remark
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.images.repository import Repository
    from encamp.images.signature import Signer
    from encamp.images.store import ImageStore
    from encamp.progress import Progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def verify(
    image: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE]...", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPOSITORY",
            help="A directory or http(s) address.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read images again, whole, and compare them with their digests.

    Machines are never made of a damaged image in any case; this finds damage before a job does.
    With --from, reads them in a repository, without keeping anything. Signatures are checked where
    the host has keys.

    Example: encamp image verify --all
    """
    from encamp.cli.bar import Bar
    from encamp.cli.images import store
    from encamp.cli.machines import print_json
    from encamp.images.repository import Repository

    images = store()
    repository = None if source is None else Repository.open(source)
    if everything:
        known = images.ls() if repository is None else []
        here = {one.digest for one in known}
        wanted = sorted(here if repository is None else repository.index().images)
    elif image:
        wanted = image
    else:
        raise EncampError(Code.USAGE, "Which image?", "Name some, or --all.")
    results: dict[str, str] = {}
    failures: list[EncampError] = []
    for reference in wanted:
        try:
            with Bar() as bar:
                digest = verify_one(images, repository, reference, bar)
            results[reference] = "good"
            if not as_json:
                print(*dict.fromkeys((reference, digest)), "good")
        except EncampError as error:
            results[reference] = error.sentence
            failures.append(error)
    if as_json:
        print_json(results)
    for failure in failures[1:]:
        remark(str(failure))
    if failures:
        raise failures[0]


def verify_one(
    images: ImageStore, repository: Repository | None, reference: str, progress: Progress
) -> str:
    """The digest of an image that is as it should be."""
    from encamp.images.verifying import verify_image, verify_repository

    if repository is None:
        image = images.get(reference)
        verify_image(images, image, progress)
        return image.digest
    located = repository.locate(reference)
    if located is None:
        raise repository.missing(reference)
    verify_repository(images, repository, located[0], progress)
    return located[0]


def sign(
    image: Annotated[list[str], typer.Argument(metavar="IMAGE...", show_default=False)],
    key: Annotated[
        Path,
        typer.Option("--key", metavar="FILE", help="The secret key, made with 'minisign -G'."),
    ],
    as_json: AsJson = False,
) -> None:
    """Sign images on this host, with what they are layers over.

    The signature covers an image's record, and through it the content of every file. It travels
    with the image when it is pushed; 'encamp image push --key' signs the names as well, which
    hosts that require signatures ask for.

    Example: encamp image sign analysis --key ~/site.key
    """
    from encamp.cli.images import print_named, store
    from encamp.images.signature import sign_image

    images = store()
    signer = open_key(key)
    for reference in image:
        found = images.get(reference)
        images.check(found)
        for part in found.lineage:
            if not images.owns(part):
                raise EncampError(
                    Code.NOT_PERMITTED,
                    f"Image {part.digest[:12]} in {part.directory.parent} is not yours to sign.",
                )
            sign_image(part, signer)
            print_named(part.name, part.digest, as_json)


def open_key(key: Path) -> Signer:
    """The key, with its password if it has one: asked for, or read from standard input."""
    import getpass

    from encamp.images.signature import Signer

    if not Signer.needs_password(key):
        return Signer(key)
    if sys.stdin.isatty():
        return Signer(key, getpass.getpass(f"Password of {key}: "))
    return Signer(key, sys.stdin.readline().rstrip("\n"))
