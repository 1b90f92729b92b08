"""The requests of a site that are not over, as others see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from encamp.core.placement.books import Books
from encamp.core.placement.explaining import waiting_reason
from encamp.model.request import RequestRecord


class Records(Mapping[str, RequestRecord]):
    """Requests that are not over, each with the reason for which it waits now."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def __getitem__(self, request: str) -> RequestRecord:
        entry = self._books.entries[request]
        if entry.line is None:
            return entry.record
        return msgspec.structs.replace(entry.record, reason=waiting_reason(self._books, entry))

    def __iter__(self) -> Iterator[str]:
        return iter(self._books.entries)

    def __len__(self) -> int:
        return len(self._books.entries)

    def __contains__(self, request: object) -> bool:
        return request in self._books.entries
