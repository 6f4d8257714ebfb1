"""The OpenAPI document against the server: requests made from it find no failure and no unknown answer."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import httpx2
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.budget import budget
from support.server import Server
from support.waiting import PATIENCE_S
from support.web import fresh_queue

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ENDLESS = ("/events",)  # a stream
EXAMPLES = budget(1, 30)  # a resource and mode; there are some 115
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
LONGEST_MS = 20  # of what waits


def hasten(case: Case) -> None:
    """Let nothing wait for long, and no push be too old to be known again: that is answered with 503."""
    for part in (case.body, case.query):
        if isinstance(part, dict) and isinstance(part.get("timeout"), int | float):
            part["timeout"] = min(part["timeout"], LONGEST_MS)
    if isinstance(case.body, dict) and case.path in ("/jobs/{id}/wait", "/queues/{queue}/jobs/wait"):
        case.body.setdefault("timeout", LONGEST_MS)
    if isinstance(case.body, dict):
        case.body.pop("idempotencyAge", None)


def things(web: httpx2.Client) -> dict[str, str]:
    """What may be named in a path: there it is."""
    queue = fresh_queue()
    jobs = [{"data": n, "groupId": "g", "uniqueKey": f"key {n}", "maxAttempts": 1} for n in range(3)]
    ids = web.post(f"/queues/{queue}/jobs/bulk", json={"jobs": jobs}).json()["ids"]
    web.post(f"/queues/{queue}/jobs/pull-bulk", json={"count": 2})
    web.post(f"/jobs/{ids[0]}/fail", json={"error": "no luck", "stack": "here"})
    web.post(f"/jobs/{ids[1]}/logs", json={"message": "on it"})
    web.put(f"/crons/{queue}", json={"queue": queue, "schedule": "@daily"})
    worker = web.post("/workers", json={"name": "w", "queues": [queue]}).json()["data"]["workerId"]
    hook = web.post("/webhooks", json={"url": "https://example.invalid/", "events": ["job.failed"]}).json()
    web.put(f"/webhooks/{hook['data']['webhookId']}/enabled", json={"enabled": False})
    return {
        "queue": queue,
        "id": ids[1],
        "jobId": ids[0],
        "childId": ids[2],
        "groupId": "g",
        "deduplicationId": "key 2",
        "name": queue,
        "workerId": worker,
        "webhookId": hook["data"]["webhookId"],
    }


def name_things(case: Case, known: dict[str, str]) -> None:
    """Have a request be about what there is."""
    for name in case.path_parameters or {}:
        if name in known:
            case.path_parameters[name] = known[name]


def test_no_failure_and_no_surprise(web_server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{web_server.url}/openapi.json")
    answered: Counter[int] = Counter()
    with httpx2.Client(base_url=web_server.url, trust_env=False, timeout=PATIENCE_S) as web:
        for number, result in enumerate(schema.get_all_operations()):
            operation: Any = result.ok()
            if operation.path not in ENDLESS:
                # A good request, a bad one, none and none, in turns.
                for mode in budget(MODES[number % 4 :][:1], MODES):
                    attempt(operation, mode, things(web), answered)
    assert web_server.running
    assert set(answered) <= {200, 400, 404, 405, 409, 413, 415, 422}
    assert all(answered[code] > 1 for code in (200, 404, 409, 422)), answered


def attempt(operation: Any, mode: GenerationMode, known: dict[str, str], answered: Counter[int]) -> None:
    """Send some requests to one resource; every other one is about what there is."""
    numbers = count()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def try_it(case: Case) -> None:
        hasten(case)
        if next(numbers) % 2 == 0:
            name_things(case, known)
        response = case.call_and_validate(checks=CHECKS)
        answered[response.status_code] += 1

    with suppress(Unsatisfiable):  # where nothing is sent, nothing can be wrong
        try_it()
