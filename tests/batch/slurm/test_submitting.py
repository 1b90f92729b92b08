"""job_submit.lua in a real controller: which jobs begin with the starter, which are refused, and
that all others are left alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from encamp.batch.install.slurm_rules import rules_text
from encamp.model.batch import BatchSettings, Rule
from encamp.model.size import MIB
from tests.batch.slurm.private import Cluster, User, private_cluster, root_only

pytestmark = [pytest.mark.site, root_only]

TEMPLATE = files("encamp.batch.slurm").joinpath("job_submit.lua").read_text()
JOB = '#!/bin/bash\n#SBATCH -J named\necho "ran $0 with $*"\n'
SHIPPED = files("encamp.describe").joinpath("environments.yaml")
PLUGIN = files("encamp.batch").joinpath("encamp_spank.so")
STARTER = '#!/bin/sh\necho "started as $1"\nscript=$2\nshift 2\ntail -n +2 $script | sh -s "$@"\n'
"""Stands in for the real one: says what it was called with, and runs the rest of the script."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with private_cluster(
        users=2, nodes=1, partitions=("main", "vm"), features="intel,n1", job_submit=TEMPLATE
    ) as cluster:
        starter = cluster.place / "starter"
        starter.write_text(STARTER)
        starter.chmod(0o755)
        for user in cluster.users:
            user.write("job", JOB)
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    configure(shared)
    yield shared
    shared.clear()


@pytest.fixture
def user(cluster: Cluster) -> User:
    return cluster.users[0]


def configure(
    cluster: Cluster,
    *,
    site: str = "",
    spank: bool = False,
    nodes: Sequence[str] = (),
    other_nodes: Sequence[str] = (),
    least_memory: int = 0,
    described: str | None = None,
    **settings: object,
) -> None:
    """What 'encamp batch install' leaves beside slurm.conf. `described`: what stands in the file
    that describes environments, if there is one."""
    etc = cluster.site.conf.parent
    made = BatchSettings(system="slurm", **settings)  # type: ignore[arg-type]
    descriptions = etc / "environments.yaml"
    descriptions.unlink(missing_ok=True)
    if described is not None:
        descriptions.write_text(described)
    (etc / "encamp_rules.lua").write_text(
        rules_text(
            made,
            str(cluster.place / "starter"),
            spank=spank,
            nodes=nodes,
            other_nodes=other_nodes,
            least_memory=least_memory,
            descriptions=[str(SHIPPED), str(descriptions)],
        )
    )
    script = TEMPLATE.replace("@ENCAMP_RULES@", str(etc / "encamp_rules.lua"))
    if site:
        (etc / "job_submit_site.lua").write_text(site)
    where = str(etc / "job_submit_site.lua") if site else ""
    script = script.replace("@ENCAMP_SITE_SCRIPT@", where)
    if (etc / "job_submit.lua").read_text() != script:
        replace(cluster, script)


def replace(cluster: Cluster, script: str) -> None:
    """slurmctld reads its script again when its time of change differs, in whole seconds."""
    path = cluster.site.conf.parent / "job_submit.lua"
    before = int(path.stat().st_mtime)

    def written() -> bool:
        path.write_text(script)
        return int(path.stat().st_mtime) != before

    cluster.wait_for("another second", written)


def script_of(cluster: Cluster, job: str) -> str:
    return cluster.run("scontrol", "write", "batch_script", job, "-")


def output_of(cluster: Cluster, job: str, user: User) -> str:
    cluster.wait_for_state(job, "COMPLETED")
    return (user.directory / f"slurm-{job}.out").read_text()


def test_a_job_that_names_an_environment_begins_with_the_starter(
    cluster: Cluster, user: User
) -> None:
    job = cluster.submit("--comment=fast env:mini", "job", "a", "b c")
    assert output_of(cluster, job, user) == "started as slurm:mini\nran sh with a b c\n"
    assert script_of(cluster, job) == f"#!{cluster.place}/starter slurm:mini\n{JOB}"
    assert cluster.field(job, "admin_comment") == "env=mini"
    assert cluster.field(job, "Comment") == "fast env:mini"
    assert cluster.field(job, "Name") == "named"


