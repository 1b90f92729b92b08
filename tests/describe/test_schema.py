"""What editors are told is what is checked: the schema accepts and rejects the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from encamp.describe.attributes import ENVIRONMENT
from encamp.describe.places import shipped_environments
from encamp.describe.schema import environments_schema, settings_schema
from tests.describe.describing import mistakes
from tests.yaml_examples import read_yaml_examples

DOCS = Path(__file__).parent.parent.parent / "docs"
VALIDATOR = Draft202012Validator(environments_schema())


def accepted(text: str) -> bool:
    return bool(VALIDATOR.is_valid(yaml.safe_load(text)))


def test_schemas_are_schemas() -> None:
    Draft202012Validator.check_schema(environments_schema())
    Draft202012Validator.check_schema(settings_schema())


def test_schema_accepts_what_is_shipped() -> None:
    VALIDATOR.validate(yaml.safe_load(Path(shipped_environments().path).read_text()))


def test_schema_accepts_what_is_documented() -> None:
    examples = [
        example
        for document in DOCS.glob("*.md")
        for example in read_yaml_examples(document.read_text())
    ]
    assert examples
    settings = Draft202012Validator(settings_schema())
    validators = {"environments.yaml": VALIDATOR, "settings.yaml": settings}
    for example in examples:
        # A site's other files have no schema; test_documents.py reads their examples.
        validator = validators.get(Path(example.name).name)
        if validator is not None:
            validator.validate(yaml.safe_load(example.text))


@pytest.mark.parametrize(
    "text",
    [
        "it: {extends: debian12}",
        "it: {extends: [a, b], cpus: 2, memory: 2G, disk: 0}",
        "it: {image: x:1.10, cpus: '${other.cpus}', templates: '${other.templates}'}",
        "it: {image: {debian: sid, packages+: x, version: 1.10}}",
        "it: {image: {from: x}, shares: [{source: a, readonly: true}, 'a:/b:ro']}",
        "it: {image: x, ready: {command: [a, b], timeout: 30s}, after: save}",
        "it: {image: x, context: {files: [{path: /a, content: b, mode: '0644'}]}}",
        "it: {image: x, context: {variables: {A: 1, B: text, C: 1.5, D: null}}}",
        "it: {image: x, disk: null, values: {a: [{b: c}]}}",
        "",
    ],
)
def test_schema_and_checker_both_accept(text: str) -> None:
    assert accepted(text)
    assert [told for told in mistakes(text) if "there is no environment" not in told] == [
        told for told in mistakes(text) if "refers to nothing" in told
    ]


@pytest.mark.parametrize(
    "text",
    [
        "it: {image: x, memroy: 2G}",
        "it: {image: x, cpus: -1}",
        "it: {image: x, cpus: 1.5}",
        "it: {image: x, cpus+: 1}",
        "it: {image: x, memory: lots}",
        "it: {image: x, after: destory}",
        "it: {image: x, templates: maybe}",
        "it: {image: x, ready: {timeout: soon}}",
        "it: {image: x, ready: {port: 70000}}",
        "it: {image: x, context: {files: [{path: /a}]}}",
        "it: {image: x, context: {files: [{content: a}]}}",
        "it: {image: x, context: {files: [{path: /a, content: b, mode: 0644}]}}",
        "it: {image: x, context: {users: [{name: eve}]}}",
        "it: {image: {debian: sid, fils: []}}",
        "it: {image: x, labels: [a]}",
        "it_1: {image: x}",
        "it: 5",
        "[]",
    ],
)
def test_schema_and_checker_both_reject(text: str) -> None:
    assert not accepted(text)
    assert mistakes(text)


def properties(schema: Any) -> set[str]:
    return set(schema["patternProperties"].popitem()[1]["properties"])


def test_schema_knows_every_attribute_and_how_to_add_to_lists() -> None:
    known = properties(environments_schema())
    assert set(ENVIRONMENT.attributes) <= known
    lists = {f"{name}+" for name, one in ENVIRONMENT.attributes.items() if one.is_list}
    assert known - set(ENVIRONMENT.attributes) == lists
    assert "classes+" in lists
    assert "cpus+" not in known


@pytest.mark.parametrize(
    "text", ["repositories: /srv", "image_limit: 20G", "signatures: {required: true}"]
)
def test_settings_have_a_schema_too(text: str) -> None:
    validator = Draft202012Validator(settings_schema())
    assert validator.is_valid(yaml.safe_load(text))
    assert not validator.is_valid({"repositries": "/srv"})
