"""Fails when a test sleeps without giving the reason.

    python scripts/check_sleeps.py

A test waits for an event, with `wait_until` or `eventually` of `tests/support/waiting.py`. Any other sleep
has its reason in a comment, at the end of its line or on the line above: for example, the pace of a load, or
the time during which something must not happen. `asyncio.sleep(0)`, a turn of the event loop, needs no
reason, and neither does `flow.sleep`, which belongs to the workflow under test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SLEEP = re.compile(r"(?<!def )(?<!flow\.)\bsleep\((?!0[,)])")
REASON = re.compile(r"(#|//)\s*(?!noqa|type:)\w")


def test_files() -> list[Path]:
    """The programs below `tests` that git does not ignore, in Python and TypeScript."""
    command = [
        "git",
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
        "tests/*.py",
        "tests/*.ts",
    ]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [path for path in sorted({ROOT / name for name in names if name}) if path.exists()]


def unexplained(text: str) -> list[int]:
    """The numbers of the lines that sleep without a reason."""
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines):
        above = lines[number - 1].lstrip() if number else ""
        explained = REASON.search(line) or (above.startswith(("#", "//")) and REASON.search(above))
        if SLEEP.search(line) and not explained:
            found.append(number + 1)
    return found


def main() -> int:
    problems = [
        f"{path.relative_to(ROOT)}:{number}: wait for an event, or write in a comment why it sleeps"
        for path in test_files()
        for number in unexplained(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(problems) or "every sleep in the tests has its reason")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