def test_so_do_lines_of_the_script_wrapped_commands_and_arrays(
    cluster: Cluster, user: User
) -> None:
    user.write("lined", "#!/bin/sh\n#SBATCH --comment=env:debian12\necho done\n")
    lined = cluster.submit("lined")
    wrapped = cluster.submit("--comment=env:mini", "--wrap", "echo wrapped")
    array = cluster.submit("--comment=env:mini", "-a", "1-2", "-o", "%a", "job")
    assert output_of(cluster, lined, user) == "started as slurm:debian12\ndone\n"
    assert output_of(cluster, wrapped, user) == "started as slurm:mini\nwrapped\n"
    cluster.wait_for("the array", lambda: not cluster.run("squeue", "-h", "-j", array))
    for task in ("1", "2"):
        assert (user.directory / task).read_text().startswith("started as slurm:mini\n")


def test_all_other_jobs_are_left_exactly_as_they_are(cluster: Cluster, user: User) -> None:
    for words in ([], ["--comment=environment:x"], ["--comment=env:none"], ["-C", "intel"]):
        job = cluster.submit(*words, "job")
        assert script_of(cluster, job) == JOB
        assert cluster.field(job, "admin_comment") == "(null)"
    assert cluster.run("srun", "echo", "hello", user=user) == "hello\n"


@pytest.mark.parametrize(
    "name", ["", "../up", "a&b", "a|b", "-x", ".hidden", "a/b", "$(id)", "`id`", "ü", "a" * 65]
)
def test_a_hostile_name_is_refused_with_a_sentence(cluster: Cluster, user: User, name: str) -> None:
    said = cluster.refused("sbatch", f"--comment=env:{name}", "job", user=user)
    assert "encamp: " in said
    assert "is no name of an environment" in said


def test_an_unknown_environment_is_refused_if_the_site_lists_them(
    cluster: Cluster, user: User
) -> None:
    configure(cluster, environments=("mini", "debian12"))
    assert "no environment 'other' on this site" in cluster.refused(
        "sbatch", "--comment=env:other", "job", user=user
    )
    for name, meant in (("Mini", "mini"), ("min", "mini"), ("debian12x", "debian12")):
        said = cluster.refused("sbatch", f"--comment=env:{name}", "job", user=user)
        assert f"on this site. Did you mean '{meant}'? There are: debian12, mini." in said
    assert cluster.submit("--comment=env:mini", "job")


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


def test_an_environment_that_nobody_describes_is_refused(cluster: Cluster, user: User) -> None:
    configure(cluster, described=DESCRIBED, spank=True)
    known = ("tools", "other", "late", "mini")
    for name in known:
        assert script_of(cluster, cluster.submit("--hold", f"--comment=env:{name}", "job")) != JOB
    for command in ("sbatch", "srun", "salloc"):
        said = cluster.refused(command, "--comment=env:nosuch", "job", user=user)
        assert "There is no environment 'nosuch' on this site." in said
        assert "There are: debian11, debian12, debian13, " in said
    # A change counts at once.
    configure(cluster, described=f"{DESCRIBED}nosuch: {{extends: mini}}\n", spank=True)
    assert cluster.submit("--hold", "--comment=env:nosuch", "job")


@pytest.mark.parametrize(
    "described",
    [
        None,
        "  indented:\n    extends: mini\n",
        '"quoted": {extends: mini}\n',
        "{braces: {extends: mini}}\n",
        "[ini]\nextends = mini\n",
        "plain:\n  extends: mini\n? asked\n: {extends: mini}\n",
    ],
)
def test_where_it_is_not_certain_what_is_described_the_host_decides(
    cluster: Cluster, user: User, described: str | None
) -> None:
    configure(cluster, described=described)
    assert script_of(cluster, cluster.submit("--hold", "--comment=env:nosuch", "job")) != JOB


def test_what_a_rule_gives_is_refused_only_by_a_list(cluster: Cluster, user: User) -> None:
    """A description that is missing on this host alone does not stop all jobs of the site."""
    configure(cluster, described="", rules=(Rule(environment="nosuch"),))
    assert script_of(cluster, cluster.submit("--hold", "job")) != JOB


