"""Real machines as nodes of a real Slurm: they join, are filled by it, and leave."""

from __future__ import annotations

import asyncio
import pwd
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

import msgspec
import pytest

from encamp.agent.journal import Journal
from encamp.agent.nodes import deciding, keeping
from encamp.batch.enrol.opening import open_workers
from encamp.batch.slurm.site import SlurmSite
from encamp.describe.batch_file import load_batch_settings
from encamp.home import Home
from encamp.machines.process import Process
from encamp.machines.template import MEMORY
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, State
from encamp.model.node import Node, NodeState
from tests.batch.enrol.conftest import Host, wait_until
from tests.conftest import ENCAMP
from tests.site.siting import root_only

pytestmark = [pytest.mark.site, root_only, pytest.mark.timeout(300)]

FEATURES = ("-C", "tiny-slurm&test")


def known(slurm: SlurmSite) -> list[str]:
    said = slurm.run(["scontrol", "show", "node", "-o"]).stdout
    return re.findall(r"NodeName=(\S+)", said)


def submit(slurm: SlurmSite, script: str, *words: str) -> str:
    said = slurm.run(
        ["sbatch", "--parsable", "-o", "/dev/null", *words], input=f"#!/bin/sh\n{script}\n"
    )
    return said.stdout.strip()


def state(slurm: SlurmSite, job: str) -> str:
    said = slurm.run(["scontrol", "show", "job", "-o", job]).stdout
    found = re.search(r" JobState=(\S+)", said)
    assert found is not None
    return found[1]


def is_running(slurm: SlurmSite, job: str) -> bool:
    return state(slurm, job) == "RUNNING"


def test_machine_joins_is_filled_and_leaves_when_idle(
    slurm_host: Host, slurm: SlurmSite, person: pwd.struct_passwd, site_home: Home
) -> None:
    machine = slurm_host.start()
    assert machine.name == "node-10-97-3-100"
    assert known(slurm) == [machine.name]
    who = (person.pw_uid, person.pw_gid)
    key = "/etc/munge/munge.key"
    script = f"hostname; id -u; cat {key} /proc/1/environ 2>/dev/null | wc -c; ls {key} || echo no"
    words = ["srun", "-p", "tiny", *FEATURES, "sh", "-c", script]
    said = slurm.run_as(*who, words).stdout.split()
    assert said == [machine.name, str(person.pw_uid), "0", "no"], "its key is not for jobs"

    # The key is handed to the machine, and to nothing that machines are made from.
    assert key in machine.handed
    secret = (slurm.directory / "munge" / "key").read_bytes()
    assert machine.template is not None
    memory = site_home.templates / machine.template / MEMORY
    assert not contains(memory, secret)

    # It does not end as long as somebody may need it, and nobody ends it by mistake.
    slurm_host.look()
    node = slurm_host.node(machine)
    assert node is not None
    assert node.state is NodeState.MEMBER
    for move in (slurm_host.keeper.stop, slurm_host.keeper.suspend, slurm_host.keeper.pause):
        with pytest.raises(EncampError, match="it is a node of slurm") as refused:
            asyncio.run(move(machine))
        assert refused.value.code is Code.WRONG_STATE
    wait_for_idle(slurm_host, slurm, machine)
    slurm_host.change(machine, idle=0.0)
    slurm_host.look_until_gone(machine)
    assert known(slurm) == []


def test_node_whose_lease_ends_waits_for_its_job(slurm_host: Host, slurm: SlurmSite) -> None:
    machine = slurm_host.start()
    job = submit(slurm, "while ! test -e /tmp/end; do sleep 0.1; done", *FEATURES)
    wait_until(lambda: is_running(slurm, job), "the job")
    slurm_host.change(machine, until=0.0)
    slurm_host.look()
    node = slurm_host.node(machine)
    assert node is not None
    assert (node.state, node.reason) == (NodeState.LEAVING, "its lease has ended")
    # However often one looks: it stays, and gets no other job.
    other = submit(slurm, "true", *FEATURES)
    for _ in range(3):
        slurm_host.look()
    assert is_running(slurm, job)
    assert state(slurm, other) == "PENDING"
    assert known(slurm) == [machine.name]
    slurm_host.inside(machine, "touch /tmp/end")
    slurm_host.look_until_gone(machine)
    assert state(slurm, job) == "COMPLETED"
    assert known(slurm) == []
    slurm.run(["scancel", other])


