"""Pulling images from repositories: once per home, whole or not at all, and verified before use."""

from __future__ import annotations

import time
from contextlib import ExitStack

import msgspec

from encamp.images import clearing, eviction, signature, store, transfer
from encamp.images.content import disk_refusal
from encamp.images.placing import check_free, check_version, link_name, name_image, place
from encamp.images.recognising import is_local
from encamp.images.records import ORIGIN, RECORD, SIGNATURE, Link, Origin, read_link
from encamp.images.reference import check_reference, name_of, nearest, tags, version_of
from encamp.images.repository import Described, Named, Repository
from encamp.images.repository_records import wrong
from encamp.images.transfer_meter import Meter, amount
from encamp.images.waiting import locked
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Recipe
from encamp.progress import FIGURES, Progress
from encamp.workplace import clear_cache, workplace

HURRY = 5.0
"""Seconds that a server has to answer where there is another way than to wait for it."""


def pull_anywhere(
    images: store.ImageStore, reference: str, progress: Progress, *, force: bool = False
) -> Image:
    """Pull from the first configured repository that has an image of this name."""
    check_reference(reference)
    unreachable: list[EncampError] = []
    for where in images.settings.repositories:
        try:
            repository = Repository.open(where)
            if repository.locate(reference) is None:
                continue
        except EncampError as error:
            progress.update(f"repository {where} is left out: {error.sentence}")
            unreachable.append(error)
            continue
        return pull(images, repository, reference, progress, force=force)
    raise _nowhere(images, reference, unreachable)


def _nowhere(
    images: store.ImageStore, reference: str, unreachable: list[EncampError]
) -> EncampError:
    if unreachable:
        first = unreachable[0]
        return EncampError(
            first.code,
            f"Image '{reference}' is not on this host. {first.sentence}",
            first.hint,
            transient=any(error.transient for error in unreachable),
        )
    asked = images.settings.repositories
    if not asked:
        known = nearest(reference, (image.name for image in images.ls() if image.name))
        return EncampError(
            Code.INPUT_MISSING,
            f"There is no image '{reference}' on this host, and no repository is configured.",
            f"{known} See 'encamp image ls', or name a repository with --from.".lstrip(),
        )
    return EncampError(
        Code.INPUT_MISSING,
        f"Image '{reference}' is neither on this host nor in {', '.join(asked)}.",
        "See 'encamp image ls' and 'encamp image ls --from REPOSITORY'.",
    )


def fetch_made_by(images: store.ImageStore, recipe: Recipe, progress: Progress) -> Image | None:
    """The image that somebody else has built by this recipe, if a repository has it."""
    if is_local(recipe):
        return None
    check_version(images.home, recipe)
    wanted = recipe.digest()
    for where in images.settings.repositories:
        try:
            digest = _made_by(Repository.open(where, HURRY), wanted)
            if digest is None:
                continue
            image = pull(images, Repository.open(where), digest, progress)
            name_image(images.home, Link(digest, wanted), recipe.name, recipe.version)
            return msgspec.structs.replace(image, name=recipe.name)
        except EncampError as error:
            if error.code is Code.NO_ROOM:
                raise
            progress.update(f"building it here: {error.sentence}")
    return None


def _made_by(repository: Repository, recipe: str) -> str | None:
    """The newest image that this recipe has made."""
    index = repository.index()
    made = [digest for digest, entry in index.images.items() if entry.recipe == recipe]
    for digest in sorted(made, key=lambda digest: -index.images[digest].created):
        # The index only leads here; what counts is what the image itself says.
        described = repository.described(digest)
        if described is not None and described.record.recipe == recipe:
            return digest
    return None


def pull(
    images: store.ImageStore,
    repository: Repository,
    reference: str,
    progress: Progress,
    *,
    force: bool = False,
) -> Image:
    """Bring an image and what it is a layer over to this host, as far as they are not here.
    `force` lets it take a version's name from another image."""
    check_reference(reference)
    home = images.home.prepare()
    progress.update(f"asking {repository.where} for '{reference}'")
    located = repository.locate(reference)
    if located is None:
        raise repository.missing(reference)
    digest, named = located
    if named is not None:
        check_name(images, repository, reference, named)
        if not force:
            for tag in {reference, *tags(name_of(reference), named.link.version)}:
                check_free(home, tag, digest)
    missing = repository.lineage(digest, lambda other: usable(images, other))
    if images.settings.signatures.required:
        for described in missing:
            what = f"Image {described.record.digest[:12]} of {repository.where}"
            comment = signature.image_comment(described.record.digest)
            signature.verify(
                what, described.data, described.signature, images.settings.signatures, comment
            )
    image = pull_lineage(images, repository, digest, missing, reference, progress)
    if named is None:
        return image
    link = Link(digest, named.link.recipe, named.link.version, pushed=named.link.pushed)
    if version_of(reference):
        link_name(home, reference, link)
        _name_first(images, name_of(reference), link)
    else:
        name_image(home, link, reference, link.version)
    return msgspec.structs.replace(image, name=reference, recipe=link.recipe)


