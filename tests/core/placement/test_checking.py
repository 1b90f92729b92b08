"""What makes no sense, or could never be placed, is said at submission."""

from __future__ import annotations

from typing import Any

import pytest

from encamp.core.expressions.frame import Frame
from encamp.core.expressions.language import FEW_STEPS
from encamp.core.happenings import Submitted
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Limit, Policy
from encamp.model.request import Together
from encamp.model.size import Size
from tests.core.placement.small_site import GIB, Site, request


def site_of_two(policy: Policy | None = None) -> Site:
    site = Site(policy)
    site.join("a", cpus=4, memory=8, readings={"gpus": 0, "load1": 9.0})
    site.join("b", cpus=8, memory=4, readings={"gpus": 0, "load1": 9.0})
    return site


def refusal(site: Site, **more: Any) -> EncampError:
    with pytest.raises(EncampError) as caught:
        site.core.check_request(request("r", **more))
    return caught.value


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"requirements": "host.load1 < 2"},
        {"requirements": "host.gpus == 0 and host.load1 < 2"},
        {"requirements": "host.kvm == 'works'"},
        {"requirements": "host.load1 < mean(h.load1 for h in hosts)"},
        {"requirements": "hour < 8"},
        {"requirements": "host.room_memory > 100 * GiB or True"},
        {"rank": "pack"},
        {"rank": "host.cpus / 0"},
        {"rank": "-host.load1"},
        {"count": 8},
        {"count": 8, "together": Together.ONE_HOST, "size": Size(1, GIB // 2)},
        {"count": 4, "requirements": "host.cpus == 8"},
        {"count": 2, "together": Together.APART},
    ],
)
def test_what_could_be_placed_some_day_is_taken(more: dict[str, Any]) -> None:
    site_of_two().core.check_request(request("r", **more))


NUMBERS = f"[{', '.join(map(str, range(300)))}]"
LONG = f"sum(sum(x * y + host.load1 for y in {NUMBERS}) for x in {NUMBERS})"


@pytest.mark.parametrize(("what", "text"), [("requirements", f"{LONG} > 0"), ("rank", LONG)])
def test_what_takes_long_for_each_host_is_not_taken(what: str, text: str) -> None:
    error = refusal(site_of_two(), **{what: text})
    assert error.code is Code.USAGE
    assert "more than 10,000 steps for each host" in error.sentence


@pytest.mark.parametrize("of", ["jobs", "requests", "commands"])
@pytest.mark.parametrize("what", ["requirements", "rank"])
def test_nothing_is_found_out_about_what_others_run(what: str, of: str) -> None:
    text = f"len([one.id for one in {of}])"
    error = refusal(site_of_two(), **{what: text if what == "rank" else f"{text} > 0"})
    assert error.code is Code.USAGE
    assert of in error.sentence


def test_what_comes_to_take_long_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_of_two()
    spent: list[int] = []
    spend = Frame.spend

    def counted(frame: Frame, steps: int) -> None:
        spent.append(steps)
        spend(frame, steps)

    monkeypatch.setattr(Frame, "spend", counted)
    # When it was checked, it may have been another site.
    site.happens(Submitted(request("r", requirements=f"{LONG} > 0")))
    assert spent
    assert sum(spent) < 2 * 2 * FEW_STEPS


def test_a_mistake_in_the_requirements_is_told_with_its_place() -> None:
    error = refusal(site_of_two(), requirements="host.lod1 < 2")
    assert error.code is Code.USAGE
    assert error.sentence == (
        "The requirements 'host.lod1 < 2' cannot be read, at 1:1: a host has no 'lod1';"
        " did you mean 'load1'?"
    )


@pytest.mark.parametrize("requirements", ["machine.cpus > 1", "host.cpus", "len(hosts", "x" * 9000])
def test_requirements_are_an_expression_about_a_host(requirements: str) -> None:
    assert refusal(site_of_two(), requirements=requirements).code is Code.USAGE


def test_a_mistake_in_the_rank_lists_those_that_are_shipped() -> None:
    error = refusal(site_of_two(), rank="pakc")
    assert error.sentence == "There is no rank 'pakc'."
    assert error.hint.startswith("Did you mean 'pack'? Shipped are: fastest, pack, ready, spread;")
    error = refusal(site_of_two(), rank="host.cpsu + 1")
    assert "The rank 'host.cpsu + 1' cannot be read, at 1:1: a host has no" in error.sentence
    assert error.hint.startswith("Shipped ranks are: fastest, pack, ready, spread.")
    assert error.detail == ""


