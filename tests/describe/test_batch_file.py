"""batch.yaml: what it may say, and what is told about mistakes in it."""

from __future__ import annotations

import pytest

from encamp.describe.batch_file import BATCH_FILE, load_batch_settings
from encamp.model.batch import BatchSettings, Rule, Threshold
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size
from tests.describe.conftest import Host, root_only

pytestmark = root_only

BATCH = "batch.yaml"
GIB = 1024 * MIB


def refused() -> EncampError:
    with pytest.raises(EncampError) as caught:
        load_batch_settings()
    assert caught.value.code is Code.CONFIGURATION
    return caught.value


def test_without_a_file_the_host_has_no_batch_system(host: Host) -> None:
    assert load_batch_settings() is None


def test_naming_the_batch_system_is_enough(host: Host) -> None:
    host.write(host.site, "system: slurm", BATCH)
    settings = load_batch_settings()
    assert settings == BatchSettings(system="slurm")
    assert settings.shares == ("/home",)


def test_everything_can_be_set(host: Host) -> None:
    host.write(
        host.site,
        """
        system: gridengine
        shares: [/home, /scratch/, //data/./x]
        rules:
          - { queue: long.q, environment: debian12 }
          - { user: "ops", group: wheel, account: cms, environment: none }
          - { environment: mini }
        close: { memory: 256M, disk: 0 }
        open: { memory: 1.5G, disk: 1G }
        machines: 8
        every: 10s
        tries: 5
        restarts: 0
        failures: 2
        pause: 1m
        watch: true
        environments: [mini, debian12]
        features: true
        size: { cpus: 2, memory: 1G, disk: 4G }
        programs: { root: /opt/sge, cell: default }
        """,
        BATCH,
    )
    assert load_batch_settings() == BatchSettings(
        system="gridengine",
        shares=("/home", "/scratch", "/data/x"),
        rules=(
            Rule(queue="long.q", environment="debian12"),
            Rule(user="ops", group="wheel", account="cms", environment=""),
            Rule(environment="mini"),
        ),
        close=Threshold(memory=256 * MIB, disk=0),
        open=Threshold(memory=1536 * MIB, disk=GIB),
        machines=8,
        every=10.0,
        tries=5,
        restarts=0,
        failures=2,
        pause=60.0,
        watch=True,
        environments=("mini", "debian12"),
        features=True,
        size=Size(2, GIB, 4 * GIB),
        programs={"root": "/opt/sge", "cell": "default"},
    )
    assert set(BATCH_FILE.attributes) == set(BatchSettings.__struct_fields__), (
        "everything can be written"
    )


def test_defaults_are_told_as_they_are(host: Host) -> None:
    told = "\n".join(
        f"{name}: {attribute.default}"
        for name, attribute in BATCH_FILE.attributes.items()
        if attribute.default is not None
    )
    host.write(host.site, f"system: slurm\n{told}\nclose: {{memory: 512M}}\nopen: {{}}", BATCH)
    assert load_batch_settings() == BatchSettings(system="slurm")


def test_all_mistakes_are_told_with_their_places(host: Host) -> None:
    path = host.write(
        host.site,
        """\
        sistem: slurm
        shares: [home, /]
        rules: [{queue: main}]
        close: {memory: lots}
        tries: 0
        pause: ${x}
        """,
        BATCH,
    )
    told = refused().detail.splitlines()
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in told] == list("11223456")
    assert "did you mean 'system'?" in told[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1: 'system' is missing: the file of the batch system needs it"),
        ("system: Slurm!", "1:9: a batch system such as slurm or gridengine is expected here"),
        ("shares: /..", "1:9: all of the host cannot be shared; name the directories that jobs"),
        ("shares: scratch", "1:9: an absolute path such as /home is expected here, not 'scratch'"),
        ("rules: [{environment: a b}]", "an environment's name, or 'none', is expected here"),
        ("rules: [{environment: ../x}]", "is expected here, not '../x'"),
        ("rules: [{environment: x, queue: 'a b'}]", "a name without blanks is expected here"),
        ("rules: [{environment: x, user: 'a\"b'}]", "a name without blanks is expected here"),
        ("rules: [{environment: x, host: y}]", "there is no attribute 'host' in a rule; there are"),
        ("rules: [{queue: x}]", "'environment' is missing: a rule needs it"),
        ("close: 5G", "a mapping with memory and disk is expected here, not '5G'"),
        ("open: {memory: -1}", "1:16: a size such as 512M is expected here, not '-1'"),
        ("machines: 0", "a number from 1 is expected here, not '0'"),
        ("size: {cpus: 1}", "'memory' is missing: 'size' needs it"),
        ("size: {cpus: 1, memory: 1M}", "a size such as 512M or 2G is expected here"),
        ("every: never", "a time such as 5m is expected here, not 'never'"),
        ("programs: {'9': x}", "'9' is no name for where something of the batch system is"),
    ],
)
def test_mistake_is_told_with_its_place_and_what_is_expected(
    host: Host, text: str, said: str
) -> None:
    known = "" if text == "" or "system:" in text else "\nsystem: slurm"
    host.write(host.site, text + known, BATCH)
    assert said in refused().detail


