"""Images on this host: list, look at, build, name, remove."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from collections.abc import Callable

    from encamp.images.listing import Listed
    from encamp.images.store import ImageStore

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
One = Annotated[str, typer.Argument(metavar="IMAGE", show_default=False)]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="REPOSITORY", help="A directory or http(s) address.", show_default=False
    ),
]

Force = Annotated[
    bool,
    typer.Option("--force", help="Let a NAME:VERSION that is another image here move to it."),
]


def register(app: typer.Typer) -> None:
    from encamp.cli import repositories, verify

    images = typer.Typer(
        help="Images: the read-only parts of environments. IMAGE is a NAME, a NAME:VERSION, or at"
        " least 6 digits of a digest."
    )
    commands: dict[str, Callable[..., None]] = {
        "ls": ls,
        "show": show,
        "build": build,
        "pull": repositories.pull,
        "push": repositories.push,
        "verify": verify.verify,
        "sign": verify.sign,
        "tag": tag,
        "untag": untag,
        "rm": rm,
        "gc": gc,
    }
    for name, command in commands.items():
        images.command(name)(command)
    app.add_typer(images, name="image")


def store() -> ImageStore:
    from encamp.cli.machines import keeper

    # Opened in the usual way: machines that ended unnoticed do not count as users of images.
    return keeper().maker.images


def ls(source: From = None, as_json: AsJson = False) -> None:
    """List the images of this host, or of a repository.

    An image is listed once for each of its names. One that others are only a layer over may have
    none.

    Example: encamp image ls --from https://images.example.org/encamp
    """
    from encamp.cli.machines import print_json
    from encamp.cli.tables import ago, format_bytes, table
    from encamp.cli.tables import show as show_table
    from encamp.images.listing import list_images, list_repository
    from encamp.images.repository import Repository

    found = list_images(store()) if source is None else list_repository(Repository.open(source))
    if as_json:
        print_json(found)
        return
    made = table("name", "version", "digest", "parent", "kind", "kernel", "size", "used", "by")
    for image in found:
        made.add_row(
            image.name or "-",
            image.version or "",
            image.digest[:12],
            (image.parent or "")[:12],
            image.form.value if image.form else "",
            image.kernel_release,
            format_bytes(image.size),
            f"{ago(image.used)} ago" if image.used else "",
            in_use_by(image),
        )
    show_table(made)


def print_named(names: str, digest: str, as_json: bool) -> None:
    """One image, on one line in either form."""
    if as_json:
        import msgspec

        print(msgspec.json.encode({"names": names.split(), "digest": digest}).decode())
    else:
        print(f"{names or '-'} {digest}")


def in_use_by(image: Listed) -> str:
    count = len(image.machines)
    return "" if not count else "1 machine" if count == 1 else f"{count} machines"


def show(image: One, as_json: AsJson = False) -> None:
    """Show an image: its files, where it came from, who needs it."""
    from encamp.cli.machines import print_json
    from encamp.cli.tables import ago, format_bytes, moment, table
    from encamp.cli.tables import show as show_table
    from encamp.images.listing import list_image, list_images

    images = store()
    found = images.get(image)
    same = [one for one in list_images(images) if one.digest == found.digest]
    facts = same[0] if same else list_image(images, found, [])
    if as_json:
        print_json({"image": facts, "files": found.files, "defaults": found.defaults})
        return
    names = [f"{one.name}:{one.version}" if one.version else one.name for one in same]
    made = table("", "")
    made.show_header = False
    for key, value in {
        "names": " ".join(filter(None, names)) or "none",
        "digest": facts.digest,
        "parent": facts.parent or "none",
        "kernel": facts.kernel_release or "its own",
        "made": moment(facts.created),
        "recipe": facts.recipe,
        "from": facts.origin or "this host",
        "signed": "yes" if facts.signed else "no",
        "used": f"{ago(facts.used)} ago" if facts.used else "never",
        "needed by": ", ".join(facts.machines) or "no machine",
        "size": format_bytes(facts.size),
        **{
            f"file {file.name}": f"{format_bytes(file.size)}, {file.sha256}" for file in found.files
        },
        "directory": facts.directory or "",
    }.items():
        made.add_row(key, value)
    show_table(made)


def build(
    name: Annotated[str, typer.Argument(metavar="ENVIRONMENT", show_default=False)],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Build an environment's image now instead of on first use.

    An image that is there is built again if what it is made of has changed on this host. Use
    'encamp image pull' to have it from a repository.

    Example: encamp image build debian12
    """
    from encamp.cli.bar import Bar
    from encamp.describe.environments import find_environment
    from encamp.images.building import build_once

    wanted = find_environment(name).image
    images = store()
    with Bar() as bar:
        if isinstance(wanted, str):
            image = images.fetch(wanted, bar)
        else:
            image = build_once(images, wanted, bar, explicit=True, force=force)
        images.check(image, bar)
    print_named(image.name, image.digest, as_json)


