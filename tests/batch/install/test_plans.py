"""What is planned, given what is there: nothing more than is needed, and nothing against a site's
own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from encamp.batch.install import gridengine, planning, slurm
from encamp.batch.install.changes import Change, Edit, File, Installed, Object, Plan, merged
from encamp.batch.install.gridengine import CLOSED, COMPLEXES, FORMER
from encamp.batch.install.gridengine_cell import Cell, GridEngineWanted
from encamp.batch.install.gridengine_rules import rules_text as gridengine_rules
from encamp.batch.install.masters import Masters, is_same
from encamp.batch.install.offers import with_offer
from encamp.batch.install.showing import difference, headline
from encamp.batch.install.slurm import SlurmWanted
from encamp.batch.install.slurm_rules import rules_text as slurm_rules
from encamp.batch.install.wanted import check_prefix, shipped
from encamp.model.batch import BatchSettings, Rule
from encamp.model.errors import Code, EncampError

CONF = "/etc/slurm/slurm.conf"
FILES = {
    "/usr/lib/encamp/encamp-starter": shipped("encamp-starter"),
    "/etc/encamp/batch.yaml": b"system: slurm\n",
}


def slurm_plan(files: Mapping[str, bytes], **changes: Any) -> Plan:
    wanted = SlurmWanted(system="slurm", configuration="/etc/encamp", **changes)
    return slurm.plan(wanted, {**FILES, **files}.get)


def edits(plan: Plan) -> list[tuple[str, str, str]]:
    return [
        (change.path, change.removed, change.added)
        for change in plan.changes
        if isinstance(change, Edit)
    ]


def files(plan: Plan) -> dict[str, File]:
    return {change.path: change for change in plan.changes if isinstance(change, File)}


@pytest.mark.parametrize(
    ("conf", "removed", "added"),
    [
        ("ClusterName=x\n", "", "JobSubmitPlugins=lua"),
        (
            "JobSubmitPlugins=partition\n",
            "JobSubmitPlugins=partition",
            "JobSubmitPlugins=partition,lua",
        ),
        (
            "jobsubmitplugins = a,b  # ask Bob\n",
            "jobsubmitplugins = a,b  # ask Bob",
            "jobsubmitplugins = a,b,lua  # ask Bob",
        ),
        ('JobSubmitPlugins="a"\n', 'JobSubmitPlugins="a"', 'JobSubmitPlugins="a,lua"'),
        ('JobSubmitPlugins=""\n', 'JobSubmitPlugins=""', 'JobSubmitPlugins="lua"'),
        (
            "JobSubmitPlugins=a,\\\nb\nX=1\n",
            "JobSubmitPlugins=a,\\\nb",
            "JobSubmitPlugins=a,\\\nb,lua",
        ),
    ],
)
def test_the_plugin_is_added_to_those_there_are(conf: str, removed: str, added: str) -> None:
    plan = slurm_plan({CONF: conf.encode()})
    assert edits(plan) == [(CONF, removed, added)]


@pytest.mark.parametrize("value", ["lua", "partition,lua", "job_submit/lua", "lua # x", '"lua"'])
def test_the_plugin_is_not_added_twice(value: str) -> None:
    assert edits(slurm_plan({CONF: f"JobSubmitPlugins={value}\n".encode()})) == []


def test_the_line_is_changed_in_the_file_where_it_is() -> None:
    plan = slurm_plan(
        {
            CONF: b"Include /etc/slurm/plugins.conf\n",
            "/etc/slurm/plugins.conf": b"JobSubmitPlugins=x\n",
        }
    )
    assert edits(plan) == [
        ("/etc/slurm/plugins.conf", "JobSubmitPlugins=x", "JobSubmitPlugins=x,lua")
    ]


def test_a_script_of_the_site_is_kept_aside_and_called() -> None:
    own = {CONF: b"", "/etc/slurm/job_submit.lua": b"return slurm.SUCCESS\n"}
    script = files(slurm_plan(own))["/etc/slurm/job_submit.lua"]
    assert script.aside == "/etc/slurm/job_submit_site.lua"
    assert b'"/etc/slurm/job_submit_site.lua"' in script.after
    assert b'"/etc/slurm/encamp_rules.lua"' in script.after
    assert b"@ENCAMP" not in slurm.script_text("/r", "")


def test_a_script_of_ours_whose_record_is_lost_is_not_taken_for_the_sites_own() -> None:
    ours = slurm.script_text("/etc/slurm/encamp_rules.lua", "")
    old = ours.replace(b"LONGEST_LINE = 127", b"LONGEST_LINE = 126")
    assert old != ours
    script = files(slurm_plan({CONF: b"", "/etc/slurm/job_submit.lua": old}))
    assert script["/etc/slurm/job_submit.lua"].aside == ""


def test_two_scripts_of_the_site_are_not_sorted_out_by_us() -> None:
    with pytest.raises(EncampError) as caught:
        slurm_plan(
            {
                CONF: b"",
                "/etc/slurm/job_submit.lua": b"-- one\n",
                "/etc/slurm/job_submit_site.lua": b"-- another\n",
            }
        )
    assert caught.value.code is Code.WRONG_STATE


def test_settings_of_another_batch_system_are_not_overwritten() -> None:
    with pytest.raises(EncampError) as caught:
        slurm_plan({CONF: b"", "/etc/encamp/batch.yaml": b"system: gridengine\n"})
    assert "is for 'gridengine', not for 'slurm'" in caught.value.sentence


def test_nodes_are_set_up_the_way_the_controller_was() -> None:
    usual = slurm_plan({CONF: b""}, spank=False)
    assert any("'encamp batch install slurm --node'" in step for step in usual.left)
    own = slurm_plan({CONF: b""}, spank=True, prefix="/opt/encamp/lib")
    node = "'encamp batch install slurm --node --spank --prefix /opt/encamp/lib'"
    assert any(node in step for step in own.left)


def test_without_slurm_the_hint_says_where_to_look() -> None:
    with pytest.raises(EncampError) as caught:
        slurm_plan({})
    assert caught.value.code is Code.INPUT_MISSING
    assert "SLURM_CONF" in caught.value.hint


def test_a_node_needs_no_configuration_of_its_own() -> None:
    assert slurm_plan({}, node=True).changes == ()


def test_a_long_path_of_the_starter_is_told() -> None:
    plan = slurm_plan({CONF: b""}, prefix="/opt/" + "x" * 60)
    assert plan.warnings
    assert slurm_plan({CONF: b""}).warnings == ()


@pytest.mark.parametrize(
    "prefix", ["/opt/a b", "/opt/a'b", "/opt/\n", "/opt/\u00e9", "/" + "x" * 100]
)
def test_a_place_that_no_batch_system_could_be_told_is_refused(prefix: str) -> None:
    with pytest.raises(EncampError, match="cannot be at") as refused:
        check_prefix(prefix)
    assert "--prefix" in refused.value.hint
    check_prefix("/usr/lib/encamp")


def test_rules_are_written_for_slurm() -> None:
    settings = BatchSettings(
        system="slurm",
        rules=(
            Rule(environment="mini", queue="long", user="alice", group="cms"),
            Rule(environment="", account="ops", user="unknown"),
        ),
        environments=("mini", "debian-12.1"),
        features=True,
        bait_feature="encamp",
    )
    first = 'environment = "mini", queue = "long", user = "alice", group = "cms"'
    uid, gid = {"alice": 7}.get, {"cms": 8}.get
    text = slurm_rules(settings, "/x", spank=True, nodes=("big",), uid=uid, gid=gid)
    assert text.splitlines()[1:] == [
        "return {",
        '   system = "slurm",',
        '   starter = "/x",',
        "   features = true,",
        "   spank = true,",
        '   bait_feature = "encamp",',
        '   environments = { ["mini"] = true, ["debian-12.1"] = true },',
        '   nodes = { ["big"] = true },',
        "   rules = {",
        f"      {{ {first}, uid = 7, gid = 8 }},",
        '      { environment = "", account = "ops", user = "unknown" },',
        "   },",
        "}",
    ]


@pytest.mark.parametrize(
    ("groups", "least"),
    [(None, 96), (b"ConstrainCores=yes\n", 96), (b"ConstrainRAMSpace = Yes # all\n", 176)],
)
def test_least_memory_of_a_job_counts_what_is_around_a_machine_where_groups_limit_it(
    groups: bytes | None, least: int
) -> None:
    present = {CONF: b""} if groups is None else {CONF: b"", "/etc/slurm/cgroup.conf": groups}
    rules = files(slurm_plan(present))["/etc/slurm/encamp_rules.lua"].after
    assert f"   least_memory = {least},\n".encode() in rules


def test_environments_of_other_batch_systems_nodes_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted: list[SlurmWanted | GridEngineWanted] = []

    def noted(one: SlurmWanted | GridEngineWanted, *_: object) -> Plan:
        wanted.append(one)
        return Plan(system=one.system, changes=())

    monkeypatch.setattr(planning, "cell", lambda _: cell())
    for system in (slurm, gridengine):
        monkeypatch.setattr(system, "plan", noted)
    for name in ("slurm", "pbs", "gridengine"):
        planning.plan(planning.Asked(system=name, conf=CONF))
    both = ("slurm-node",), ("gridengine-node",)
    assert [(one.nodes, one.other_nodes) for one in wanted] == [both, both, both[::-1]]


def test_environments_of_other_batch_systems_nodes_are_told_to_what_looks_at_jobs() -> None:
    elsewhere = slurm_plan({CONF: b""}, other_nodes=("gridengine-node",))
    rules = files(elsewhere)["/etc/slurm/encamp_rules.lua"].after
    assert b'   other_nodes = { ["gridengine-node"] = true },\n' in rules
    elsewhere = gridengine_plan(cell(), other_nodes=("slurm-node",))
    rules = files(elsewhere)["/usr/lib/encamp/gridengine-rules"].after
    assert b"\n=other_nodes\tslurm-node\n" in rules


# ── Grid Engine ──────────────────────────────────────────────────────────────────────────────────


ALLOWED = "ac,h,i,e,o,j,M,N,p,w"
"""What Grid Engine has jobs changed by, unless a site says otherwise."""


def cell(**changes: Any) -> Cell:
    usual = Cell(
        complexes="#name shortcut\nslots s INT <= YES YES 1 1000\n",
        queues={
            "long.q": {"starter_method": "NONE", "complex_values": "NONE"},
            "short.q": {"starter_method": "NONE", "complex_values": "x=1"},
        },
        configuration={"jsv_url": "none", "jsv_allowed_mod": ALLOWED},
        hosts=("n1", "n2"),
        calendar="",
        administrative=frozenset({"n1", "n2"}),
        submit=frozenset({"n1"}),
    )
    return msgspec.structs.replace(usual, **changes)


def gridengine_plan(found: Cell | None, former: Installed | None = None, **changes: Any) -> Plan:
    wanted = GridEngineWanted(
        system="gridengine", configuration="/etc/encamp", surroundings={}, **changes
    )
    files = {**FILES, "/etc/encamp/batch.yaml": b"system: gridengine\n"}
    return gridengine.plan(wanted, files.get, found, former)


def objects(plan: Plan) -> dict[tuple[str, str, str], tuple[str, str]]:
    return {
        (change.sort, change.name, change.attribute): (change.before, change.after)
        for change in plan.changes
        if isinstance(change, Object)
    }


STARTER = "/usr/lib/encamp/encamp-starter"
URL = "script:/usr/lib/encamp/gridengine-jsv"


def test_grid_engine_gets_what_it_lacks() -> None:
    plan = gridengine_plan(cell())
    assert objects(plan) == {
        ("complex", "env", ""): ("", COMPLEXES[0]),
        ("complex", "bait", ""): ("", COMPLEXES[1]),
        ("calendar", "encamp", ""): ("", CLOSED),
        ("submit host", "n2", ""): ("", "n2"),
        ("configuration", "global", "jsv_url"): ("none", URL),
        ("configuration", "global", "jsv_allowed_mod"): (ALLOWED, modifiable(plan)),
        ("queue", "long.q", "complex_values"): ("NONE", "env=any"),
        ("queue", "long.q", "starter_method"): ("NONE", STARTER),
        ("queue", "short.q", "complex_values"): ("x=1", "env=any,x=1"),
        ("queue", "short.q", "starter_method"): ("NONE", STARTER),
    }


def modifiable(plan: Plan) -> str:
    """What users, and agents, may change of jobs then; empty: the same as before."""
    return objects(plan).get(("configuration", "global", "jsv_allowed_mod"), ("", ""))[1]


def test_users_change_their_jobs_as_before_but_for_what_the_verifier_goes_by() -> None:
    names = modifiable(gridengine_plan(cell())).split(",")
    assert names[:10] == ALLOWED.split(",")
    assert {"a", "pe_name", "hold_jid", "A", "r", "cwd"} <= set(names)
    assert not {"l_hard", "l_soft", "q_hard", "P", "v"} & set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("before", "after"),
    [("none", "a,ac,h"), ("NONE", "a,ac,h"), (ALLOWED, f"{ALLOWED},a"), ("h,a,ac", "")],
)
def test_where_jobs_were_verified_before_only_what_agents_need_is_allowed(
    before: str, after: str
) -> None:
    for url in ("/opt/site/jsv.pl", URL):
        found = cell(configuration={"jsv_url": url, "jsv_allowed_mod": before})
        assert modifiable(gridengine_plan(found)) == after


def test_list_that_an_administrator_has_changed_since_is_left_and_told() -> None:
    first = gridengine_plan(cell())
    assert len(first.warnings) == 1
    former = Installed(system="gridengine", version="1", when=0.0, changes=first.changes)
    for present, told in (("h,o", "add a, ac to jsv_allowed_mod"), ("h,a,ac", "")):
        found = cell(configuration={"jsv_url": URL, "jsv_allowed_mod": present})
        again = gridengine_plan(found, former)
        assert modifiable(again) == ""
        assert told in "".join(again.warnings)
        assert ("jsv_allowed_mod" in "".join(again.warnings)) == bool(told)


def test_offers_that_an_administrator_has_changed_since_are_left_and_told() -> None:
    recorded = merged((), gridengine_plan(cell()).changes)
    former = Installed(system="gridengine", version="1", when=0.0, changes=recorded)
    key = ("queue", "long.q", "complex_values")
    offers = {"starter_method": STARTER, "complex_values": "env=any,[n2=gpu=4]"}
    again = gridengine_plan(cell(queues={"long.q": offers}), former)
    assert key not in objects(again)
    assert "complex_values 'env=any,[n2=env=any,gpu=4]' long.q" in "".join(again.warnings)
    # What we have made of it, or what was there before, is not.
    for present in ("NONE", "env=any"):
        queue = {"starter_method": STARTER, "complex_values": present}
        again = gridengine_plan(cell(queues={"long.q": queue}), former)
        assert (key in objects(again)) == (present == "NONE")
        assert "long.q" not in "".join(again.warnings)


def test_jobs_that_wait_in_vain_after_a_complex_has_changed_are_told() -> None:
    plan = gridengine_plan(cell(complexes="\n".join([*FORMER, COMPLEXES[1]])))
    assert objects(plan)["complex", "env", ""] == (FORMER[0], COMPLEXES[0])
    assert "submitted anew" in "".join(plan.warnings)
    assert "submitted anew" not in "".join(gridengine_plan(cell()).warnings)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("none", STARTER),
        ("NONE,[@small=NONE]", f"{STARTER},[@small={STARTER}]"),
        ("NONE,[@small=none],[n1=NONE]", f"{STARTER},[@small={STARTER}],[n1={STARTER}]"),
    ],
)
def test_starter_begins_jobs_also_on_hosts_that_a_queue_names_apart(
    before: str, after: str
) -> None:
    """Grid Engine leaves what is said of such hosts, unless they are named."""
    key = ("queue", "a.q", "starter_method")
    found = cell(queues={"a.q": {"starter_method": before}})
    assert objects(gridengine_plan(found))[key] == (before, after)
    assert key not in objects(gridengine_plan(cell(queues={"a.q": {"starter_method": after}})))


def test_only_chosen_queues_are_changed() -> None:
    plan = gridengine_plan(cell(), queues=("short.q",))
    assert {name for sort, name, _ in objects(plan) if sort == "queue"} == {"short.q"}
    with pytest.raises(EncampError) as caught:
        gridengine_plan(cell(), queues=("nosuch.q",))
    assert "long.q, short.q" in caught.value.hint


def test_hosts_that_need_the_starter_first_are_named() -> None:
    assert "n1, n2" in gridengine_plan(cell()).warnings[0]


def test_a_cell_that_is_set_up_is_left_alone() -> None:
    done = cell(
        complexes="\n".join(COMPLEXES),
        queues={"long.q": {"starter_method": STARTER, "complex_values": "x=1,env=any"}},
        configuration={"jsv_url": URL, "jsv_allowed_mod": f"{ALLOWED},a"},
        calendar=CLOSED,
        submit=frozenset({"n1", "n2"}),
    )
    assert objects(gridengine_plan(done)) == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("NONE", "env=any"),
        ("x=1,y=2", "env=any,x=1,y=2"),
        ("NONE,[@gpu=gpu=4]", "env=any,[@gpu=env=any,gpu=4]"),
        ("x=1,[@gpu=gpu=4,x=2],[n1=NONE]", "env=any,x=1,[@gpu=env=any,gpu=4,x=2],[n1=env=any]"),
        ("env=any,x=1,[@gpu=gpu=4]", "env=any,x=1,[@gpu=env=any,gpu=4]"),
        ("x=1,env=any,[n1=env=mini,x=2]", "x=1,env=any,[n1=env=mini,x=2]"),
        ("environ=any,[n1=x=env]", "env=any,environ=any,[n1=env=any,x=env]"),
    ],
)
def test_environments_are_offered_also_where_hosts_have_lists_of_their_own(
    before: str, after: str
) -> None:
    assert with_offer(before, "env=any") == after


def test_a_host_that_is_not_the_master_is_refused_unless_that_sees_the_script() -> None:
    elsewhere = cell(masters=Masters(name="front", here=False, shadows=("second", "third")))
    with pytest.raises(EncampError) as caught:
        gridengine_plan(elsewhere)
    assert caught.value.code is Code.WRONG_STATE
    assert "which is front" in caught.value.sentence
    assert "Run this on front." in caught.value.hint
    assert objects(gridengine_plan(elsewhere, shared=True))
    assert gridengine_plan(None).changes == (), "hosts that only run jobs need no master"


def test_shadow_masters_are_left_to_the_administrator() -> None:
    shadowed = cell(masters=Masters(name="front", shadows=("second", "third")))
    told = "takes over (second, third) needs /usr/lib/encamp/gridengine-jsv and"
    assert any(told in step for step in gridengine_plan(shadowed).left)
    for plan in (gridengine_plan(shadowed, shared=True), gridengine_plan(cell())):
        assert "shadow" not in "".join(plan.left)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("front", "front", True),
        ("front", "Front.example.org", True),
        ("front.example.org", "front", True),
        ("front.example.org", "front.example.org.", True),
        ("front.example.org", "front.example.com", False),
        ("front", "front2", False),
        ("front.example.org", "fron", False),
    ],
)
def test_a_host_is_known_with_and_without_its_domain(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is same


def test_a_verifier_of_the_site_is_called_by_ours() -> None:
    plan = gridengine_plan(cell(configuration={"jsv_url": "script:/opt/site/jsv.pl"}))
    assert b"site_jsv='/opt/site/jsv.pl'" in files(plan)["/usr/lib/encamp/gridengine-jsv"].after


def test_a_verifier_of_the_site_stays_known_when_installed_again() -> None:
    first = gridengine_plan(cell(configuration={"jsv_url": "/opt/site/jsv.pl"}))
    former = Installed(system="gridengine", version="1", when=0.0, changes=first.changes)
    again = gridengine_plan(cell(configuration={"jsv_url": URL}), former)
    assert b"site_jsv='/opt/site/jsv.pl'" in files(again)["/usr/lib/encamp/gridengine-jsv"].after


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"complexes": "env e INT <= YES YES 0 0\n"}, "There is a complex 'env' already"),
        ({"calendar": "year NONE\nweek NONE"}, "There is a calendar 'encamp' already"),
        ({"configuration": {"jsv_url": "tcl:u@/opt/jsv"}}, "cannot be called by another one"),
        (
            {"queues": {"a.q": {"starter_method": "/opt/starter"}}},
            "Queue 'a.q' has a starter_method of its own: /opt/starter",
        ),
        (
            {"queues": {"a.q": {"starter_method": "NONE,[@small=/opt/starter]"}}},
            "Queue 'a.q' has a starter_method of its own: NONE,[@small=/opt/starter]",
        ),
    ],
)
def test_what_is_the_sites_own_is_not_overwritten(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EncampError) as caught:
        gridengine_plan(cell(**changes))
    assert caught.value.code is Code.WRONG_STATE
    assert said in caught.value.sentence


def test_an_execution_host_needs_only_files() -> None:
    assert gridengine_plan(None).changes == ()


def test_rules_are_written_for_grid_engine() -> None:
    settings = BatchSettings(
        system="gridengine",
        rules=(Rule(environment="mini", queue="long.q"), Rule(environment="", user="ops")),
        environments=("mini", "x"),
    )
    lines = gridengine_rules(settings, ("big", "node")).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        f"=memory\t{176 << 20}",
        "=nodes\tbig\tnode",
        "=environments\tmini\tx",
        "mini\tlong.q\t-\t-\t-",
        "none\t-\t-\tops\t-",
    ]


def shown(change: Change) -> str:
    return "\n".join(difference(change, {"/x": b"a\nb\n"}.get))


def test_changes_are_shown_as_differences() -> None:
    assert shown(File(path="/y", after=b"\0")) == "+ new file /y (1 B, mode 0644)"
    assert shown(File(path="/x", after=b"a\nc\n")).splitlines()[2:] == [
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]
    change = Object(sort="queue", name="a.q", attribute="starter_method", before="NONE", after="/s")
    assert headline(change) == "starter_method of Grid Engine's queue 'a.q'"
    assert shown(change).splitlines()[2:] == ["-starter_method NONE", "+starter_method /s"]
