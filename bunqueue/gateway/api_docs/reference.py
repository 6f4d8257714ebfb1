"""The page /docs: the OpenAPI document for people, as one HTML page without scripts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from ..http.transcode import write_json

Schema = dict[str, Any]

STYLE = """ :root { color-scheme: light dark; --line: light-dark(#d9dce1, #363b44); --dim: light-dark(#5b6470,
#9aa4b2) } body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
overflow-wrap: anywhere }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) } details { border-bottom: 1px solid
var(--line); padding: .35rem 0 } summary { cursor: pointer } summary span { color: var(--dim) } code, pre {
font: 14px/1.5 ui-monospace, monospace } pre { overflow: auto; padding: .75rem; border: 1px
solid var(--line); border-radius: 4px } table { border-collapse: collapse; width: 100% } td, th {
text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--line) }
nav a {
margin-right: 1rem }
"""
_hash = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_hash}'; base-uri 'none'; frame-ancestors 'none'"


def page(document: Schema) -> str:
    """The page of a document."""
    tags = [tag["name"] for tag in document["tags"]]
    body = "".join(_section(document, tag) for tag in tags)
    links = " ".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in tags)
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>bunqueue: HTTP</title>'
        f"<style>{STYLE}</style></head><body><h1>bunqueue {escape(info['version'])}: HTTP</h1>"
        f"{''.join(f'<p>{_inline(part)}</p>' for part in info['description'].split(chr(10) * 2))}"
        f'<p><a href="/openapi.json">openapi.json</a></p><nav>{links}</nav>{body}</body></html>'
    )


def _anchor(tag: str) -> str:
    return re.sub(r"\W+", "-", tag.lower())


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _section(document: Schema, tag: str) -> str:
    found = [
        _operation(document, method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if tag in operation["tags"]
    ]
    return f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{"".join(found)}'


def _operation(document: Schema, method: str, path: str, operation: Schema) -> str:
    reply = operation["responses"]["200"]
    ((kind, content),) = reply["content"].items()
    rows = "".join(_row(*each) for each in _fields(operation))
    table = f"<table><tr><th>Field<th>In<th>Type<th></tr>{rows}</table>" if rows else ""
    shown = _example(document, content["schema"]) if kind.endswith("json") else escape(kind)
    return (
        f"<details><summary><code><b>{method.upper()}</b> {escape(path)}</code> "
        f"<span>{_inline(operation['summary'])}</span></summary>"
        f"<p>{_inline(operation.get('description', ''))}</p>{table}"
        f"<p>{_inline(reply['description'])}</p><pre>{shown}</pre></details>"
    )


def _fields(operation: Schema) -> Iterator[tuple[str, str, Schema, bool]]:
    """The name, the place and the schema of each field, and whether it is required."""
    for each in operation["parameters"]:
        schema = each.get("schema") or each["content"]["application/json"]["schema"]
        yield each["name"], each["in"], schema, each["required"]
    body = operation.get("requestBody", {"content": {}})["content"]
    for content in body.values():
        for name, schema in content["schema"].get("properties", {}).items():
            yield name, "body", schema, name in content["schema"]["required"]


def _row(name: str, place: str, schema: Schema, required: bool) -> str:
    must = " <b>required</b>" if required else ""
    text = _inline(schema.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code>{must}<td>{place}<td>{escape(words(schema))}<td>{text}</tr>"


def words(schema: Schema) -> str:
    """The type of a field in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(words(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(write_json(each).decode() for each in schema["enum"])
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        kind = f"list of {words(schema.get('items', {}))}"
    bounds = [f"at least {schema['minimum']}"] if "minimum" in schema else []
    bounds += [f"at most {schema['maximum']}"] if "maximum" in schema else []
    bounds += [f"up to {schema['maxLength']} characters"] if "maxLength" in schema else []
    bounds += [f"up to {schema['maxItems']} entries"] if "maxItems" in schema else []
    return ", ".join((kind, *bounds))


def _example(document: Schema, schema: Schema, depth: int = 0) -> str:
    """The shape of a reply, with its types."""
    if "$ref" in schema:
        found = document["components"]["schemas"][str(schema["$ref"]).rpartition("/")[2]]
        return _example(document, found, depth)
    fields = schema.get("properties")
    if not fields:
        return escape(words(schema))
    pad = "  " * (depth + 1)
    lines = [f"{pad}{escape(name)}: {_example(document, each, depth + 1)}" for name, each in fields.items()]
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
