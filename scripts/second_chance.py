"""Runs the tests that have just failed once more, alone, and says which of them needed that.

    python scripts/second_chance.py

Fault tests kill real processes on whatever machine this is, so a test may fail for lack of time alone. One
that passes only here is a flake: it is counted and named, so that it can be mended. The exit status is that
of the second run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
REPORT = ROOT / ".pytest_cache" / "second-chance.txt"
MOST = 25  # more than a busy machine ever made fail at once: the code is broken, and a second run takes long


def failed() -> set[str]:
    """The tests that failed when each was last run."""
    try:
        return set(json.loads(FAILED.read_text()))
    except FileNotFoundError:
        return set()


def report(before: set[str], after: set[str]) -> str:
    """How many had a second chance and which passed, with a line for each."""
    passed = sorted(before - after)
    lines = [f"second chance: {len(before)} failed at first, {len(passed)} of them passed alone"]
    lines += [f"  passed alone: {name}" for name in passed]
    lines += [f"  failed again: {name}" for name in sorted(before & after)]
    return "\n".join(lines)


def main() -> int:
    before = failed()
    if len(before) > MOST:
        print(f"no second chance: {len(before)} tests failed, more than {MOST}")
        return 1
    only = ["--last-failed", "--last-failed-no-failures", "none"]
    command = [sys.executable, "-m", "pytest", "-q", "--timeout=300", *only]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    said = report(before, failed())
    REPORT.write_text(said + "\n")
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
