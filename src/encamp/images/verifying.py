"""Reading images again, whole, on this host or in a repository, to see that they are as made."""

from __future__ import annotations

import hashlib

from encamp import programs
from encamp.images import signature, store
from encamp.images.content import CHUNK, check_content
from encamp.images.records import look
from encamp.images.repository import Described, Repository
from encamp.images.transfer_meter import Meter
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.progress import Progress


def verify_image(images: store.ImageStore, image: Image, progress: Progress) -> None:
    """Read every file of an image and of what it is a layer over, whatever was found before."""
    for part in image.lineage:
        looks = look(part)
        check_content(part, looks, progress)
        signatures = images.settings.signatures
        signed = signature.read_signature(part.directory) is not None
        if (images.foreign(part, looks) and signatures.required) or (signed and signatures.keys):
            signature.check_image(part, signatures, known="")


def verify_repository(
    images: store.ImageStore, repository: Repository, digest: str, progress: Progress
) -> None:
    """Read every file of an image in a repository, without keeping any."""
    for described in repository.lineage(digest, lambda _: False):
        signatures = images.settings.signatures
        if signatures.required or (described.signature is not None and signatures.keys):
            what = f"Image {described.record.digest[:12]} of {repository.where}"
            comment = signature.image_comment(described.record.digest)
            signature.verify(what, described.data, described.signature, signatures, comment)
        _read_all(repository, described, progress)


def _read_all(repository: Repository, described: Described, progress: Progress) -> None:
    record = described.record
    what = f"reading {record.name or record.digest[:12]} in {repository.where}"
    meter = Meter(progress, what, sum(file.size for file in record.files))
    for file in record.files:
        path = f"images/{record.digest}/{file.name}"
        digest, done = hashlib.sha256(), 0
        with repository.medium.open(path) as incoming:
            while incoming is not None and (piece := incoming.read(CHUNK)):
                programs.refuse_when_stopping()
                digest.update(piece)
                done += len(piece)
                meter.add(len(piece))
                if done > file.size:
                    break
        if done != file.size or digest.hexdigest() != file.sha256:
            raise EncampError(
                Code.CORRUPT,
                f"{path} in {repository.where} is damaged or missing: {done} bytes with SHA-256"
                f" {digest.hexdigest()} where {file.size} with {file.sha256} were expected.",
                "Push the image again with --force from a host that has it.",
            )
