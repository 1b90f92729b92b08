"""The OpenAPI document. Addresses and parameters come from the handlers, and the shapes of what is
told and taken from the same structs that are told and taken."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

import msgspec
from litestar import Litestar, Response, get
from litestar.routes import HTTPRoute

from encamp.model.problem import CODES

REFERENCE = "#/components/schemas/{name}"
HEADERS = {
    "401": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
    "429": {
        "Retry-After": {
            "required": True,
            "description": "Seconds.",
            "schema": {"type": "string", "pattern": "^[0-9]+$"},
        }
    },
}


@get("/v1/openapi.json", include_in_schema=False)
async def document_handler() -> Response[bytes]:
    return Response(document(), media_type="application/json")


@cache
def document() -> bytes:
    from encamp.manager.api.application import described

    application = described()
    made = application.openapi_schema.to_schema()
    for path in made["paths"].values():
        for operation in path.values():
            _polish(operation)
    roots = _roots(application)
    _, schemas = msgspec.json.schema_components(roots, ref_template=REFERENCE)
    for struct in _structs(roots):
        for field, about in _about_fields(struct).items():
            schemas[struct.__name__]["properties"][field]["description"] = about
    schemas["Problem"]["properties"]["code"]["enum"] = sorted(CODES)
    _say_plainly(schemas)
    made["components"]["schemas"].update(schemas)
    return msgspec.json.format(msgspec.json.encode(made))


def _say_plainly(schema: Any) -> None:
    """Of an array of so many items, that there are no further ones is said twice; the second way is
    one that generators of clients stumble over."""
    if isinstance(schema, dict):
        if schema.get("items") is False:
            del schema["items"]
        for part in schema.values():
            _say_plainly(part)
    elif isinstance(schema, list):
        for part in schema:
            _say_plainly(part)


def _polish(operation: dict[str, Any]) -> None:
    """What the framework does not say, or says twice."""
    operation["summary"] = operation["description"].partition(". ")[0].rstrip(".")
    for parameter in operation.get("parameters", ()):
        # In an address there is no null: what is not said is left out.
        choices = parameter["schema"].pop("oneOf", None)
        if choices is not None:
            parameter["schema"].update(choices[0])
            about = parameter["schema"].pop("description", "")
            parameter.setdefault("description", about)
    for status, headers in HEADERS.items():
        if status in operation["responses"]:
            operation["responses"][status]["headers"] = headers


def _roots(application: Litestar) -> list[type[msgspec.Struct]]:
    """What is told and taken as a whole."""
    found: dict[Any, None] = {}
    for route in application.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            fields = handler.parsed_fn_signature
            found[fields.return_type.annotation] = None
            if "data" in fields.parameters:
                found[fields.parameters["data"].annotation] = None
            for response in (handler.responses or {}).values():
                found[response.data_container] = None
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


def _structs(roots: list[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """They, and all that they are made of."""
    found: set[type[msgspec.Struct]] = set()
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(roots))
    while waiting:
        match waiting.pop():
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in found:
                found.add(cls)
                waiting += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types):
                waiting += types
            case msgspec.inspect.CollectionType(item_type=kind):
                waiting.append(kind)
            case msgspec.inspect.TupleType(item_types=kinds):
                waiting += kinds
            case msgspec.inspect.DictType(value_type=kind):
                waiting.append(kind)
    return found


def _about_fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The sentences that stand below fields in the code."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for field, about in zip(made.body, made.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(about, ast.Expr)
            and isinstance(about.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(about.value.value).split())
    return found
