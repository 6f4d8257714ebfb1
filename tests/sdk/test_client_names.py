"""The public names, and what importing them costs a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bunqueue


def test_every_public_name_is_there() -> None:
    for name in bunqueue.__all__:
        assert getattr(bunqueue, name).__name__ == name
    assert set(bunqueue.__all__) <= set(dir(bunqueue))
    assert set(bunqueue._MODULE_OF) == set(bunqueue.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        bunqueue.Quue  # noqa: B018


def test_servers_do_not_load_the_client() -> None:
    program = (
        "import sys, bunqueue.protocol.codec, bunqueue.model.job;"
        "print([m for m in sys.modules if m.startswith('bunqueue.client') or m == 'asyncio'])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_codes_of_errors_are_stable_and_unique() -> None:
    errors = [getattr(bunqueue, name) for name in bunqueue.__all__]
    codes = [
        error.code
        for error in errors
        if isinstance(error, type) and issubclass(error, bunqueue.BunqueueError)
    ]
    assert sorted(codes) == [
        "SCHEDULE_CONFLICT",
        "STORAGE_DAMAGED",
        "arguments",
        "auth_failed",
        "child_failed",
        "codec",
        "command_failed",
        "command_timeout",
        "connect_timeout",
        "connection_lost",
        "duplicate_job",
        "error",
        "file_in_use",
        "job_cancelled",
        "job_expired",
        "job_failed",
        "job_interrupted",
        "job_not_found",
        "job_postponed",
        "job_stopped",
        "job_suspended",
        "job_timeout",
        "key_missing",
        "lock_lost",
        "not_encrypted",
        "not_found",
        "option",
        "payload",
        "payload_tampered",
        "payload_too_large",
        "postpone_limit",
        "process_broken",
        "process_died",
        "queue_full",
        "result",
        "result_timeout",
        "retry",
        "shard_unavailable",
        "signal_timeout",
        "step_changed",
        "step_failed",
        "step_timeout",
        "storage",
        "tls_failed",
        "unrecoverable",
        "worker_broken",
        "workflow",
        "wrong_state",
    ]


def test_errors_survive_pickling() -> None:
    import pickle

    error = bunqueue.JobNotFound("GetJob of job 1: Job not found", reason="Job not found", job_id="1")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.reason, copy.job_id) == (str(error), "Job not found", "1")
