"""What Prometheus is told, what the documents say about it, and what the dashboard shows."""

from __future__ import annotations

import json
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from encamp.model.token import Scope
from tests.conftest import ROOT
from tests.manager.api.calling import BODIES, Calling
from tests.manager.playing import machine

DASHBOARD = ROOT / "packaging" / "grafana" / "encamp.json"
DOCUMENT = ROOT / "docs" / "api.md"
NAME = re.compile(r"\b(encamp_[a-z_]+|process_[a-z_]+)\b")


async def told(calls: Calling) -> dict[str, Any]:
    """Samples by their names, after something of everything has happened."""
    agent = calls.bench.agent()
    async with agent.joined():
        await agent.report(machine("aa"))
        caller = await calls.caller("alice")
        await caller.post("/v1/requests", json={**BODIES["submit"], "cpus": 4, "count": 2})
        await calls.issued()
        (calls.bench.path.parent / "etc").mkdir(exist_ok=True)
        (calls.bench.path.parent / "etc" / "triggers.yaml").write_text(
            "lonely: {when: len(hosts) < 2, do: log('x')}"
        )
        calls.manager.load_triggers()
        await (await calls.with_header(None)).get("/v1/status")
        answer = await (await calls.caller("prometheus", Scope.READ)).get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        sample.name: sample
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_numbers_are_those_of_the_site(calls: Calling) -> None:
    samples = await told(calls)
    assert samples["encamp_commands_under_way"].value >= 1
    assert samples["encamp_machines"].labels == {"environment": "mini", "state": "running"}
    assert samples["encamp_http_refused_total"].labels == {"status": "401"}
    assert samples["encamp_tokens"].value == 3
    assert samples["encamp_store_in_trouble"].value == 0


def documented() -> dict[str, set[str]]:
    """The labels of each name in the document's table."""
    rows = re.findall(
        r"^\| (`(?:encamp|process)_.*?) \| (.*?) \|", DOCUMENT.read_text(), re.MULTILINE
    )
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


async def test_names_and_labels_are_those_that_are_documented(calls: Calling) -> None:
    """A histogram is documented by the name that its parts have in common."""
    found: dict[str, set[str]] = {}
    for name, sample in (await told(calls)).items():
        common = re.sub(r"_(bucket|count|sum)$", "", name)
        found.setdefault(common, set()).update(sample.labels.keys() - {"le"})
    assert found == documented()


async def test_dashboard_shows_only_what_there_is(calls: Calling) -> None:
    samples = await told(calls)
    board = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) >= 10
    for expression in expressions:
        named = NAME.findall(expression)
        assert named, expression
        assert set(named) <= set(samples), expression
    for expression in expressions:
        for labels in re.findall(r"by \(([^)]*)\)", expression):
            (name, *_) = NAME.findall(expression)
            wanted = {label.strip() for label in labels.split(",")}
            assert wanted <= {*samples[name].labels, "le"}, expression


async def test_names_of_callers_do_not_make_endless_numbers(calls: Calling) -> None:
    caller = await calls.caller("alice", Scope.READ)
    for number in range(20):
        await caller.request(f"METHOD{number}", f"/v1/nothing/{number}")
        await caller.get(f"/v1/hosts/node{number}")
    text = (await caller.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("encamp_http_requests_total")]
    assert len(lines) <= 4, lines