@pytest.mark.parametrize("how", ["killed", "removed by force"])
def test_job_of_a_node_that_is_lost_goes_back_to_the_queue(
    slurm_host: Host, slurm: SlurmSite, how: str
) -> None:
    machine = slurm_host.start()
    job = submit(slurm, "sleep 1000", "--requeue", *FEATURES)
    wait_until(lambda: is_running(slurm, job), "the job")
    if how == "killed":
        process = Process.holding(slurm_host.keeper.journal.directory(machine.id).lock)
        assert process is not None
        process.signal(signal.SIGKILL)
        process.close()
        slurm_host.look_until_gone(machine)
    else:
        # Nobody has to look for it any more.
        slurm_host.encamp("rm", "--force", machine.name)
    assert known(slurm) == []
    assert state(slurm, job) == "PENDING"
    assert " Restarts=1 " in slurm.run(["scontrol", "show", "job", "-o", job]).stdout
    slurm.run(["scancel", job])


def test_node_of_somebody_else_is_not_taken_for_one_that_is_gone(
    slurm_host: Host, slurm: SlurmSite, tmp_path: Path
) -> None:
    machine = slurm_host.start()
    job = submit(slurm, "sleep 1000", "--requeue", *FEATURES)
    wait_until(lambda: is_running(slurm, job), "the job")
    workers = open_workers(load_batch_settings(), "slurm")
    assert machine.link is not None
    # Another host has given the name, or has even given the address once more.
    for address in ("10.97.3.109", machine.link.address):
        with pytest.raises(EncampError, match=r"it answers, at 10\.97\.3\.100") as raised:
            workers.check(machine.name, address)
        assert raised.value.code is Code.WRONG_STATE
    # Nor by a host whose own machine of that name was not ready in time.
    assert machine.node is not None
    other = Journal(Home(tmp_path / "other").prepare())
    untold = Node(system="slurm", name=machine.name, state=NodeState.JOINING, since=0.0)
    failed = msgspec.structs.replace(
        machine, id="f" * 32, state=State.FAILED, link=None, node=untold
    )
    other.directory(failed.id).path.mkdir(parents=True)
    other.write(failed)
    asyncio.run(keeping.Nodes(other.home).look())
    assert other.all() == []
    assert machine.node.told
    assert is_running(slurm, job)
    # Slurm believes that it is there for some time.
    slurm_host.clear()
    again = slurm_host.start()
    assert again.name == machine.name
    assert " Restarts=1 " in slurm.run(["scontrol", "show", "job", "-o", job]).stdout
    slurm.run(["scancel", job])
    slurm_host.encamp("rm", "--force", again.name)
    assert known(slurm) == []