def test_only_slurm_has_features(host: Host) -> None:
    host.write(host.site, "system: gridengine\nbait_feature: encamp\n", BATCH)
    assert "2:1: gridengine has no features: leave it out" in refused().detail


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("open: {memory: 100M}", "2:1: with this memory, what opens would close again"),
        ("features: true", "2:1: which features are environments is not said: list 'environ"),
        ("close: {disk: 3G}", "2:1: with this disk, what opens would close again"),
        ("bait_feature: a\nenvironments: [a]", "2:1: it is an environment, too: choose another"),
        (
            "rules:\n  - {environment: a}\n  - {environment: b, user: c}",
            "4:5: no job comes to this rule: the one before it fits every job",
        ),
    ],
)
def test_what_makes_no_sense_together_is_refused(host: Host, text: str, said: str) -> None:
    host.write(host.site, f"system: slurm\n{text}", BATCH)
    assert said in refused().detail


@pytest.mark.parametrize("system", ["slurm", "pbs", "gridengine"])
def test_rule_for_an_environment_that_jobs_may_not_have_is_refused(host: Host, system: str) -> None:
    text = f"system: {system}\nenvironments: [debian12]\nrules:\n"
    allowed = "  - {queue: a, environment: debian12}\n  - {queue: b, environment: none}\n"
    host.write(host.site, text + allowed, BATCH)
    assert load_batch_settings() is not None
    host.write(host.site, f"{text}{allowed}  - {{account: c, environment: mini}}\n", BATCH)
    said = "6:18: every job of this rule would be refused: 'mini' is not among 'environments'"
    assert said in refused().detail
    host.write(host.site, f"{text}  environment: nosuch\n", BATCH)
    assert (
        "4:3: every job of this rule would be refused: 'nosuch' is not among 'environments'"
        in refused().detail
    )


def test_rule_that_hosts_of_grid_engine_decide_by_is_not(host: Host) -> None:
    text = "system: gridengine\nenvironments: [a]\nrules: [{queue: long.q, environment: b}]\n"
    host.write(host.site, text, BATCH)
    assert load_batch_settings() is not None


@pytest.mark.parametrize(
    ("system", "name", "known"),
    [
        ("slurm", "slurm-node", True),
        ("pbs", "slurm-node", True),
        ("gridengine", "gridengine-node", True),
        ("gridengine", "slurm-node", False),
    ],
)
def test_rule_for_worker_nodes_needs_no_mention(
    host: Host, system: str, name: str, known: bool
) -> None:
    text = f"system: {system}\nenvironments: [mini]\nrules: [{{environment: {name}}}]\n"
    host.write(host.site, text, BATCH)
    if known:
        assert load_batch_settings() is not None
    else:
        assert f"'{name}' is not among 'environments'" in refused().detail


def test_mistake_in_the_description_of_a_rules_environment_is_told_where_it_is(host: Host) -> None:
    host.write(host.site, "it: {extends: mini, descripton: new}\n")
    text = "system: slurm\nenvironments: [mini]\nrules: [{environment: it}]\n"
    host.write(host.site, text, BATCH)
    assert load_batch_settings() is not None, "the other file is the wrong one"


def test_a_file_that_others_could_have_written_is_not_believed(host: Host) -> None:
    host.write(host.site, "system: slurm", BATCH).chmod(0o666)
    assert "can be written to by others" in refused().sentence