@pytest.mark.parametrize(
    "comment", ["ENV:mini", "env=mini", "Env = mini", "environment:mini", "ENV=none"]
)
def test_a_comment_that_nearly_names_an_environment_is_refused(
    cluster: Cluster, user: User, comment: str
) -> None:
    configure(cluster, described="")
    said = cluster.refused("sbatch", f"--comment={comment}", "job", user=user)
    assert f"The comment '{comment}' names no environment" in said
    assert f"--comment=env:{comment[-4:]}" in said


@pytest.mark.parametrize("comment", ["env: mini", "env : mini", "env: nosuch"])
def test_so_is_one_with_blanks_whatever_is_known(
    cluster: Cluster, user: User, comment: str
) -> None:
    said = cluster.refused("sbatch", f"--comment={comment}", "job", user=user)
    assert f"The comment '{comment}' names no environment" in said


@pytest.mark.parametrize(
    "comment", ["'env:mini'", '"env:mini"', " `env:mini` ", "'env:mini fast'", "'ENV: mini'"]
)
def test_so_is_one_in_quotes_that_no_shell_takes_off(
    cluster: Cluster, user: User, comment: str
) -> None:
    configure(cluster, described="")
    said = cluster.refused("sbatch", f"--comment={comment}", "job", user=user)
    assert f"The comment '{comment}' names no environment" in said
    assert "write --comment=env:mini, with" in said
    assert "nor quotes" in said


def test_one_that_may_mean_something_else_is_only_remarked(cluster: Cluster, user: User) -> None:
    for described in (None, ""):
        configure(cluster, described=described)
        words = ("sbatch", "--hold", "--comment=env=production", "job")
        done = cluster.site.run(words, user=(user.uid, user.gid), directory=user.directory)
        assert "The comment 'env=production' names no environment" in done.stderr
        assert "--comment=env:production" in done.stderr


def test_sentences_that_merely_contain_such_words_are_left_alone(
    cluster: Cluster, user: User
) -> None:
    configure(cluster, described="")
    for comment in (
        *("with env=mini as before", "ENV:mini was slow", "see env: mini", "a, env=mini"),
        *("'a note'", "'env:mini' and others", "mini", "evn:mini"),
    ):
        words = ("sbatch", "--parsable", "--hold", f"--comment={comment}", "job")
        done = cluster.site.run(words, user=(user.uid, user.gid), directory=user.directory)
        assert done.stderr == ""
        assert script_of(cluster, done.stdout.strip()) == JOB


def test_two_different_names_are_refused(cluster: Cluster, user: User) -> None:
    for comment in ("env:mini env:debian12", "env:mini,env:other"):
        said = cluster.refused("sbatch", f"--comment={comment}", "job", user=user)
        assert "two environments" in said
    variables = {"ENCAMP_ENVIRONMENT": "debian12"}
    said = cluster.refused("sbatch", "--comment=env:mini", "job", user=user, variables=variables)
    assert "two environments" in said


def test_a_constraint_can_be_an_environment_if_the_site_says_so(
    cluster: Cluster, user: User
) -> None:
    assert "Invalid feature" in cluster.refused("sbatch", "-C", "mini", "job", user=user)
    configure(cluster, features=True, environments=("mini", "debian12"))
    alone = cluster.submit("-C", "mini", "job")
    both = cluster.submit("-C", "intel&mini", "job")
    for job in (alone, both):
        assert script_of(cluster, job).startswith(f"#!{cluster.place}/starter slurm:mini\n")
    assert cluster.field(alone, "Feature") == "(null)"
    assert cluster.field(both, "Feature") == "intel"
    assert "only by '&'" in cluster.refused("sbatch", "-C", "intel|mini", "job", user=user)
    assert "two environments" in cluster.refused("sbatch", "-C", "mini&debian12", "job", user=user)