def test_node_whose_maker_was_killed_on_the_way_leaves_again(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where nobody is: joining takes as long as we like.
    settings = (site_directory / "batch.yaml").read_text()
    nowhere = settings.replace("{conf:", "{controller: '10.97.3.77:6817', conf:")
    (site_directory / "batch.yaml").write_text(nowhere)
    journal = slurm_host.keeper.journal
    maker = subprocess.Popen([ENCAMP, "batch", "start", "tiny-slurm"], stderr=subprocess.DEVNULL)
    wait_until(lambda: any(one.state is State.RUNNING for one in journal.all()), "the machine")
    maker.kill()
    maker.wait()
    (machine,) = journal.all()
    monkeypatch.setattr(keeping, "GRACE", 1e6)
    slurm_host.look()
    assert journal.read(machine.id) is not None, "somebody may be at work on it"
    monkeypatch.setattr(keeping, "GRACE", 0.0)
    monkeypatch.setattr(deciding, "UNKNOWN_FOR", 2.0)
    slurm_host.look_until_gone(machine)
    assert known(slurm) == []


def test_two_machines_run_one_job(
    slurm_host: Host, slurm: SlurmSite, person: pwd.struct_passwd
) -> None:
    names = sorted(slurm_host.start().name for _ in range(2))
    assert known(slurm) == names == ["node-10-97-3-100", "node-10-97-3-101"]
    who = (person.pw_uid, person.pw_gid)
    said = slurm.run_as(*who, ["srun", "-N2", *FEATURES, "hostname"]).stdout.split()
    assert sorted(said) == names
    job = submit(slurm, "sleep 600", "-w", names[0])
    wait_until(lambda: is_running(slurm, job), "the job")
    for name in names:
        slurm_host.encamp("batch", "leave", name)
    # No job comes any more, though no agent has looked at it yet.
    assert slurm.run(["sinfo", "-h", "-n", names[0], "-o", "%t"]).stdout.split() == ["drng"]
    slurm.run(["scancel", job])
    slurm_host.look_until(lambda: not slurm_host.keeper.journal.all())
    assert known(slurm) == []


def test_nothing_is_left_of_a_machine_that_cannot_join(
    slurm_host: Host, slurm: SlurmSite, site_directory: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong-key"
    wrong.write_bytes(b"x" * 128)
    settings = f"system: slurm\nprograms: {{conf: {slurm.conf}, munge_key: {wrong}}}\n"
    (site_directory / "batch.yaml").write_text(settings)
    with pytest.raises(EncampError, match="cannot be handed over"):
        slurm_host.start()
    assert slurm_host.keeper.journal.all() == []
    assert known(slurm) == []
    assert slurm_host.net.taps() == []


def test_job_for_a_bait_is_sent_on(slurm_host: Host, slurm: SlurmSite) -> None:
    """Whatever may be done with it: it has not begun. Others stay where they are."""
    machine = slurm_host.start()
    jobs = [
        noted_job(slurm, "mini"),
        noted_job(slurm, "mini", "--no-requeue"),
        noted_job(slurm, "mini", "-o", "/nowhere/said"),
        noted_job(slurm, "mini", "-a", "7"),
    ]
    for job in jobs:
        slurm.run(["scontrol", "release", job])
        if job == jobs[0]:
            told = lambda: "sent on" in slurm_host.inside(machine, "cat /tmp/said || :")  # noqa: E731
            wait_until(told, "a word")
        slurm_host.look_until(partial(is_sent_on, slurm, job, machine.name))
        # It would come back, were it not kept from there.
        own = noted_job(slurm, "tiny-slurm")
        slurm.run(["scontrol", "release", own])
        wait_until(lambda: slurm_host.inside(machine, "cat /tmp/ran || :"), "one of its own")
        slurm_host.look()
        assert is_running(slurm, own)
        slurm.run(["scancel", own])
        wait_for_idle(slurm_host, slurm, machine)
        assert slurm_host.inside(machine, "cat /tmp/ran; rm /tmp/ran") == "tiny-slurm\n"
    for job, requeue in zip(jobs, (1, 0, 1, 1), strict=True):
        shown = slurm.run(["scontrol", "show", "job", "-o", job]).stdout
        assert " Restarts=1 " in shown
        assert f" Requeue={requeue} " in shown
        assert f"AdminComment=env=mini; encamp: it was sent to worker node {machine.name}" in shown
        assert ("it may begin only once" in shown) == (requeue == 0)
    assert " Weight=1000 " in slurm.run(["scontrol", "show", "node", machine.name]).stdout
    # Slurm calls a job ended a moment before the last of its processes is.
    wait_until(lambda: not slurm_host.inside(machine, "pidof sleep || :"), "nothing left of them")
    slurm.run(["scancel", *jobs])


def noted_job(slurm: SlurmSite, name: str, *words: str) -> str:
    """One that is held, and wrapped and noted as job_submit.lua does it."""
    script = f"#!/usr/lib/encamp/encamp-starter slurm:{name}\n#!/bin/sh\n"
    script += f"echo {name} >>/tmp/ran; sleep 600\n"
    options = ("--parsable", "-H", "--open-mode=append", "-o", "/tmp/said")
    said = slurm.run(["sbatch", *options, *words], input=script)
    job = said.stdout.strip()
    slurm.run(["scontrol", "update", f"JobId={job}", f"AdminComment=env={name}"])
    return job


def is_sent_on(slurm: SlurmSite, job: str, node: str) -> bool:
    shown = slurm.run(["scontrol", "show", "job", "-o", job]).stdout
    return " JobState=PENDING " in shown and f" ExcNodeList={node} " in shown


def wait_for_idle(host: Host, slurm: SlurmSite, machine: Machine) -> None:
    """Also a job that is over is at its node for a moment."""
    command = ["squeue", "-h", "-w", machine.name]
    wait_until(lambda: not slurm.run(command).stdout.strip(), "the end of the job")


def contains(path: Path, wanted: bytes) -> bool:
    with path.open("rb") as file:
        kept = b""
        while piece := file.read(1 << 22):
            if wanted in kept + piece:
                return True
            kept = piece[-len(wanted) :]
    return False
