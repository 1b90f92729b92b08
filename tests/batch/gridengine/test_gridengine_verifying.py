"""The script that Grid Engine's master asks about every job, by the protocol that they speak."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT

JSV = ROOT / "src" / "encamp" / "batch" / "gridengine" / "jsv.bash"
SITES_OWN = """#!/bin/bash
while IFS= read -r line; do
    echo "$line" >>{log}
    case $line in
        START) echo 'SEND ENV'; echo STARTED ;;
        BEGIN)
            if grep -q 'PARAM P forbidden' {log}; then
                echo 'RESULT STATE REJECT not today'
            else
                echo 'PARAM l_hard h_rt=60,env=other'
                echo 'RESULT STATE CORRECT'
            fi ;;
        QUIT) exit ;;
    esac
done
"""


RULES = """# made by somebody
=environments	mini	other
none	-	-	root	-
old	-	cms	-	-
mini	-	-	alice	people
"""


class Verifier:
    """One process for many jobs, as the master has it."""

    def __init__(self, directory: Path, rules: str = "", sites_own: str = "") -> None:
        self.rules = directory / "rules"
        self.rules.write_text(rules)
        text = JSV.read_text().replace("@ENCAMP_RULES@", str(self.rules))
        script = directory / "jsv"
        script.write_text(text.replace("@ENCAMP_SITE_JSV@", sites_own))
        self.process = subprocess.Popen(
            ["/bin/bash", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def hear(self, last: str) -> list[str]:
        assert self.process.stdout is not None
        heard = []
        for line in self.process.stdout:
            heard.append(line.rstrip("\n"))
            if heard[-1].startswith(last):
                return heard
        raise AssertionError(f"It ended after {heard}.")

    def __call__(self, **params: str) -> list[str]:
        """What it says of a job."""
        self.tell("START")
        self.begun = self.hear("STARTED")
        known = {
            "CLIENT": "qmaster",
            "CMDNAME": "STDIN",
            "USER": "alice",
            "GROUP": "people",
        } | params
        self.tell(*(f"PARAM {name} {value}" for name, value in known.items()), "BEGIN")
        return self.hear("RESULT")

    def end(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.tell("QUIT")
        code = self.process.wait(timeout=60)
        self.process.stdin.close()
        self.process.stdout.close()
        return code


@pytest.fixture
def rules() -> str:
    """What the site has said."""
    return ""


@pytest.fixture
def verify(tmp_path: Path, rules: str) -> Iterator[Verifier]:
    verifier = Verifier(tmp_path, rules)
    yield verifier
    assert verifier.end() == 0


def told(environment: str) -> str:
    return f"ENV ADD ENCAMP_ENVIRONMENT {environment}"


CORRECT = "RESULT STATE CORRECT"


def test_request_becomes_a_variable_and_fits_hosts_that_offer_any(verify: Verifier) -> None:
    said = verify(l_hard="h_rt=60,env=debian12")
    assert said == [told("debian12"), "PARAM l_hard h_rt=60,env=debian12|any", CORRECT]
    # What it has changed before, it leaves as it is.
    assert verify(l_hard="env=debian12|any") == [told("debian12"), CORRECT]


@pytest.mark.parametrize("rules", ["=environments\tmini\n=nodes\tbig\tsmall\nbig\t-\tcms\n"])
def test_job_for_a_worker_node_fits_no_other_host(verify: Verifier) -> None:
    assert verify(l_hard="env=small") == [told("small"), CORRECT]
    assert verify(l_hard="env=big|any") == [told("big"), "PARAM l_hard env=big", CORRECT]
    assert verify(P="cms") == [told("big"), "PARAM l_hard env=big", CORRECT]
    assert verify(l_hard="env=mini")[1] == "PARAM l_hard env=mini|any"
    assert verify(l_hard="env=other")[0].startswith("RESULT STATE REJECT There is no environment")


def test_job_without_request_is_left_alone(verify: Verifier) -> None:
    assert verify() == [told("none"), CORRECT]
    assert verify(l_hard="h_rt=60") == [told("none"), CORRECT]
    assert verify(l_hard="env=none") == [told("none"), "PARAM l_hard", CORRECT]


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "*",
        "a b",
        "-x",
        "$(id)",
        "x" * 65,
        "",
        "a|b",
        "a`id`",
        "é",
        ".x",
        "a;b",
        "any",
        "TRUE",
    ],
)
def test_hostile_name_is_refused_with_a_sentence(verify: Verifier, name: str) -> None:
    [said] = verify(l_hard=f"env={name}")
    assert said.startswith("RESULT STATE REJECT No environment can have the name")
    assert name == "" or name not in said
    assert verify(l_hard="env=mini")[-1] == CORRECT


def test_soft_request_is_refused(verify: Verifier) -> None:
    [said] = verify(l_soft="env=mini")
    assert said.startswith("RESULT STATE REJECT An environment cannot be a soft request")


@pytest.mark.parametrize("rules", ["mini\t-\t-\t-\t-\n"])
def test_login_is_in_no_environment(verify: Verifier) -> None:
    [said] = verify(CMDNAME="NONE", l_hard="env=mini")
    assert said.startswith("RESULT STATE REJECT A login cannot be in an environment")
    assert verify(CMDNAME="NONE") == [told("none"), CORRECT]
    assert verify()[0] == told("mini")


@pytest.mark.parametrize("rules", [RULES])
def test_rules_decide_about_jobs_that_name_none(verify: Verifier) -> None:
    assert verify() == [told("mini"), "PARAM l_hard env=mini|any", CORRECT]
    assert verify(P="cms")[0] == told("old")
    assert verify(USER="root") == [told("none"), CORRECT]
    assert verify(USER="bob") == [told("none"), CORRECT]
    assert verify(GROUP="others") == [told("none"), CORRECT]
    assert verify(l_hard="env=other")[0] == told("other")
    assert verify(l_hard="env=none")[0] == told("none")
    [said] = verify(l_hard="env=old")
    assert said == (
        "RESULT STATE REJECT There is no environment 'old' here. There are: mini, other."
    )
    verify.rules.write_text("other\t-\t-\t-\t-\n")
    assert verify(USER="bob")[0] == told("other")


@pytest.mark.parametrize("rules", ["old\tlong.q\t-\t-\t-\nmini\t-\t-\t-\t-\n"])
def test_rule_about_a_queue_is_left_to_the_host_until_the_queue_is_known(verify: Verifier) -> None:
    unknown = ["ENV DEL ENCAMP_ENVIRONMENT", CORRECT]
    assert verify() == unknown
    assert verify(q_hard="*.q") == unknown
    assert verify(q_hard="long.q,short.q") == unknown
    assert verify(q_hard="long.q@node1")[0] == told("old")
    assert verify(q_hard="short.q")[0] == told("mini")


@pytest.mark.parametrize(
    "injected",
    ["BEGIN", "PARAM l_hard env=other\nBEGIN", "START", "PARAM USER root", "BEGIN\nSTART"],
)
def test_a_job_that_speaks_as_the_master_gets_no_second_answer(
    tmp_path: Path, injected: str
) -> None:
    """The master passes line ends on as they are. What was said twice would be taken for what is
    said of the next job."""
    verifier = Verifier(tmp_path)
    verifier.tell("START")
    verifier.hear("STARTED")
    said = ("PARAM USER alice", f"PARAM CMDARG0 x\n{injected}", "PARAM l_hard env=mini", "BEGIN")
    verifier.tell(*said)
    assert verifier.process.stdout is not None
    answers = [line for line in verifier.process.stdout if line.startswith(("RESULT", "STARTED"))]
    assert len(answers) <= 1
    assert verifier.process.wait(timeout=60) == 1
    with suppress(BrokenPipeError):
        verifier.process.stdin.close()  # type: ignore[union-attr]
    verifier.process.stdout.close()


def test_verifier_that_the_site_had_is_asked_first(tmp_path: Path) -> None:
    own, log = tmp_path / "own", tmp_path / "log"
    own.write_text(SITES_OWN.format(log=log))
    own.chmod(0o755)
    verify = Verifier(tmp_path, sites_own=str(own))
    said = verify()
    assert verify.begun == ["SEND ENV", "STARTED"]
    wanted = ["PARAM l_hard h_rt=60,env=other", told("other")]
    assert said == [*wanted, "PARAM l_hard h_rt=60,env=other|any", CORRECT]
    assert verify(P="forbidden") == ["RESULT STATE REJECT not today"]
    assert verify.end() == 0
    heard = log.read_text().splitlines()
    assert heard.count("BEGIN") == 2
    assert "PARAM USER alice" in heard


def test_job_waits_when_the_sites_own_verifier_is_broken(tmp_path: Path) -> None:
    verify = Verifier(tmp_path, sites_own="/bin/false")
    assert verify()[-1].startswith("RESULT STATE REJECT_WAIT The site's own job verifier")
    assert verify.end() == 0
