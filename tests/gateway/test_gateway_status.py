"""Every kind of error text gets the status that says the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bunqueue.gateway.http.status import INVALID, status_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("Not authenticated", 401),
        ("Invalid token", 401),
        ("Job not found", 404),
        ("Cron job not found", 404),
        ("Webhook not found", 404),
        ("Worker not found", 404),
        ("Child job not found: abc", 404),
        ("Parent job not found: abc", 404),
        ("Unknown command: Nope", 404),
        ("Job not found or not active (or invalid token)", 409),
        ("Job not found or cannot be cancelled", 409),
        ("Job is not active (current state: waiting)", 409),
        ("Job abc is being cancelled: only its end can be reported", 409),
        ("Job abc has no parent", 409),
        ("Parent job abc is completed: it cannot wait for a child", 409),
        ("Lock not found or invalid token", 409),
        ("Lock token required for job abc", 409),
        ("Invalid or expired lock token for job abc", 409),
        ("Cannot move job from state 'active' to waiting", 409),
        ("Cannot replace deduplicated job abc because live jobs depend on it", 409),
        ("Duplicate unique_key (extended TTL)", 409),
        ("Group a has reached its maximum size of 3", 409),
        ("Too many webhooks (max 1000): remove one that is no longer needed", 409),
        ("Job data too large (max 10MB)", 413),
        ("jobs[3]: Job data too large (max 10MB)", 413),
        ("Job is too large for one answer, ask for fewer with a smaller limit", 413),
        ("The answer of 70000000 bytes does not fit into a frame (max 67108864)", 413),
        ("Rate limit exceeded", 429),
        ("Job id abc belongs to a flow that is being pushed, try again", 429),
        ("Ids like abc are being taken by other clients all the time, try again", 429),
        ("Shard unavailable: shard 1 is restarting, try again", 503),
        ("Storage is full (database or disk is full): free space on /data, then this is accepted again", 503),
        ("Invalid command format", 400),
        ("Dependency job not found: abc", 422),
        ("priority must be at most 1000000", 422),
        ("Queue name is required", 422),
        ("Invalid cron expression: nonsense", 422),
        ("queue not found is a funny name", 422),
    ],
)
def test_status(error: str, code: int) -> None:
    assert status_of(error) == code


@pytest.mark.parametrize(
    ("code", "expected"),
    [("STORAGE_DAMAGED", 500), ("MEMORY_LIMIT", 503), ("STORAGE_FULL", 503), ("OF_A_NEWER_SERVER", 404)],
)
def test_a_code_decides_where_it_is_known(code: str, expected: int) -> None:
    assert status_of("Job not found", code) == expected


def texts() -> set[str]:
    """The beginnings of all errors that shards and router give, as far as they are written out."""
    found = set()
    for file in (*(ROOT / "shardproc").rglob("*.py"), *(ROOT / "router").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("CommandError", "ErrorReply"):
                for value in (*node.args, *(word.value for word in node.keywords)):
                    text = ast.unparse(value)
                    if match := re.match(r"f?['\"]([^{'\"]+)", text):
                        found.add(match[1])
    return found


def test_what_is_about_no_field_is_not_taken_for_invalid() -> None:
    words = ("not found", "token", "try again", "unavailable", "too large", "Job is ")
    stated = [text for text in texts() if any(word in text for word in words)]
    assert len(stated) > 20
    invalid = {text for text in stated if status_of(text) == INVALID}
    assert invalid <= {"Dependency job not found: ", "flow dependency not found: ", "flow parent not found: "}
