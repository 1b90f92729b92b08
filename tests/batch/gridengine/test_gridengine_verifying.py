"""The script that Grid Engine's master asks about every job, by the protocol that they speak."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.batch.gridengine.camping import Camp, Person
from tests.conftest import ROOT

JSV = ROOT / "src" / "encamp" / "batch" / "gridengine" / "jsv.bash"
SHIPPED = ROOT / "src" / "encamp" / "describe" / "environments.yaml"
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
        self.complaints = directory / "complaints"
        with self.complaints.open("w") as complaints:
            self.process = subprocess.Popen(
                ["/bin/bash", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
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
        assert self.complaints.read_text() == ""  # The master would refuse the job for them.
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


def test_request_becomes_a_variable_and_is_left(verify: Verifier) -> None:
    said = verify(l_hard="h_rt=60,env=debian12")
    assert said == [told("debian12"), CORRECT]
    # As it was to be asked for before.
    said = verify(l_hard="env=debian12|any")
    assert said == [told("debian12"), "PARAM l_hard env=debian12", CORRECT]


@pytest.mark.parametrize("rules", ["=environments\tmini\n=nodes\tbig\tsmall\nbig\t-\tcms\n"])
def test_job_for_a_worker_node_fits_no_other_host(verify: Verifier) -> None:
    """And asks for what nobody else does."""
    small, big = (f"PARAM l_hard env={name},encamp_node={name}" for name in ("small", "big"))
    assert verify(l_hard="env=small") == [told("small"), small, CORRECT]
    assert verify(l_hard="env=big|any") == [told("big"), big, CORRECT]
    assert verify(P="cms") == [told("big"), big, CORRECT]
    assert verify(l_hard="env=mini") == [told("mini"), CORRECT]
    assert verify(l_hard="env=other")[0].startswith("RESULT STATE REJECT There is no environment")
    # What it has changed before, it leaves as it is.
    assert verify(l_hard="env=big,encamp_node=big") == [told("big"), CORRECT]
    assert verify(l_hard="env=big,encamp_node=small") == [told("big"), big, CORRECT]


@pytest.mark.parametrize("rules", ["=environments\tmini\n=nodes\tbig\n"])
def test_worker_node_need_not_be_there_when_its_job_is_submitted(verify: Verifier) -> None:
    """Whatever Grid Engine is to find out then: it may come for that job."""
    for check in ("e", "w"):
        assert "PARAM w n" in verify(l_hard="env=big", w=check)
        assert verify(l_hard="env=mini", w=check) == [told("mini"), CORRECT]
    assert "PARAM w n" not in verify(l_hard="env=big", w="n")


@pytest.mark.parametrize("rules", ["=environments\tmini\n=nodes\tbig\n"])
def test_other_jobs_cannot_ask_for_worker_nodes(verify: Verifier) -> None:
    assert verify(l_hard="encamp_node=TRUE,h_rt=60")[1] == "PARAM l_hard h_rt=60"
    assert verify(l_hard="encamp_node=TRUE,env=mini")[1] == "PARAM l_hard env=mini"
    assert verify(l_hard="env=mini,encamp_node=big")[1] == "PARAM l_hard env=mini"


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
    assert verify() == [told("mini"), "PARAM l_hard env=mini", CORRECT]
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
    for name, meant in (("Mini", "mini"), ("oth", "other")):
        [said] = verify(l_hard=f"env={name}")
        assert f"'{name}' here. Did you mean '{meant}'? There are: mini, other." in said
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


DESCRIBED = """\
# Environments of this site.
---
tools:  # mini and more
  extends: mini
other: {extends: tools}

late:
  summary: |
    Lines inside:
    are no names: of environments