def test_jobs_for_worker_nodes_are_left_to_slurm(cluster: Cluster, user: User) -> None:
    """However they name the environment: it is a feature of the nodes that are its machines."""
    rules = (Rule(environment="mini"),)
    configure(cluster, features=True, environments=("intel",), nodes=("intel",), rules=rules)
    commented = cluster.submit("--comment=env:intel", "job")
    both = cluster.submit("--comment=env:intel", "-C", "intel", "job")
    constrained = cluster.submit("-C", "intel", "job")
    for job in (commented, both, constrained):
        assert script_of(cluster, job) == JOB
        assert cluster.field(job, "Feature") == "intel"
    assert cluster.field(commented, "admin_comment") == "env=intel"
    refused = ("sbatch", "--comment=env:intel", "-C", "[intel|amd]", "job")
    assert "only by '&' and '|'" in cluster.refused(*refused, user=user)
    left_alone = cluster.submit("--comment=env:none", "-C", "intel", "job")
    assert cluster.field(left_alone, "Feature") == "intel"
    two = ("sbatch", "--comment=env:mini", "-C", "intel", "job")
    assert "two environments, 'intel' and 'mini'" in cluster.refused(*two, user=user)


def test_who_asks_for_a_worker_node_by_its_name_is_told_what_slurm_may_lack(
    cluster: Cluster, user: User
) -> None:
    """Slurm alone knows if there is such a node, and says only that the feature is invalid."""
    configure(cluster, nodes=("intel", "slurm-node"), described="")
    said = cluster.refused("sbatch", "--comment=env:slurm-node", "job", user=user)
    assert "Machines of environment 'slurm-node' are worker nodes" in said
    assert "run 'encamp batch offer slurm-node' first" in said
    assert "Invalid feature" in said
    words = ("sbatch", "--hold", "-C", "intel", "job")
    done = cluster.site.run(words, user=(user.uid, user.gid), directory=user.directory)
    assert done.stderr == ""


@pytest.mark.parametrize("environments", [(), ("mini", "gridengine-node", "slurm-node")])
def test_environments_of_worker_nodes_are_not_listed_and_others_nodes_are_refused(
    cluster: Cluster, user: User, environments: tuple[str, ...]
) -> None:
    nodes: dict[str, Any] = {"nodes": ("slurm-node",), "other_nodes": ("gridengine-node",)}
    configure(cluster, described="", environments=environments, **nodes)
    said = cluster.refused("sbatch", "--comment=env:nosuch", "job", user=user)
    assert "There are: " in said
    assert "mini" in said
    assert "-node" not in said
    said = cluster.refused("sbatch", "--comment=env:slurm", "job", user=user)
    assert "Did you mean 'slurm-node'?" in said
    said = cluster.refused("sbatch", "--comment=env:gridengine-node", "job", user=user)
    assert "are worker nodes of Grid Engine" in said
    assert "'qsub -l env=gridengine-node'" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mem=50"], "asks for 50 MiB. Ask for --mem=96M or more."),
        (["--mem-per-cpu=50"], "asks for 50 MiB. Ask for --mem-per-cpu=96M or more."),
        (["--mem-per-cpu=31", "-n3"], "asks for 93 MiB. Ask for --mem-per-cpu=32M or more."),
    ],
)
def test_job_with_less_memory_than_a_machine_needs_is_refused(
    cluster: Cluster, user: User, words: list[str], said: str
) -> None:
    """Its host could only hold it."""
    configure(cluster, least_memory=96 * MIB, rules=(Rule(environment="mini", queue="vm"),))
    for named in ("--comment=env:mini", "--partition=vm"):
        told = cluster.refused("sbatch", named, *words, "job", user=user)
        assert "A machine needs at least 96 MiB of memory, and the job " + said in told
    assert script_of(cluster, cluster.submit("--hold", *words, "job")) == JOB
    assert cluster.submit("--hold", "--comment=env:none", "--partition=vm", *words, "job")


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--mem=96"], ["--mem=0"], ["--mem=1G"], ["--mem-per-cpu=96"]),
        *(["--mem-per-cpu=32", "-c3"], ["--mem-per-cpu=50", "--exclusive"]),
    ],
)
def test_job_with_memory_enough_for_a_machine_is_accepted(
    cluster: Cluster, user: User, words: list[str]
) -> None:
    configure(cluster, least_memory=96 * MIB)
    assert cluster.submit("--hold", "--comment=env:mini", *words, "job")