def _name_first(images: store.ImageStore, name: str, link: Link) -> None:
    """The first version that comes to a host has the plain name, too: environments ask for that.
    Where signatures are required, nobody vouches for what that name stands for."""
    taken = any(read_link(home, name) is not None for home in images.homes)
    if not taken and not images.settings.signatures.required:
        link_name(images.home, name, link)


def pull_lineage(
    images: store.ImageStore,
    repository: Repository,
    digest: str,
    missing: list[Described],
    reference: str,
    progress: Progress,
) -> Image:
    """Pull one layer after the other, the lowest first; nobody else makes room of them."""
    with ExitStack() as held:
        parent = missing[-1].record.parent if missing else digest
        image = None if parent is None else held_image(images, parent, held)
        for described in reversed(missing):
            pull_one(images, repository, described, reference, progress)
            image = held_image(images, described.record.digest, held)
        assert image is not None
        return image


def held_image(images: store.ImageStore, digest: str, held: ExitStack) -> Image:
    image = images.by_digest(digest)
    if image is None:
        raise EncampError(
            Code.WRONG_STATE,
            f"Image {digest[:12]} was removed while it was being pulled.",
            "Try again.",
            transient=True,
        )
    held.enter_context(images.using(image))
    return image


def usable(images: store.ImageStore, digest: str) -> bool:
    """Whether it is on this host, whole, and signed if it has to be."""
    image = images.by_digest(digest)
    if image is None:
        return False
    try:
        images.check(image)
    except EncampError as error:
        if error.code not in (Code.CORRUPT, Code.UNTRUSTED):
            raise
        return False
    return True


def check_name(images: store.ImageStore, repository: Repository, tag: str, named: Named) -> None:
    """Where signatures are required a name has one as well, and never goes back: an old image is
    signed just as well as the one that replaced it for a reason."""
    if not images.settings.signatures.required:
        return
    what = f"The name '{tag}' of {repository.where}"
    comment = signature.name_comment(tag)
    signature.verify(what, named.data, named.signature, images.settings.signatures, comment)
    known = read_link(images.home, tag)
    if known is not None and known.pushed > named.link.pushed:
        raise EncampError(
            Code.UNTRUSTED,
            f"{what} stands for an older image than the one this host has had from there.",
            f"Somebody may have put it back. If that is right, first remove the name here:"
            f" 'encamp image untag {tag}'.",
        )


def pull_one(
    images: store.ImageStore,
    repository: Repository,
    described: Described,
    reference: str,
    progress: Progress,
) -> None:
    """Pull one image without what it is a layer over, unless somebody else just does."""
    home, record = images.home, described.record
    total = sum(file.size for file in record.files)

    def waiting() -> tuple[str, float | None]:
        done = transfer.arrived(home, record.digest, record.files)
        said = f"waiting: another encamp is pulling '{reference}'"
        return f"{said}{FIGURES}{amount(done, total)}", done / max(1, total)

    with locked(home, f"pull-{record.digest}", waiting, progress):
        if usable(images, record.digest):
            return
        clear_cache(home)
        clearing.clear_partials(home, time.time() - clearing.PARTIALS_KEPT, record.digest)
        keep = {record.digest, *([record.parent] if record.parent else ())}
        to_write = total - transfer.arrived(home, record.digest, record.files)
        purpose = f"pull '{reference}'"
        eviction.make_room(images, total, purpose, keep, progress, to_write=to_write)
        meter = Meter(progress, f"pulling '{reference}' from {repository.where}", total)
        for file in record.files:
            path = f"images/{record.digest}/{file.name}"
            target = transfer.partial(home, record.digest, file)
            transfer.receive(repository.medium, path, file, target, meter)
        meter.say(f"putting '{reference}' into place")
        put_in_place(images, repository, described)


def put_in_place(images: store.ImageStore, repository: Repository, described: Described) -> None:
    home, record = images.home, described.record
    with workplace(home, f"pull-{record.digest[:12]}") as work:
        result = work.directory / "result"
        result.mkdir()
        (result / RECORD).write_bytes(described.data)
        if described.signature is not None:
            (result / SIGNATURE).write_bytes(described.signature)
        origin = Origin(repository.where, time.time())
        (result / ORIGIN).write_bytes(msgspec.json.encode(origin))
        for file in record.files:
            source = transfer.partial(home, record.digest, file)
            source.rename(result / file.name)
            transfer.note(source).unlink(missing_ok=True)
            refusal = disk_refusal(result / file.name)
            if refusal is not None:
                raise wrong(repository.where, f"{file.name} of {record.digest[:12]} {refusal}")
        place(images, work, result, record)
