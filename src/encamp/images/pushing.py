"""Pushing images to repositories: what is missing there, files before records, names last."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

import msgspec

from encamp.images import store
from encamp.images.records import RECORD, SIGNATURE, Link, links, read_record
from encamp.images.reference import check_tag, is_tag, name_of, version_of
from encamp.images.repository import INDEX, SIGNED, Repository
from encamp.images.repository_records import Entry, Index
from encamp.images.signature import Signer, image_comment, name_comment, read_signature
from encamp.images.transfer_meter import Meter
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.size import format_bytes
from encamp.progress import Progress


class Pushed(msgspec.Struct, frozen=True):
    digest: str
    names: tuple[str, ...]
    sent: int
    """Bytes of files that were not there yet."""


def push(
    images: store.ImageStore,
    repository: Repository,
    reference: str,
    progress: Progress,
    *,
    tags: Collection[str] = (),
    signer: Signer | None = None,
    force: bool = False,
) -> Pushed:
    """Put an image, and what it is a layer over, into a repository under these names, or under
    those that it has here. `force` replaces what is there."""
    image = images.get(reference)
    with images.using(image):
        images.check(image, progress)
        names = sorted(check_tag(tag) for tag in tags) or names_here(images, image, reference)
        progress.update(f"asking {repository.where} what it has")
        if not force:
            check_versions(repository, image, names)
        with repository.medium.sending(progress) as alone:
            lacking = [part for part in image.lineage if force or not is_there(repository, part)]
            sent = send_all(repository, lacking, reference, progress, alone=alone, anew=force)
            for part in image.lineage:
                sign(repository, part, signer)
        with repository.medium.changing(progress):
            # Others may have pushed or removed since.
            if not force:
                check_versions(repository, image, names)
            check_lineage(repository, image)
            for tag in names:
                put_name(repository, image, tag, names, signer)
            progress.update(f"writing the index of {repository.where}")
            put_index(repository, image, names)
    return Pushed(image.digest, tuple(names), sent)


def names_here(images: store.ImageStore, image: Image, reference: str) -> list[str]:
    """All names of the image; when it was asked for by one, with its versions only."""
    known = {
        tag
        for home in images.homes
        for tag, link in links(home).items()
        if link.digest == image.digest
    }
    if reference in known and is_tag(reference):
        return sorted(tag for tag in known if name_of(tag) == name_of(reference))
    return sorted(known)


def check_versions(repository: Repository, image: Image, names: Collection[str]) -> None:
    """A version stays what it is; only a name without one moves on."""
    for tag in names:
        there = repository.named(tag) if version_of(tag) else None
        if there is not None and there.link.digest != image.digest:
            raise EncampError(
                Code.WRONG_STATE,
                f"{repository.where} has another image as '{tag}' ({there.link.digest[:12]}).",
                "Push this one under another version (--as NAME:VERSION), or replace that one"
                " with --force.",
            )


def check_lineage(repository: Repository, image: Image) -> None:
    """What is named has to be there, with all that it is a layer over."""
    for part in image.lineage:
        paths = {f"images/{part.digest}/{file.name}": file.size for file in part.files}
        if not is_there(repository, part) or any(
            repository.medium.size(path) != size for path, size in paths.items()
        ):
            raise EncampError(
                Code.WRONG_STATE,
                f"Image {part.digest[:12]} was removed from {repository.where} while it was being"
                " pushed.",
                "Push it again.",
                transient=True,
            )


def is_there(repository: Repository, image: Image) -> bool:
    return repository.described(image.digest) is not None


def send_all(
    repository: Repository,
    lacking: list[Image],
    reference: str,
    progress: Progress,
    *,
    alone: bool,
    anew: bool,
) -> int:
    """Send the files of these images, also those that seem to be there if they are sent `anew`;
    then their records, with which they begin to exist."""
    medium = repository.medium
    files = [
        (part, file, f"images/{part.digest}/{file.name}")
        for part in reversed(lacking)
        for file in part.files
    ]
    if not anew:
        # Whole files of a push that broke off.
        files = [entry for entry in files if medium.size(entry[2]) != entry[1].size]
    total = sum(file.size for _, file, _ in files)
    room = medium.room()
    if room is not None and room < total:
        raise EncampError(
            Code.DISK_FULL,
            f"Repository {repository.where} has no room for '{reference}':"
            f" {format_bytes(total)} are needed, {format_bytes(room)} are free.",
            "Make room there; nothing was written.",
        )
    meter = Meter(progress, f"pushing '{reference}' to {repository.where}", total)
    sent: list[str] = []
    try:
        for part, file, path in files:
            medium.send(path, part.directory / file.name, meter)
            sent.append(path)
        for part in reversed(lacking):
            path = f"images/{part.digest}/{RECORD}"
            medium.write(path, (part.directory / RECORD).read_bytes())
            sent.append(path)
    except BaseException:
        # Whole files do no harm, and others may be about to rely on them; but on a full disk
        # nothing is to be left.
        for path in reversed(sent if alone else []):
            with contextlib.suppress(EncampError):
                medium.remove(path)
        raise
    return total


def sign(repository: Repository, part: Image, signer: Signer | None) -> None:
    """Put the signature of an image beside its record; a new one if we can make it.

    What is signed is the record that is there: the same image may have been made twice."""
    described = repository.described(part.digest)
    assert described is not None, "it was just put there"
    if signer is not None:
        signature: bytes | None = signer.sign(described.data, image_comment(part.digest))
    elif described.signature is not None:
        return
    else:
        same = described.data == (part.directory / RECORD).read_bytes()
        signature = read_signature(part.directory) if same else None
    if signature is not None:
        repository.medium.write(f"images/{part.digest}/{SIGNATURE}", signature)


def put_name(
    repository: Repository,
    image: Image,
    tag: str,
    names: Collection[str],
    signer: Signer | None,
) -> None:
    versions = [version_of(other) for other in names if name_of(other) == name_of(tag)]
    version = version_of(tag) or next((one for one in versions if one), None)
    link = Link(image.digest, image.recipe, version, tag, time.time())
    data = msgspec.json.encode(link)
    path = f"names/{tag}.json"
    # In this order, whoever reads in between sees a signature that does not fit, or none; never a
    # good one of something else.
    if signer is None:
        # One that cannot be removed does not fit any more, which is as good.
        with contextlib.suppress(EncampError):
            repository.medium.remove(path + SIGNED)
    else:
        repository.medium.write(path + SIGNED, signer.sign(data, name_comment(tag)))
    repository.medium.write(path, data)


def put_index(repository: Repository, image: Image, names: Collection[str]) -> None:
    known = repository.index()
    entries = {}
    for part in image.lineage:
        record = read_record(part.directory)
        assert record is not None, "it was read a moment ago, and is being held"
        entries[part.digest] = Entry(
            recipe=record.recipe,
            size=part.size,
            created=record.created,
            kernel_release=record.kernel_release,
            parent=record.parent,
        )
    index = Index(
        {**known.images, **entries}, {**known.names, **dict.fromkeys(names, image.digest)}
    )
    repository.medium.write(INDEX, msgspec.json.format(msgspec.json.encode(index)))
