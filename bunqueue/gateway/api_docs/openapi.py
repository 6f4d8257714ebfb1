"""The OpenAPI document, generated from the declarations of the commands."""

from __future__ import annotations

import re
from collections import Counter

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Spec
from bunqueue.protocol.commands.base import Tag

from ..http.resources import DEFAULTS, OFFERED, RESOURCES, Resource
from .schemas import REFERENCE, Schema, Schemas, prose

ERROR: Schema = {
    "type": "object",
    "required": ["ok", "error", "code"],
    "properties": {
        "ok": {"const": False},
        "error": {"type": "string", "description": "what is wrong, and what to do about it"},
        "code": {
            "type": "string",
            "description": "what is wrong, for programs; a newer server may have more codes",
            "examples": list(Code),
        },
        "field": {"type": "string", "description": "the field that is refused, as in jobs[3].priority"},
        "value": {"description": "what it was, as far as that is short"},
        "bound": {"description": "what it may be: a number, or the values that are allowed"},
        "retryAfter": {"type": "integer", "description": "ms until the same request may succeed"},
    },
}
INTRODUCTION = """\
The commands of the TCP protocol as resources: the same fields, the same checks, the same errors. Times are in
milliseconds, instants in milliseconds since 1970.

If the server has tokens, send one as `Authorization: Bearer TOKEN`. A read-only token is refused with
403 where the request would change something.

A refusal is `{"ok": false, "error": "...", "code": "..."}`. Its status is 400 if the request cannot be
read, 401 or 403 for tokens and origins, 404 if something does not exist, 409 if its state does not allow
the request, 413 or 415 for bodies, 422 for fields, 429 for too many requests and 503 if a part of the
server is unavailable. The last two have a `Retry-After`.
"""


def document(version: str) -> Schema:
    """The whole document."""
    schemas = Schemas()
    paths: dict[str, Schema] = _plain_paths()
    used: Counter[str] = Counter()
    for each in RESOURCES:
        used[each.command] += 1
        suffix = f"_{used[each.command]}" if used[each.command] > 1 else ""
        operation = _operation(each, schemas, each.command + suffix)
        paths.setdefault(each.path, {})[each.method.lower()] = operation
    paths["/commands/{command}"] = {"post": _any_command()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "bunqueue", "version": version, "description": INTRODUCTION},
        "security": [{}, {"token": []}],
        "tags": [{"name": tag.value} for tag in Tag],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, "Error": ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(resource: Resource, schemas: Schemas, name: str) -> Schema:
    spec = resource.spec
    request = schemas.of_request(spec.request)
    fields, required = request["properties"], request["required"]
    text = prose(spec.request.__doc__ or "")
    operation: Schema = {
        "operationId": name,
        "tags": [resource.tag.value],
        "summary": re.split(r"(?<=\.) |: |; ", text)[0].rstrip(".:;"),
        "description": _described(resource, spec, text),
        "parameters": [_parameter(each, "path", fields[each], True) for each in resource.names],
        "responses": _responses(schemas.of(spec.reply)),
    }
    others = {each: fields[each] for each in fields if each not in (*resource.names, resource.whole)}
    missing = [each for each in required if each in others]
    if resource.has_body:
        body = {
            "type": "object",
            "properties": others,
            "required": missing,
            "additionalProperties": False,
        }
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": bool(missing), "content": content}
    else:
        operation["parameters"] += [
            _parameter(each, "query", schema, each in missing) for each, schema in others.items()
        ]
    if resource.whole is not None:
        content = {"application/json": {"schema": fields[resource.whole]}}
        operation["requestBody"] = {"required": False, "content": content}
    return operation


def _described(resource: Resource, spec: Spec, text: str) -> str:
    parts = [text, f"The command `{spec.name}`."]
    if resource.whole is not None:
        parts.append(f"The body, whatever JSON it is, is the field `{resource.whole}`.")
    if defaults := DEFAULTS.get(spec.name):
        parts.append(
            f"Unless the request says otherwise, with {' and '.join(f'`{name}`' for name in defaults)}."
        )
    if spec.writes:
        parts.append("Needs a token that may write, where there are tokens.")
    return " ".join(parts)


