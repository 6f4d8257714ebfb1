"""Generates the blocking versions of the client from their asynchronous sources.

    python scripts/unasync.py            writes bunqueue/client/blocking
    python scripts/unasync.py --check    fails if it is not up to date

What `client/queue/queue.py` is for coroutines, `client/blocking/queue/queue.py` is for threads.  The text
is the same except for the words below, so a reader of one file knows the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
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
    # Words have become shorter, so imports need sorting again.
    for step in (["check", "--quiet", "--fix-only", "--select", "I"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *step, "--stdin-filename", str(TWINS / name), "-"]
        source = subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout
    return source


def twins() -> dict[Path, str]:
    """The expected text of every generated file."""
    sources = [path for name in SOURCES for path in (CLIENT / name).glob("*.py")]
    sources += [CLIENT / f"{name}.py" for name in SOURCES if not (CLIENT / name).is_dir()]
    names = [path.relative_to(CLIENT).as_posix() for path in sorted(sources)]
    return {TWINS / name: blocking((CLIENT / name).read_text(encoding="utf-8"), name) for name in names}


def main() -> int:
    wanted = twins()
    found = {path: path.read_text(encoding="utf-8") for path in TWINS.rglob("*.py")}
    found.pop(TWINS / "__init__.py", None)
    stale = [path for path in {**wanted, **found} if wanted.get(path) != found.get(path)]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is not up to date; run: python scripts/unasync.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
