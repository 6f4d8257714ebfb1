"""Errors of Spark in one line: the originals have tracebacks of two languages.

Recognizes the most common mistakes, and exhausted resources.  Pure.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"bunqueue\.\S+\.\w+: (.+)")
_CALLING = "An error occurred while calling"  # how all errors of Py4J begin

_KNOWN = (
    (
        r"No space left on device|database or disk is full",
        "a disk is full: give Spark another folder for what does not fit into memory (SPARK_LOCAL_DIRS, and"
        " TMPDIR for copies), or another one to write to",
    ),
    (
        r"OutOfMemoryError|GC overhead limit",
        "Spark has run out of memory: give it more, with --memory 4g or spark.driver.memory, and on a cluster"
        " spark.executor.memory",
    ),
    (
        r"ModuleNotFoundError: No module named '([^'.]+)",
        "the Python of Spark's tasks has no {}: install bunqueue[spark] on all machines of the cluster, and"
        " name that Python in PYSPARK_PYTHON",
    ),
    (
        r'Cannot run program "([^"]+)"',
        "Spark cannot run {}, here or on an executor: PYSPARK_PYTHON has to name a Python that all machines"
        " have there, this one as well",
    ),
    (
        r"\[PYTHON_VERSION_MISMATCH\] (.+)",
        "{} Name the same version of Python for all machines in PYSPARK_PYTHON",
    ),
    (
        r"stopped SparkContext|All masters are unresponsive",
        "Spark has stopped: its master does not answer, or has ended this program; check --master",
    ),
    (
        r"Answer from Java side is empty|Connection refused|Error while sending or receiving",
        "Java, in which Spark ran, has ended, perhaps for want of memory: see --memory",
    ),
)


def in_a_line(error: BaseException | str) -> str:
    """An error of Spark as a text that says what to do.  If there is a bunqueue error inside it, that one."""
    text = str(error)
    ours = _OURS.search(text)
    if ours:
        return ours[1]
    for pattern, words in _KNOWN:
        found = re.search(pattern, text)
        if found:
            return words.format(*found.groups())
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return f"Spark failed: {_first_line(text)}"


def _first_line(text: str) -> str:
    """The first line that carries information."""
    lines = [line.strip(" \t:") for line in text.splitlines()]
    named = [line for line in lines if line and not line.startswith(_CALLING)]
    return named[0] if named else text.strip()
