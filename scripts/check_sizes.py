"""Fails when a file or a function becomes too large to keep in mind.

    python scripts/check_sizes.py

Checks every Python file that git tracks or would track, except the tests. Larger files and functions are
listed in `EXCEPTIONS`, each with its reason; an exception that is no longer needed also fails.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 600  # a file has one subject; far beyond this it has two
MAX_FUNCTION_LINES = 60  # a little more than a screen

# "path" or "path::Class.function" -> why it is larger than the limit.
EXCEPTIONS: dict[str, str] = {
    "bunqueue/app/bunqueue.py": "one class: everything that an app can declare, with its documentation",
    "bunqueue/client/queue/queue.py": "one class: every command about one queue, with its documentation",
    "bunqueue/workflow/run.py": "one class: a run of a workflow, from its log to its end",
    "shardproc/engine/lifecycle/transitions.py": "every change of a job's state, beside each other",
}


def source_files() -> list[Path]:
    """The Python files of the working tree that git does not ignore, without the tests."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.py"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = sorted({ROOT / name for name in names if name and not name.startswith("tests/")})
    return [path for path in paths if path.exists()]


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each function below `node` with its dotted name and its length in lines."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, (child.end_lineno or child.lineno) - child.lineno + 1
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
        yield from functions(child, inner)


def oversized(path: Path) -> Iterator[tuple[str, str]]:
    """The parts of one file that are too large: the name as in `EXCEPTIONS`, and a sentence about it."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield name, f"{lines} lines (limit {MAX_FILE_LINES})"
    for function, length in functions(ast.parse(text, filename=name)):
        if length > MAX_FUNCTION_LINES:
            yield f"{name}::{function}", f"{length} lines (limit {MAX_FUNCTION_LINES})"


def main() -> int:
    files = source_files()
    found = dict(item for path in files for item in oversized(path))
    problems = [f"{name}: {text}" for name, text in found.items() if name not in EXCEPTIONS]
    problems += [
        f"{name}: listed as an exception, but not too large" for name in EXCEPTIONS if name not in found
    ]
    for problem in problems:
        print(problem)
    print(
        f"{len(files)} files, {len(problems)} too large"
        if problems
        else f"{len(files)} files, sizes are fine"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
