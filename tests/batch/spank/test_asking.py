"""The plug-in asks Slurm's controller what a job's steps are for, more than once if it has to."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import encamp.batch

SOURCES = Path(encamp.batch.__file__).with_name("spank")

PRETENDED = """
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static int failures, error;

int slurm_load_job(job_info_msg_t **found, uint32_t id, uint16_t flags)
{
    static slurm_job_info_t job;
    static job_info_msg_t all;

    (void)flags;
    if (failures-- > 0)
        return SLURM_ERROR;
    job.job_id = id;
    job.comment = "env:mini";
    all.record_count = 1;
    all.job_array = &job;
    *found = &all;
    return SLURM_SUCCESS;
}

int slurm_get_errno(void) { return error; }

void slurm_free_job_info_msg(job_info_msg_t *found) { (void)found; }

int main(int count, char **words)
{
    char name[NAME_LIMIT + 1];

    failures = count > 1 ? atoi(words[1]) : 0;
    error = count > 2 ? ESLURM_INVALID_JOB_ID : SLURM_COMMUNICATIONS_CONNECTION_ERROR;
    if (name_of_job(17, name) < 0)
        strcpy(name, "unknown");
    printf("%s after %d\\n", name, failures);
    return 0;
}
"""
"""A controller that fails so many times, with an error that stays or does not."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("asking") / "asking"
    source = made.with_suffix(".c")
    source.write_text(PRETENDED)
    parts = [SOURCES / "job.c", SOURCES / "name.c", source]
    words: list[str | Path] = ["gcc", "-std=gnu11", "-DPAUSE_MS=2", f"-I{SOURCES}", "-o", made]
    subprocess.run([*words, *parts], check=True)
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["0"], "mini after -1\n"),
        (["5"], "mini after -1\n"),
        (["100"], "unknown after 92\n"),
        (["100", "for good"], "unknown after 99\n"),
    ],
)
def test_a_controller_that_does_not_answer_is_asked_again(
    program: Path, words: list[str], said: str
) -> None:
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    assert done.stdout == said