def test_jobs_for_machines_ask_for_hosts_that_make_them(cluster: Cluster, user: User) -> None:
    rules = (Rule(environment="mini", queue="vm"),)
    more = {"environments": ("mini", "amd"), "nodes": ("amd",), "rules": rules}
    configure(cluster, bait_feature="intel", **more)  # type: ignore[arg-type]
    named = cluster.submit("--comment=env:mini", "job")
    given = cluster.submit("-p", "vm", "job")
    both = cluster.submit("--comment=env:mini", "-C", "intel", "job")
    for job in (named, given, both):
        assert cluster.field(job, "Feature") == "intel"
    for words in ([], ["-p", "vm", "--comment=env:none"]):
        assert cluster.field(cluster.submit(*words, "job"), "Feature") == "(null)"
    assert "Invalid feature" in cluster.refused("sbatch", "--comment=env:amd", "job", user=user)


def test_jobs_for_machines_ask_for_them_beside_what_else_they_ask_for(
    cluster: Cluster, user: User
) -> None:
    rules = (Rule(environment="mini", queue="vm"),)
    configure(cluster, bait_feature="intel", rules=rules)
    for asked, wanted in (
        ("n1", "intel&n1"),
        ("n1,intel", "n1&intel"),
        ("n1|intel", "intel&(n1|intel)"),
        ("n1&intel|n1", "intel&(n1&intel|n1)"),
    ):
        for words in (["--comment=env:mini"], ["-p", "vm"]):
            job = cluster.submit(*words, "--hold", "-C", asked, "job")
            assert cluster.field(job, "Feature") == wanted
    job = cluster.submit("--comment=env:mini", "-C", "n1|intel", "job")
    assert output_of(cluster, job, user).startswith("started as slurm:mini\n")


def test_who_has_named_no_environment_keeps_a_constraint_that_cannot_be_combined(
    cluster: Cluster, user: User
) -> None:
    """Where Slurm cannot be asked for both."""
    rules = (Rule(environment="mini", queue="vm"), Rule(environment="intel"))
    configure(cluster, bait_feature="n1", nodes=("intel",), rules=rules)
    given = cluster.submit("-p", "vm", "-C", "[n1|n1]", "job")
    assert script_of(cluster, given).startswith(f"#!{cluster.place}/starter slurm:mini\n")
    assert cluster.field(given, "Feature") == "[n1|n1]"
    for words in ((), ("--comment=env:mini",)):
        # It has to be on a worker node; or it has named the environment itself.
        refused = ("sbatch", *words, "-C", "[n1|n1]", "job")
        assert "only by '&' and '|'" in cluster.refused(*refused, user=user)


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_so_do_jobs_without_a_script_that_the_plug_in_has_machines_for(
    cluster: Cluster, user: User, command: str
) -> None:
    stack = cluster.site.directory / "etc" / "plugstack.conf"
    stack.write_text(f"optional {PLUGIN} {cluster.place}/starter\n")
    configure(cluster, spank=True, bait_feature="nowhere")
    try:
        for named in ("--vmenv=mini", "--comment=env:mini"):
            said = cluster.refused(command, named, "true", user=user)
            assert "Invalid feature" in said
        cluster.run(command, "--vmenv=none", "--comment=env:mini", "true", user=user)
    finally:
        stack.write_text("")


def test_a_variable_can_name_it(cluster: Cluster, user: User) -> None:
    variables = {"ENCAMP_ENVIRONMENT": "mini", "HOME": str(user.directory)}
    job = cluster.submit("job", variables=variables)
    assert script_of(cluster, job).startswith(f"#!{cluster.place}/starter slurm:mini\n")


def test_a_script_that_was_submitted_before_is_wrapped_once(cluster: Cluster, user: User) -> None:
    first = cluster.submit("--comment=env:mini", "job")
    user.write("again", script_of(cluster, first))
    again = cluster.submit("--comment=env:mini", "again")
    assert script_of(cluster, again) == script_of(cluster, first)
    without = cluster.submit("again")
    assert script_of(cluster, without) == script_of(cluster, first)
    assert cluster.field(without, "admin_comment") == "env=mini"
    plain = cluster.submit("--comment=env:none", "job")
    assert script_of(cluster, plain) == JOB