def tag(
    image: One,
    name: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Give an image one more name. A name that was another image's is this one's from now on.

    With a version, the name without one stands for it as well, as after a build.

    Example: encamp image tag 3f9c0a analysis:2026.1
    """
    from encamp.images.placing import name_image
    from encamp.images.records import Link
    from encamp.images.reference import check_tag, name_of, version_of

    images = store()
    found = images.get(image)
    check_tag(name)
    link = Link(found.digest, found.recipe)
    name_image(images.home, link, name_of(name), version_of(name))
    print_named(name, found.digest, as_json)


def untag(
    name: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Take a name away from an image. An image without a name goes with 'encamp image gc'."""
    from encamp.images.records import link_path, links
    from encamp.images.reference import nearest

    home = store().home
    known = links(home)
    if name not in known:
        raise EncampError(
            Code.INPUT_MISSING, f"There is no image '{name}' of yours.", nearest(name, known)
        )
    link_path(home, name).unlink(missing_ok=True)
    print_named(name, known[name].digest, as_json)


def rm(
    image: Annotated[list[str], typer.Argument(metavar="IMAGE...", show_default=False)],
    source: From = None,
    as_json: AsJson = False,
) -> None:
    """Remove images with all their names.

    They are pulled or built again when needed. One that a machine needs, or that another image is a
    layer over, is not removed. With --from, removes them from a repository.

    Example: encamp image rm analysis:2025.4
    """
    from encamp.images.repository import Repository
    from encamp.images.repository_removing import remove
    from encamp.progress import Silent

    images = store()
    for wanted in image:
        if source is None:
            removed = images.rm(wanted)
            names = [one.name for one in removed if one.name]
            # Of one that cannot be read any more, nothing but the name is known.
            digest = removed[0].digest if removed else wanted
        else:
            digest, names = remove(Repository.open(source), wanted, Silent())
        print_named(" ".join(names), digest, as_json)


def gc(
    keep_days: Annotated[
        float,
        typer.Option("--keep-days", metavar="N", min=0, help="Keep what was used since."),
    ] = 7.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Clear away what nobody needs.

    Images without a name, downloads that broke off, build steps, unpacked kernels. Images with a
    name stay; they go only to make room, oldest first, when image_limit is reached.

    Example: encamp image gc --keep-days 0 --dry-run
    """
    from encamp.cli.machines import print_json
    from encamp.cli.tables import format_bytes
    from encamp.images.clearing import clear

    if not math.isfinite(keep_days):
        raise EncampError(Code.USAGE, "--keep-days is a number of days.")
    cleared = list(clear(store(), keep_days, dry_run=dry_run))
    if as_json:
        print_json(cleared)
        return
    for one in cleared:
        if one.size:
            print(f"{one.what} ({format_bytes(one.size)})")
    freed = format_bytes(sum(one.size for one in cleared))
    print(f"{freed} {'could be freed' if dry_run else 'freed'}.")