"""


@pytest.fixture
def described(tmp_path: Path) -> Path:
    return tmp_path / "environments.yaml"


@pytest.fixture
def unlisted(tmp_path: Path, described: Path) -> Iterator[Verifier]:
    """Of a site whose batch.yaml does not list environments."""
    verifier = Verifier(tmp_path, f"=descriptions\t{SHIPPED}\t{described}\n=nodes\tbig\n")
    yield verifier
    assert verifier.end() == 0


def test_environment_that_nobody_describes_is_refused(unlisted: Verifier, described: Path) -> None:
    described.write_text(DESCRIBED)
    for name in ("tools", "other", "late", "mini", "big"):
        assert unlisted(l_hard=f"env={name}")[-1] == CORRECT
    [said] = unlisted(l_hard="env=nosuch")
    assert "REJECT There is no environment 'nosuch' here. There are: mini, debian12, " in said
    # A change counts at once.
    described.write_text(f"{DESCRIBED}nosuch: {{extends: mini}}")
    assert unlisted(l_hard="env=nosuch")[-1] == CORRECT


@pytest.mark.parametrize(
    "text",
    [
        None,
        "  indented:\n    extends: mini\n",
        '"quoted": {extends: mini}\n',
        "{braces: {extends: mini}}\n",
        "[ini]\nextends = mini\n",
        "plain:\n  extends: mini\n? asked\n: {extends: mini}\n",
    ],
)
def test_host_decides_where_it_is_not_certain_what_is_described(
    unlisted: Verifier, described: Path, text: str | None
) -> None:
    if text is None:
        described.mkdir()
    else:
        described.write_text(text)
    assert unlisted(l_hard="env=nosuch")[-1] == CORRECT


@pytest.mark.parametrize(
    "rules",
    ["=environments\tmini\tlarge-node\tslurm-node\n=nodes\tlarge-node\n=other_nodes\tslurm-node\n"],
)
def test_environments_of_worker_nodes_are_not_listed_and_others_nodes_are_refused(
    verify: Verifier,
) -> None:
    [said] = verify(l_hard="env=nosuch")
    assert said.endswith("There is no environment 'nosuch' here. There are: mini.")
    [said] = verify(l_hard="env=large")
    assert "Did you mean 'large-node'? There are: mini." in said
    [said] = verify(l_hard="env=slurm-node")
    assert "REJECT Machines of environment 'slurm-node' are worker nodes of Slurm" in said
    assert "'sbatch -C slurm-node'" in said
    assert verify(l_hard="env=large-node")[-1] == CORRECT


@pytest.mark.parametrize("rules", [f"=memory\t{176 << 20}\n=nodes\tbig\n"])
def test_job_whose_memory_is_limited_to_less_than_a_machine_needs_is_refused(
    verify: Verifier,
) -> None:
    for little in ("50M", "50m", "175M", "1000K", "52428800", "0050M"):
        [said] = verify(l_hard=f"h_vmem={little},env=mini")
        assert "REJECT A machine needs at least 176 MiB of memory" in said
        assert "h_vmem=176M or more" in said
    for enough in ("176M", "1G", "200000K", "1.5G", "INFINITY", "184549376"):
        assert verify(l_hard=f"env=mini,h_vmem={enough}")[-1] == CORRECT
    # Each slot has as much, and a worker node no machine around the job.
    assert verify(l_hard="env=mini,h_vmem=50M", pe_name="smp", pe_min="4")[-1] == CORRECT
    for other in ("h_vmem=50M", "env=none,h_vmem=50M", "env=big,h_vmem=50M"):
        assert verify(l_hard=other)[-1] == CORRECT


HOSTILE = [
    "BEGIN",
    "PARAM l_hard env=other\nBEGIN",
    "START",
    "QUIT",
    "PARAM USER root",
    "BEGIN\nSTART",
    "BEGIN\nSTART\nBEGIN",
    "QUIT\nBEGIN\nQUIT",
]
REFUSED = "RESULT STATE REJECT Some of the job's words have line ends"


def submit_hostile(verifier: Verifier, injected: str) -> list[str]:
    verifier.tell("START")
    verifier.hear("STARTED")
    said = ("PARAM USER alice", f"PARAM CMDARG0 x\n{injected}", "PARAM l_hard env=mini", "BEGIN")
    verifier.tell(*said)
    return verifier.hear("RESULT")


@pytest.mark.parametrize("injected", HOSTILE)
def test_a_job_that_speaks_as_the_master_is_refused_and_the_next_gets_its_own_answer(
    verify: Verifier, injected: str
) -> None:
    """The master passes line ends on as they are. What was said twice would be taken for what is
    said of the next job."""
    for _ in range(2):
        [said] = submit_hostile(verify, injected)
        assert said.startswith(REFUSED)
        assert verify(l_hard="env=other")[0] == told("other")
        assert verify.begun == ["STARTED"]


@pytest.mark.parametrize("injected", ["x", "START\nPARAM USER root\nBEGIN", "QUIT\nBEGIN"])
def test_what_is_left_of_a_job_that_was_answered_gets_no_answer(
    verify: Verifier, injected: str
) -> None:
    """A master that pauses after what only seems to be the end of a job says the rest later."""
    verify.tell("START")
    verify.hear("STARTED")
    verify.tell("PARAM USER alice", "PARAM CMDARG0 x\nBEGIN")
    assert verify.hear("RESULT")[-1] == CORRECT
    verify.tell(f"PARAM CMDARG1 x\n{injected}", "PARAM l_hard env=mini", "BEGIN")
    assert verify(l_hard="env=other")[0] == told("other")
    assert verify.begun == ["STARTED"]


def test_line_ends_in_words_of_a_job_are_no_harm(verify: Verifier) -> None:
    assert verify(CMDARG0="echo a\necho b", l_hard="env=mini")[0] == told("mini")


def test_verifier_that_the_site_had_is_asked_first(tmp_path: Path) -> None:
    own, log = tmp_path / "own", tmp_path / "log"
    own.write_text(SITES_OWN.format(log=log))
    own.chmod(0o755)
    verify = Verifier(tmp_path, sites_own=str(own))
    said = verify()
    assert verify.begun == ["SEND ENV", "STARTED"]
    wanted = ["PARAM l_hard h_rt=60,env=other", told("other")]
    assert said == [*wanted, CORRECT]
    assert verify(P="forbidden") == ["RESULT STATE REJECT not today"]
    assert verify.end() == 0
    heard = log.read_text().splitlines()
    assert heard.count("BEGIN") == 2
    assert "PARAM USER alice" in heard


def test_job_waits_when_the_sites_own_verifier_is_broken(tmp_path: Path) -> None:
    verify = Verifier(tmp_path, sites_own="/bin/false")
    assert verify()[-1].startswith("RESULT STATE REJECT_WAIT The site's own job verifier")
    assert verify.end() == 0


NUMBERED = """#!/bin/bash
echo $$ >>{log}
while IFS= read -r line; do
    case $line in
        START) user=; echo STARTED ;;
        'PARAM USER '*) user+=${{line#PARAM USER }} ;;
        BEGIN) echo "RESULT STATE REJECT $user" ;;
        QUIT) exit ;;
    esac