def test_rules_give_jobs_an_environment_that_name_none(cluster: Cluster, user: User) -> None:
    other = cluster.users[1]
    configure(
        cluster,
        rules=(
            Rule(environment="", queue="vm", account="Plain"),
            Rule(environment="sl7", queue="vm"),
            Rule(environment="camp", user=other.name, queue="main"),
            Rule(environment="grouped", group=other.name, account="acct"),
        ),
    )

    def given(*words: str, user: User = user) -> str:
        return cluster.field(cluster.submit(*words, "job", user=user), "admin_comment")

    assert given() == "(null)"
    assert given("-p", "vm") == "env=sl7"
    assert given("-p", "vm", "-A", "plain") == "(null)"
    assert given("-p", "vm", "--comment=env:mini") == "env=mini"
    assert given("-p", "vm", "--comment=env:none") == "(null)"
    assert given(user=other) == "env=camp"
    assert given("-p", "main,vm", "-A", "acct") == "env=sl7"
    configure(cluster, rules=(Rule(environment="grouped", group=other.name, account="acct"),))
    assert given("-A", "acct", user=other) == "env=grouped"
    assert given("-A", "acct") == "(null)"
    assert given(user=other) == "(null)"


def test_commands_without_a_script_need_the_plug_in(cluster: Cluster, user: User) -> None:
    for command in (
        ["srun", "--comment=env:mini", "true"],
        ["salloc", "--comment=env:mini", "true"],
    ):
        assert "Only a batch script can be" in cluster.refused(*command, user=user)
    configure(cluster, spank=True)
    assert cluster.run("srun", "--comment=env:mini", "echo", "let", "through", user=user)


def test_a_job_keeps_the_environment_it_was_submitted_with(cluster: Cluster, user: User) -> None:
    job = cluster.submit("--hold", "--comment=env:mini", "job")
    update = ("scontrol", "update", f"JobId={job}")
    cluster.refused(*update, "Comment=env:other", user=user)
    assert cluster.field(job, "Comment") == "env:mini"
    cluster.run(*update, "Comment=env:mini more", user=user)
    cluster.run(*update, "Comment=more", user=user)
    assert cluster.field(job, "Comment") == "more"


def test_the_sites_own_script_is_called_first(cluster: Cluster, user: User) -> None:
    configure(
        cluster,
        site="function slurm_job_submit(job, parts, uid)\n"
        "  if job.account == 'evil' then slurm.log_user('go away') return slurm.ERROR end\n"
        "  job.admin_comment = 'seen'\n"
        "  return slurm.SUCCESS\nend\n"
        "function slurm_job_modify() return slurm.SUCCESS end\nreturn slurm.SUCCESS\n",
    )
    said = cluster.refused("sbatch", "-A", "evil", "--comment=env:mini", "job", user=user)
    assert "go away" in said
    job = cluster.submit("--comment=env:mini", "job")
    assert cluster.field(job, "admin_comment") == "env=mini; seen"
    assert cluster.slurm().standing(job).environment == "mini"  # type: ignore[union-attr]
    assert cluster.field(cluster.submit("job"), "admin_comment") == "seen"


