"""The examples of the integrations run, and say what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SAYS = {
    "tracing_with_opentelemetry": r"([0-9a-f]{32}) PRODUCER add emails\n(?s:.*)"
    r"CONSUMER process emails, linked to \1\nsent to ada@example\.com\n"
    r"([0-9a-f]{32}) PRODUCER add orders\n\2 INTERNAL POST /orders\n"
    r"(?s:.*)\2 INTERNAL sleep cooling-off\n(?s:.*)"
    r"\2 CONSUMER process orders\nby ada\n$",
    "logging_with_structlog": r'"attempt": 1, "event": "connecting".*"job": "welcome".*"tenant": "acme"',
    "fastapi_tenants": r"^\{'number': 1, 'text': 'globex owes 20 EUR'\}\n"
    r"acme had most of its 1000 still to come: True\n422\n404\n$",
    "django_outbox": r"^201 422 that is more than we sell to strangers\norders: 1\nbrought to the queue: 1\n"
    r"\['order 1 is charged'\]\ncharged: \[\('tea', True\)\]\n$",
    "fastapi_app": r"^\{'state': 'completed', 'result': 'sent to ada@example\.com'\}\n$",
    "django_in_one_file": r"SUCCESSFUL sent to ada@example\.com at attempt 2\n$",
}


@pytest.mark.parametrize("name", SAYS)
def test_an_example(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS[name], done.stdout), done.stdout


def test_each_is_on_the_page_whose_samples_are_python() -> None:
    page = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
    assert set(re.findall(r"examples/(\w+)\.py\)", page)) == set(SAYS)
    for sample in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        compile(sample, "docs/integrations.md", "exec")


WITHOUT = """
import sys
sys.modules[{library!r}] = None  # as if it were not installed
try:
    import bunqueue.integrations.{module}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "library"),
    [
        ("opentelemetry", "opentelemetry"),
        ("structlog", "structlog"),
        ("sqlalchemy", "sqlalchemy"),
        ("django", "django"),
    ],
)
def test_what_is_missing_is_told(module: str, library: str) -> None:
    script = WITHOUT.format(module=module, library=library)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert f"pip install 'bunqueue[{module}]'" in done.stdout