done
"""


@pytest.mark.parametrize("injected", HOSTILE)
def test_the_sites_own_verifier_is_begun_anew_after_what_it_should_not_have_heard(
    tmp_path: Path, injected: str
) -> None:
    own, log = tmp_path / "own", tmp_path / "log"
    own.write_text(NUMBERED.format(log=log))
    own.chmod(0o755)
    verify = Verifier(tmp_path, sites_own=str(own))
    assert verify(USER="bob") == ["RESULT STATE REJECT bob"]
    [said] = submit_hostile(verify, injected)
    assert said.startswith(REFUSED)
    assert verify(USER="carol") == ["RESULT STATE REJECT carol"]
    assert verify.begun == ["STARTED"]
    assert verify.end() == 0
    begun = [int(line) for line in log.read_text().split()]
    assert len(begun) == 2
    assert not any(psutil.pid_exists(pid) for pid in begun)


DEAF = """#!/bin/bash
echo $$ >>{log}
while :; do
    read -r line
    case $line in
        START) echo STARTED ;;
        BEGIN) echo 'RESULT STATE ACCEPT' ;;
        '') echo 'ERROR unknown command' ;;
    esac
done
"""
"""It does not look for the end of what it reads, as scripts with Grid Engine's own library."""


@pytest.mark.parametrize("number", [0, signal.SIGTERM, signal.SIGKILL])
def test_the_sites_own_verifier_ends_with_the_master(tmp_path: Path, number: int) -> None:
    own, log = tmp_path / "own", tmp_path / "log"
    own.write_text(DEAF.format(log=log))
    own.chmod(0o755)
    verify = Verifier(tmp_path, sites_own=str(own))
    assert verify()[-1] == CORRECT
    site = psutil.Process(int(log.read_text()))
    try:
        if number:
            verify.process.send_signal(number)
        verify.process.stdin.close()  # type: ignore[union-attr]
        verify.process.stdout.close()  # type: ignore[union-attr]
        verify.process.wait(timeout=60)
        site.wait(timeout=20)
    finally:
        with suppress(psutil.NoSuchProcess):
            site.kill()


# ── on a real master ─────────────────────────────────────────────────────────────────────────────


def verifiers(camp: Camp) -> set[int]:
    """Each of the master's threads begins one when it needs it."""
    assert camp.site.qmaster is not None
    below = psutil.Process(camp.site.qmaster.pid).children(recursive=True)
    return {each.pid for each in below if "gridengine-jsv" in " ".join(each.cmdline())}


def environment_of(camp: Camp, person: Person, name: str) -> str:
    """What a new job of that person is told, which asks for that environment."""
    id = camp.submit(person, "-h", "-l", f"env={name}", script="true\n")
    shown = camp.site.run(["qstat", "-j", id]).stdout
    camp.site.run(["qdel", id])
    [told] = re.findall(r"ENCAMP_ENVIRONMENT=(\w+)", shown)
    return str(told)


@pytest.mark.site
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("gridengine")
def test_nobody_waits_because_of_a_job_that_speaks_as_the_master(
    camp: Camp, alice: Person, bob: Person
) -> None:
    assert environment_of(camp, bob, "other") == "other"
    before = verifiers(camp)
    assert before
    words: list[tuple[str, ...]] = [
        ("-b", "y", "true", f"x\n{injected}") for injected in (*HOSTILE, "PARAM N x")
    ]
    words += [("-ac", f"a=x\n{injected}", "-b", "y", "true") for injected in ("QUIT", "BEGIN")]
    for each in words:
        said = camp.submit(alice, "-l", "env=mini", *each, check=False)
        assert "Some of the job's words have line ends" in said, each
        assert environment_of(camp, bob, "other") == "other"
        assert environment_of(camp, alice, "mini") == "mini"
    assert before <= verifiers(camp)
    messages = [path.read_text() for path in camp.site.directory.glob("spool/**/messages")]
    assert messages
    assert "got no response" not in "".join(messages)
