"""The exit codes are a promise to scripts."""

from __future__ import annotations

from encamp.model.errors import Code, EncampError


def test_exit_codes_stay_clear_of_those_of_commands_and_signals() -> None:
    taken = {0, 1, 2, 126, 127, *range(128, 256)}
    assert not taken & {code.value for code in Code}


def test_error_reads_as_a_sentence_and_what_to_do() -> None:
    error = EncampError(Code.USAGE, "This is wrong.", "Do that.")
    assert str(error) == "This is wrong. Do that."
    assert str(EncampError(Code.USAGE, "This is wrong.")) == "This is wrong."