def test_changes_of_the_sites_own_script_are_noticed(cluster: Cluster, user: User) -> None:
    """Without a look at ours, whose time Slurm goes by. What is broken leaves what was there."""

    def script(note: str) -> str:
        return (
            f"#!/usr/bin/lua\nfunction slurm_job_submit(job) job.admin_comment = '{note}' "
            "return slurm.SUCCESS end\n"
            "function slurm_job_modify(job) if job.comment == 'no' then return slurm.ERROR end "
            "return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"
        )

    configure(cluster, site=script("first"))
    own = cluster.site.conf.parent / "job_submit_site.lua"
    log = cluster.site.directory / "log" / "slurmctld"

    def noted(*words: str) -> str:
        return cluster.field(cluster.submit("--hold", *words, "job"), "admin_comment")

    assert noted() == "first"
    own.write_text(script("second"))
    assert noted() == "second"
    assert noted("--comment=env:mini") == "env=mini; second"
    for broken in (
        "function slurm_job_submit(",
        "error('broken')",
        "",
        script("never") + "x = = 1\n",
        script("never").replace("return slurm.SUCCESS\n", "return slurm.ERROR\n"),
        script("never").replace("function slurm_job_modify", "local function other"),
    ):
        own.write_text(broken)
        assert noted() == noted() == "second"
    said = log.read_text().count("cannot be read; what it was before goes on")
    assert said == 6, "once for each"
    own.unlink()
    assert noted() == "second"
    own.write_text(script("third"))
    job = cluster.submit("--hold", "job")
    assert cluster.field(job, "admin_comment") == "third"
    cluster.refused("scontrol", "update", f"JobId={job}", "Comment=no", user=user)
    own.write_text(script("fourth").replace("'no'", "'never'"))
    cluster.run("scontrol", "update", f"JobId={job}", "Comment=no", user=user)


def test_a_sites_script_can_call_ours(cluster: Cluster, user: User) -> None:
    etc = cluster.site.conf.parent
    ours = etc / "encamp_job_submit.lua"
    ours.write_text((etc / "job_submit.lua").read_text())
    replace(
        cluster,
        "function slurm_job_submit(job) job.name = 'renamed' return slurm.SUCCESS end\n"
        "function slurm_job_modify() return slurm.SUCCESS end\n"
        f'dofile("{ours}")\nreturn slurm.SUCCESS\n',
    )
    job = cluster.submit("--comment=env:mini", "job")
    assert cluster.field(job, "Name") == "renamed"
    assert cluster.field(job, "admin_comment") == "env=mini"


def test_a_mistake_in_the_rules_stops_no_other_job(cluster: Cluster, user: User) -> None:
    (cluster.site.conf.parent / "encamp_rules.lua").write_text("return {{{")
    job = cluster.submit("job")
    assert script_of(cluster, job) == JOB
    user.write("lined", f"#!{cluster.place}/starter slurm:mini\n{JOB}")
    for words, variables in (
        (["--comment=env:mini", "job"], {}),
        (["--comment=env:a/b", "job"], {}),
        (["job"], {"ENCAMP_ENVIRONMENT": "mini"}),
        (["lined"], {}),
        (["--comment=env:none", "job"], {"ENCAMP_ENVIRONMENT": "mini"}),
    ):
        said = cluster.refused("sbatch", *words, user=user, variables=variables)
        assert "not available now" in said
    for words, variables in (
        (["--comment=env:none", "job"], {}),
        (["--comment=environment:x", "job"], {"ENCAMP_ENVIRONMENT": "none"}),
    ):
        assert script_of(cluster, cluster.submit(*words, variables=variables)) == JOB
    assert "encamp: " in Path(cluster.site.directory / "log" / "slurmctld").read_text()


@pytest.mark.parametrize("broken", ["return {{{", "return 7", None])
def test_the_plug_ins_option_is_not_overlooked_without_rules(
    cluster: Cluster, user: User, broken: str | None
) -> None:
    rules, stack = (
        cluster.site.conf.parent / name for name in ("encamp_rules.lua", "plugstack.conf")
    )
    stack.write_text(f"optional {PLUGIN} {cluster.place}/starter\n")
    try:
        if broken is None:
            rules.unlink()
        else:
            rules.write_text(broken)
        said = cluster.refused("sbatch", "--vmenv=mini", "job", user=user)
        assert "not available now" in said
        assert script_of(cluster, cluster.submit("--vmenv=none", "job")) == JOB
    finally:
        stack.write_text("")


def test_a_first_line_that_the_kernel_would_cut_is_refused(cluster: Cluster, user: User) -> None:
    rules = cluster.site.conf.parent / "encamp_rules.lua"
    rules.write_text(f'return {{ starter = "/{"x" * 90}" }}\n')
    assert cluster.submit("--comment=env:mini", "job")
    said = cluster.refused("sbatch", f"--comment=env:{'m' * 40}", "job", user=user)
    assert "too long" in said
