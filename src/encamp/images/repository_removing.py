"""Taking an image out of a repository: its names first, then its record, then its files."""

from __future__ import annotations

import msgspec

from encamp.images.records import RECORD, SIGNATURE
from encamp.images.repository import INDEX, SIGNED, Repository
from encamp.images.repository_records import Index
from encamp.model.errors import Code, EncampError
from encamp.progress import Progress


def remove(repository: Repository, reference: str, progress: Progress) -> tuple[str, list[str]]:
    """Remove an image with all its names; its digest and what those were."""
    medium = repository.medium
    located = repository.locate(reference)
    if located is None:
        raise repository.missing(reference)
    digest = located[0]
    with medium.changing(progress):
        index = repository.index()
        over = [other for other, entry in index.images.items() if entry.parent == digest]
        if over:
            known = [tag for other in over for tag in index.tags(other)]
            raise EncampError(
                Code.WRONG_STATE,
                f"Image '{reference}' of {repository.where} is what"
                f" {', '.join(known) or over[0][:12]} is a layer over.",
                "Remove that first.",
            )
        names = sorted({*index.tags(digest), *([reference] if located[1] else [])})
        for tag in names:
            medium.remove(f"names/{tag}.json")
            medium.remove(f"names/{tag}.json{SIGNED}")
        left = Index(
            {other: entry for other, entry in index.images.items() if other != digest},
            {tag: named for tag, named in index.names.items() if tag not in names},
        )
        medium.write(INDEX, msgspec.json.format(msgspec.json.encode(left)))
        described = repository.described(digest)
        files = [file.name for file in described.record.files] if described else []
        # Whoever reads the record finds the files: so it goes before them.
        for name in (RECORD, SIGNATURE, *files):
            medium.remove(f"images/{digest}/{name}")
    return digest, names
