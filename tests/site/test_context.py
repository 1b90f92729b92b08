"""What a machine is handed at its first start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from encamp.home import Home
from encamp.images.saved import place_saved
from encamp.images.store import ImageStore
from encamp.model.errors import Code
from encamp.model.image import Defaults
from encamp.model.recipe import Compression
from encamp.progress import Silent
from encamp.workplace import workplace
from tests.conftest import ROOT, Encamp, left_behind
from tests.site.describing import Describe, describer

pytestmark = pytest.mark.site


@pytest.fixture
def describe(tmp_path: Path) -> Describe:
    return describer(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "program").write_text("#!/bin/sh\necho ran\n")
    (tree / "below" / "program").chmod(0o755)
    (tree / "link").symlink_to("below/program")
    return tree


def test_context_is_in_place_before_the_command(
    encamp: Encamp, describe: Describe, tree: Path
) -> None:
    variables = describe(f"""
    furnished:
      extends: mini
      context:
        files:
          - {{path: /etc/app/app.conf, content: "name = ${{late.machine.name}}\\n", mode: "0640",
             owner: ci, group: nogroup}}
          - {{path: /opt/tree, source: {tree}, owner: "1234"}}
        users:
          - {{name: ci, uid: 1234, shell: /bin/sh, ssh_keys: [ssh-ed25519 AAA ci@site]}}
        ssh_keys: [ssh-ed25519 BBB me@site, ssh-ed25519 CCC you@site]
        user_data: "#cloud-config\\n"
        variables: {{COLOUR: blue, SIZE: large}}
        run:
          - sleep 1000 &
          - echo "$COLOUR $(whoami) $(cat /etc/app/app.conf)" >/etc/ran
    """)
    script = """
        stat -c '%a %U %G %n' /etc/app/app.conf /opt/tree/below/program /home/ci \
            /home/ci/.ssh /home/ci/.ssh/authorized_keys /root/.ssh/authorized_keys \
            /run/encamp/user-data
        cat /etc/ran /home/ci/.ssh/authorized_keys /root/.ssh/authorized_keys
        cat /run/encamp/user-data
        echo $COLOUR $SIZE; grep ci: /etc/passwd; /opt/tree/link; pidof sleep >/dev/null
    """
    words = ("run", "-e", "furnished", "--name", "mine", "--env-var", "SIZE=small")
    done = encamp(*words, "--", "sh", "-ec", script, variables=variables)
    assert done.stdout.decode().splitlines() == [
        "640 ci nogroup /etc/app/app.conf",
        "755 ci root /opt/tree/below/program",
        "700 ci ci /home/ci",
        "700 ci ci /home/ci/.ssh",
        "600 ci ci /home/ci/.ssh/authorized_keys",
        "600 root root /root/.ssh/authorized_keys",
        "600 root root /run/encamp/user-data",
        "blue root name = mine",
        "ssh-ed25519 AAA ci@site",
        "ssh-ed25519 BBB me@site",
        "ssh-ed25519 CCC you@site",
        "#cloud-config",
        "blue small",
        "ci:*:1234:1234::/home/ci:/bin/sh",
        "ran",
    ]


def test_context_is_handed_over_once_in_a_machines_life(encamp: Encamp, describe: Describe) -> None:
    variables = describe("""
    counting:
      extends: mini
      context:
        variables: {COLOUR: blue}
        run: [echo once >>/etc/count]
    """)
    encamp("start", "-e", "counting", "--name", "counter", variables=variables)
    for move in ("pause", "resume", "suspend", "restore"):
        encamp(move, "counter")
    done = encamp("exec", "counter", "--", "sh", "-c", "cat /etc/count; echo $COLOUR")
    assert done.stdout == b"once\nblue\n"
    encamp("rm", "--force", "counter")


def test_image_says_what_commands_find_and_where_they_start(
    encamp: Encamp, describe: Describe, site_home: Home, tmp_path: Path
) -> None:
    store = ImageStore(site_home, shared=None)
    mini = store.resolve("mini")
    assert mini is not None
    defaults = Defaults(variables={"A": "image", "B": "image", "C": "image"}, workdir="/var/app")
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        member = tarfile.TarInfo("./var/app")
        member.type, member.mode = tarfile.DIRTYPE, 0o777
        archive.addfile(member)
    with workplace(site_home, "layer") as work:
        image = place_saved(
            *(store, work, layer, msgspec.structs.replace(mini, defaults=defaults), "app"),
            origin="a test",
            compression=Compression.LZ4,
            progress=Silent(),
        )
    variables = describe("""
    app:
      extends: mini
      image: app
      templates: false
      context: {variables: {B: context, C: context}}
    """)
    (tmp_path / "word").write_text("hello")
    script = "pwd; echo $A $B $C; cat word >answer; cat /var/app/word"
    words = ("run", "-e", "app", "--env-var", "C=mine", "--in", "word", "--out", "answer")
    done = encamp(*words, "--", "sh", "-c", script, variables=variables)
    assert done.stdout == b"/var/app\nimage context mine\nhello"
    assert (tmp_path / "answer").read_text() == "hello"
    encamp("start", "-e", "app", "--name", "app", variables=variables)
    encamp("exec", "app", "--", "rmdir", "/var/app")
    home = Path("~").expanduser()
    assert encamp("exec", "app", "--", "pwd").stdout.decode() == f"{home}\n"
    encamp("rm", "--force", "app")
    store.rm(image.digest)


def test_keys_are_not_written_into_a_directory_of_the_host(
    encamp: Encamp, describe: Describe, tmp_path: Path
) -> None:
    variables = describe("""
    keyed:
      extends: mini
      context: {ssh_keys: [ssh-ed25519 BBB me@site]}
    """)
    home = tmp_path / "home"
    home.mkdir()
    encamp(
        *("run", "-e", "keyed", "--share", f"{home}:/root"),
        *("--", "true"),
        variables=variables,
    )
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("context", "sentence"),
    [
        ("files: [{path: /etc/x, content: '', owner: nobodyhere}]", "no user 'nobodyhere'"),
        ("files: [{path: /etc/x, content: '', group: nobodyhere}]", "no group 'nobodyhere'"),
        ("files: [{path: /proc/x/y, content: ''}]", "file /proc/x/y could not be put"),
        ("files: [{path: /etc, content: ''}]", "file /etc could not be put"),
        ("users: [{name: root, uid: 77}]", "user 'root'"),
        ("users: [{name: ci, uid: 65534}]", "user 'ci'"),
        ("run: [echo first, 'echo oops >&2; exit 3']", "exited with 3, saying: oops"),
        ("run: [no-such-program]", "exited with 127"),
        ('run: ["echo one\\nexit 3\\n"]', "command 'echo one …' exited with 3, saying: one."),
        ("files: [{path: '/srv/${late.owner.home}/x', content: ''}]", "is not an absolute path"),
    ],
)
def test_context_that_cannot_be_handed_over_is_named_and_leaves_nothing(
    encamp: Encamp, describe: Describe, context: str, sentence: str
) -> None:
    variables = describe(f"bad: {{extends: mini, context: {{{context}}}}}")
    done = encamp("start", "-e", "bad", check=False, variables=variables)
    assert done.returncode == Code.CONFIGURATION.value
    said = done.stderr.decode()
    assert "The context of environment 'bad'" in said
    assert sentence in said


def test_peer_of_a_machine_that_is_made_alone_is_told(encamp: Encamp, describe: Describe) -> None:
    variables = describe("bad: {extends: mini, context: {run: ['ping ${late.peers.db.address}']}}")
    done = encamp("run", "-e", "bad", "--", "true", check=False, variables=variables)
    assert done.returncode == Code.CONFIGURATION.value
    assert "'${late.peers.db.address}' has no value: there is no peer 'db'" in done.stderr.decode()


def test_source_that_is_not_there_is_refused_before_a_machine_is_made(
    encamp: Encamp, describe: Describe, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    file = f"{{path: /etc/x, source: {missing}}}"
    variables = describe(f"bad: {{extends: mini, context: {{files: [{file}]}}}}")
    done = encamp("run", "-e", "bad", "--", "true", check=False, variables=variables)
    assert done.returncode == Code.INPUT_MISSING.value
    assert str(missing) in done.stderr.decode()


def test_command_that_does_not_end_is_given_up(encamp: Encamp, describe: Describe) -> None:
    variables = describe("""
    endless:
      extends: mini
      context: {run: [sleep 1000]}
      ready: {timeout: 1}
    """)
    done = encamp("run", "-e", "endless", "--", "true", check=False, variables=variables)
    assert done.returncode == Code.NOT_READY.value
    assert "command 'sleep 1000'" in done.stderr.decode()
    assert "put '&' behind it" in done.stderr.decode()


HANDING = "encamp.agent.context:outcome+before"
HANDED = "encamp.agent.activation:hand_over+after"
TESTING = "encamp.agent.readiness:Tests.hold+before"
TESTED = "encamp.agent.activation:wait_until_ready+after"


@pytest.mark.parametrize(
    ("victim", "code"),
    [
        ("encamp", -signal.SIGKILL),
        ("machine", Code.MACHINE_LOST.value),
        ("interrupted", 128 + signal.SIGINT),
    ],
)
@pytest.mark.parametrize("point", [HANDING, HANDED, TESTING, TESTED])
def test_nothing_is_left_of_what_dies_before_it_is_ready(
    encamp: Encamp,
    encamp_environment: dict[str, str],
    describe: Describe,
    site_home: Home,
    point: str,
    victim: str,
    code: int,
) -> None:
    variables = describe("""
    furnished:
      extends: mini
      context:
        files: [{path: /etc/app, content: text}]
        run: [sleep 1000 &]
      ready: {file: /etc/app}
    """)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.site.dying", point, victim),
            *("run", "-e", "furnished", "--", "sleep", "1000"),
        ],
        env={**os.environ, **encamp_environment, **variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    encamp("ps")
    assert left_behind(site_home) == []