def _parameter(name: str, place: str, schema: Schema, required: bool) -> Schema:
    found: Schema = {"name": name, "in": place, "required": required}
    if place == "query" and _is_map(schema):
        found["content"] = {"application/json": {"schema": schema}}
    else:
        found["schema"] = {**schema, "minLength": 1} if place == "path" else schema
    return found


def _is_map(schema: Schema) -> bool:
    return any("$ref" in each for each in (schema, *schema.get("anyOf", ())))


def _responses(reply: Schema) -> Schema:
    return {
        "200": {
            "description": reply.get("description", "Done"),
            "content": {"application/json": {"schema": reply}},
        },
        "default": {
            "description": "Refused, or not possible at present",
            "content": {"application/json": {"schema": {"$ref": REFERENCE + "Error"}}},
        },
    }


def _any_command() -> Schema:
    names = sorted(OFFERED)
    anything: Schema = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    return {
        "operationId": "command",
        "tags": ["Server"],
        "summary": "Any command",
        "description": "The fields of the command as a JSON object; the reply is that of the TCP protocol.",
        "parameters": [
            {"name": "command", "in": "path", "required": True, "schema": {"type": "string", "enum": names}}
        ],
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}},
        "responses": _responses(anything),
    }


def _plain_paths() -> dict[str, Schema]:
    """The paths that are not commands."""
    texts = {"type": "array", "items": {"type": "string"}}
    anything: Schema = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    found = {
        "/health": _get("health", "All at a glance; numbers only for those who may read", anything),
        "/healthz": _get("alive", "Whether the gateway answers: for liveness probes", None),
        "/ready": _get("ready", "Whether every shard answers and can store: for readiness probes", anything),
        "/prometheus": _get("prometheus", "All numbers as Prometheus reads them", None),
        "/audit": _get("audit", "Who changed what, oldest first", anything),
        "/session": {
            "get": _plain("session", "Who one is, and what one may do; without a token, too", anything),
            "post": _plain("signIn", "Sign in: a cookie for the token in the header", anything),
            "delete": _plain("signOut", "Sign out: the session and its cookie end", anything),
        },
        "/sessions": _get("sessions", "Who is signed in to the dashboard", anything),
        "/sessions/{id}": {"delete": _plain("endSession", "End the session of somebody", anything)},
        "/history": _get("history", "The last hour in points, for charts", anything),
        "/events": _get("events", "What happens, as Server-Sent Events; see the guide", None),
    }
    found["/audit"]["get"]["parameters"] = [
        _parameter(name, "query", {"type": kind}, False)
        for name, kind in (("who", "string"), ("since", "number"), ("limit", "integer"), ("cursor", "string"))
    ]
    found["/audit"]["get"]["parameters"].append(_parameter("what", "query", texts, False))
    found["/sessions/{id}"]["delete"]["parameters"] = [_parameter("id", "path", {"type": "string"}, True)]
    found["/history"]["get"]["parameters"] = [_parameter("after", "query", {"type": "number"}, False)]
    found["/events"]["get"]["parameters"] = [
        _parameter("queue", "query", texts, False),
        _parameter("event", "query", texts, False),
        _parameter("job", "query", {"type": "string"}, False),
        _parameter("after", "query", {"type": "string"}, False),
        _parameter("Last-Event-ID", "header", {"type": "string"}, False),
    ]
    found["/events"]["get"]["responses"]["200"]["content"] = {
        "text/event-stream": {"schema": {"type": "string"}}
    }
    return found


def _get(name: str, text: str, reply: Schema | None) -> Schema:
    return {"get": _plain(name, text, reply)}


def _plain(name: str, text: str, reply: Schema | None) -> Schema:
    responses = _responses(reply or {"type": "string"})
    if reply is None:
        responses["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "operationId": name,
        "tags": ["Server"],
        "summary": text,
        "parameters": [],
        "responses": responses,
    }
