"""Commands as tests compare them."""

from __future__ import annotations

from typing import Any

import msgspec


def said(command: Any) -> Any:
    """What a command says beyond the defaults, whether it came in its plain or its full form."""
    if isinstance(command, list):
        return [said(entry) for entry in command]
    if not isinstance(command, msgspec.Struct):
        return bytes(command) if isinstance(command, msgspec.Raw) else command
    fields = {field.name: field for field in msgspec.structs.fields(command)}
    values = {name: said(getattr(command, name)) for name in fields}
    return {name: value for name, value in values.items() if value != said(fields[name].default)}


MINIMAL: dict[str, Any] = {
    "queue": "q",
    "id": "x",
    "ids": ["x"],
    "jobs": [{}],
    "failures": [{}],
    "flow": "f",
    "nodes": [{"name": "n", "queue": "q", "input": {}}],
    "input": {},
    "group": "0123456789ab",
    "count": 1,
    "progress": 1,
    "token": "t",
    "deduplicationId": "k",
    "priority": 0,
    "delay": 0,
    "message": "m",
    "duration": 1,
    "tokens": [],
    "durations": [],
    "limit": 1,
    "name": "n",
    "url": "https://example.com/",
    "events": ["job.completed"],
    "webhookId": "w",
    "workerId": "w",
    "enabled": True,
    "customId": "x",
    "childId": "x",
    "parentId": "y",
    "jobId": "x",
    "config": {},
    "maxLength": 1,
    "number": 1,
    "workflows": {},
    "functions": [],
    "groupId": "g",
    "max": 1,
    "concurrency": 1,
    "weight": 1,
    "shard": 0,
    "host": "one",
    "action": "retry",
    "trial": "1",
    "steps": [],
    "groups": [{"steps": ["a"]}],
    "key": "k",
    "data": {"delivered": True, "status": 200, "error": None, "durationMs": 1.0},
}
"""A right value for each field that some command, or an entry of one of its lists, cannot do without."""