def test_ranks_of_a_policy_are_checked_too() -> None:
    site = site_of_two()
    site.core.check_policy(Policy(rank=("pack", "host.cpus")))
    with pytest.raises(EncampError, match=r"The rank 'host.spead' cannot be read"):
        site.core.check_policy(Policy(rank=("pack", "host.spead")))


def test_a_rank_of_the_policy_that_cannot_be_read_keeps_nobody_waiting() -> None:
    site = site_of_two(Policy(rank=("host.speed",)))
    site.submit("r")
    assert site.host("r") == "a"


def test_requirements_that_no_host_could_ever_meet() -> None:
    error = refusal(site_of_two(), requirements="host.gpus >= 1 and host.load1 < 2")
    assert error.sentence == (
        "No host of this site could ever meet 'host.gpus >= 1 and host.load1 < 2':"
        " of a host.gpus is 0; of b host.gpus is 0."
    )


def test_what_hosts_have_is_told_as_people_write_it() -> None:
    error = refusal(site_of_two(), requirements="host.memory_total > 64 * GiB")
    assert error.sentence.endswith(
        "of a host.memory_total is 8.5 GiB; of b host.memory_total is 4.5 GiB."
    )


def test_requirements_only_count_where_the_machine_would_fit() -> None:
    site = site_of_two()
    site.core.check_request(request("r", requirements="host.cpus == 8", size=Size(1, 2 * GIB)))
    refusal(site, requirements="host.cpus == 8", size=Size(1, 6 * GIB))


def test_a_machine_that_is_larger_than_every_host() -> None:
    error = refusal(site_of_two(), size=Size(1, 64 * GIB))
    assert error.sentence == (
        "No host of this site could ever take a machine of 1 cpu, 64 GiB (the largest is a:"
        " 4 processors, 8 GiB of memory for machines)."
    )


def test_hosts_that_are_not_there_now_may_come_back() -> None:
    site = site_of_two()
    site.lose("b")
    site.core.check_request(request("r", size=Size(8, GIB)))
    refusal(site, size=Size(9, GIB))


def test_nothing_is_refused_before_all_hosts_are_known() -> None:
    site = Site(settled=False)
    site.join("small", cpus=1)
    site.core.check_request(request("r", size=Size(8, GIB)))
    assert refusal(site, requirements="host.lod1 < 2").code is Code.USAGE


def test_nothing_is_known_of_a_site_without_hosts() -> None:
    Site().core.check_request(request("r", size=Size(1000, GIB)))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"count": 13}, "13 machines of 1 cpu, 1 GiB could never be at once: if they were"),
        ({"count": 9, "together": Together.ONE_HOST}, "could never be on one host"),
        ({"count": 3, "together": Together.APART}, "could never be on hosts of their own"),
        ({"count": 5, "requirements": "host.cpus == 8"}, "Only 1 of the hosts that could take"),
        ({"count": 0}, "0 machines cannot be asked for"),
        ({"count": 10**9}, "machines cannot be asked for at once"),
    ],
)
def test_a_group_that_is_too_large(more: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(site_of_two(), **more).sentence


def test_a_limit_that_is_smaller_than_the_request() -> None:
    site = site_of_two(Policy(limits=(Limit(name="students", owners=("@s",), cpus=2),)))
    site.core.check_request(request("r", count=3))
    error = refusal(site, count=3, groups=("s",))
    assert error.code is Code.NOT_PERMITTED
    assert error.sentence == (
        "3 machines of 1 cpu, 1 GiB are more than limit 'students' allows: 2 processors at a time."
    )
    site = site_of_two(Policy(limits=(Limit(name="small", cpus=1),)))
    assert (
        "1 machine of 2 cpu, 1 GiB is more than limit 'small' allows: 1 processor at a time."
        in (refusal(site, size=Size(2, 1 << 30)).sentence)
    )


def test_an_owner_for_whom_no_host_makes_machines() -> None:
    site = Site()
    site.join("a", owners=("anna",))
    site.core.check_request(request("r", owner="anna"))
    assert "makes machines for berta" in refusal(site, owner="berta").sentence
