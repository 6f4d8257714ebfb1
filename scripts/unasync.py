"""Generates the blocking versions of the client from their asynchronous sources.

    python scripts/unasync.py    writes bunqueue/client/blocking

What `client/queue/queue.py` is for coroutines, `client/blocking/queue/queue.py` is for threads.  The text
is the same except for the words below, so a reader of one file knows the other.  The repository has only the
first: setup.py, make and the tests' conftest.py run this before anything imports the second.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "bunqueue" / "client"
TWINS = CLIENT / "blocking"
SOURCES = ("admin", "base", "events", "flow", "flow_graph", "group", "queue", "server_calls")
"""Modules and packages of the client with a blocking version; `blocking/__init__.py` is written by hand."""

HEADER = '"""Made by scripts/unasync.py from client/{name}; do not edit."""'

WORDS = [
    (rf"\bbunqueue\.client\.(?=(?:{'|'.join(SOURCES)})\b)", "bunqueue.client.blocking."),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"  # noqa: ASYNC\d+", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
]


def blocking(source: str, name: str) -> str:
    """The blocking text for an asynchronous one."""
    source = re.sub(r'\A""".*?"""', HEADER.format(name=name), source, flags=re.DOTALL)
    for pattern, replacement in WORDS:
        source = re.sub(pattern, replacement, source)
    return source


def main() -> None:
    sources = [path for name in SOURCES for path in (CLIENT / name).glob("*.py")]
    sources += [CLIENT / f"{name}.py" for name in SOURCES if not (CLIENT / name).is_dir()]
    twins = {TWINS / path.relative_to(CLIENT): path for path in sources}
    for left in {*TWINS.rglob("*.py")} - twins.keys() - {TWINS / "__init__.py"}:
        left.unlink()
    for twin, path in twins.items():
        text = blocking(path.read_text(encoding="utf-8"), path.relative_to(CLIENT).as_posix())
        if not twin.exists() or twin.read_text(encoding="utf-8") != text:
            twin.parent.mkdir(parents=True, exist_ok=True)
            new = twin.with_suffix(f".{os.getpid()}")  # whole at once: another process may be importing it
            new.write_text(text, encoding="utf-8")
            new.replace(twin)


if __name__ == "__main__":
    main()
