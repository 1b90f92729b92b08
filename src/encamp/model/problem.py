"""What went wrong, as the HTTP API tells it, whatever it was."""

from __future__ import annotations

import msgspec

from encamp.model.errors import Code, EncampError

CODES = {code.name.lower(): code for code in Code}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, whatever it was."""

    code: str
    """In one word, for programs."""
    sentence: str
    """For a person."""
    hint: str = ""
    """What to do about it."""
    transient: bool = False
    """Can trying the same again help?"""
    detail: str = ""
    """What another program said."""

    @classmethod
    def of(cls, error: EncampError) -> Problem:
        return cls(
            code=error.code.name.lower(),
            sentence=error.sentence,
            hint=error.hint,
            transient=error.transient,
            detail=error.detail,
        )

    def error(self) -> EncampError:
        """A word that a newer manager says and that is not known here is a mistake of its."""
        return EncampError(
            CODES.get(self.code, Code.INTERNAL),
            self.sentence,
            self.hint,
            transient=self.transient,
            detail=self.detail,
        )
