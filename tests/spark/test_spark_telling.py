"""Errors of Spark as people are told them: what they say is taken from real ones."""

from __future__ import annotations

import pytest

from bunqueue.spark.sessions.errors import in_a_line

TRACE = """Job aborted due to stage failure: Task 1 in stage 0.0 failed 1 times, most recent failure: Lost
task 1.0 in stage 0.0 (TID 1) (localhost executor driver): org.apache.spark.api.python.PythonException: An
Traceback (most recent call last):
  File "worker.py", line 3363, in main
{}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TRACE.format("bunqueue.spark.errors.UnreadableShard: /d/shard-01.db is missing; put it there"),
            "/d/shard-01.db is missing; put it there",
        ),
        (
            TRACE.format("ModuleNotFoundError: No module named 'bunqueue.spark'"),
            "the Python of Spark's tasks has no bunqueue: install",
        ),
        (TRACE.format("java.io.IOException: No space left on device"), "a disk is full: give Spark"),
        ("An error occurred: java.lang.OutOfMemoryError: Java heap space", "Spark has run out of memory:"),
        (
            'java.io.IOException: Cannot run program "./env/bin/python": error=2, No such file',
            "Spark cannot run ./env/bin/python, here or on an executor:",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than the driver: 3.11.",
            "Python in worker has different version: 3.12 than the driver: 3.11. Name the same",
        ),
        (
            "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n"
            ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
            "This stopped SparkContext was created at:\n",
            "Spark has stopped: its master does not answer",
        ),
        (
            "An error occurred while calling o12.parquet.\n: java.lang.Exception: what it was\n\tat x",
            "Spark failed: java.lang.Exception: what it was",
        ),
        ("", "Spark failed: "),
    ],
)
def test_errors_of_spark(text: str, words: str) -> None:
    told = in_a_line(RuntimeError(text))
    assert told.startswith(words)
    assert "\n" not in told


def test_errors_of_files() -> None:
    assert in_a_line(PermissionError(13, "Permission denied", "/out/x")) == "/out/x: Permission denied"
    assert in_a_line(OSError(28, "No space left on device", "/out/x")).startswith("a disk is full")
