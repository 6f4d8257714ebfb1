"""The page about the client names everything that there is, and its samples are Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bunqueue
from bunqueue import BunqueueError, JobOptions, WorkerOptions
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.testing import Sandbox

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
WORKERS = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def first_column(heading: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", section(heading), re.MULTILINE))


def test_every_option_of_a_job_is_there() -> None:
    assert first_column("Options of a job") == set(JobOptions.__annotations__)


def test_every_option_of_a_worker_is_there() -> None:
    table = WORKERS.partition("## Options\n")[2]
    named = {
        name for row in re.findall(r"^\|(.*?)\|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == set(WorkerOptions.__annotations__) - set(EndpointOptions.__annotations__)


def test_every_exception_is_there() -> None:
    public = {name: getattr(bunqueue, name) for name in bunqueue.__all__}
    errors = {
        name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, BunqueueError)
    }
    assert first_column("Exceptions") == errors - {"BunqueueError"}


def test_every_exception_has_its_code_and_says_what_to_do() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \| (.*)\|$", section("Exceptions"), re.MULTILINE)
    assert len(rows) == len(first_column("Exceptions"))
    for name, code, what, _ in rows:
        assert getattr(bunqueue, name).code == code
        assert what


@pytest.mark.parametrize("kind", [bunqueue.Queue, bunqueue.JobHandle, bunqueue.JobGroup])
def test_every_method_is_there(kind: type) -> None:
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    told = set(re.findall(r"`(\w+)(?=[(`])", tables))
    assert {name for name in dir(kind) if not name.startswith("_")} - told == set()


PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
CODE = " ".join(re.findall(r"```.*?```|`[^`\n]+`", PAGES, re.DOTALL))
KINDS = [
    bunqueue.ActiveJob,
    bunqueue.Bunqueue,
    bunqueue.ConnectionOptions,
    bunqueue.FlowProducer,
    bunqueue.Middleware,
    bunqueue.QueueEvents,
    bunqueue.QueueGroup,
    bunqueue.Recycle,
    bunqueue.TlsOptions,
    bunqueue.Worker,
    bunqueue.WorkerHealth,
    bunqueue.WorkerStats,
]
INTERNAL = {
    bunqueue.ActiveJob: {
        "acked",
        "carried",
        "channel",
        "ending",
        "failing",
        "go_on",
        "halt",
        "interrupt",
        "is_of",
        "is_same_run",
        "is_workflow",
        "open",
        "outdated",
        "pulled_at",
        "raw",
        "woken",
    },
    bunqueue.Worker: {"asked_to_stop", "drains"},
    bunqueue.ConnectionOptions: {"depth", "retry_delay"},
}


def test_every_public_name_is_on_some_page() -> None:
    assert [name for name in bunqueue.__all__ if not re.search(rf"\b{name}\b", CODE)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_kind_can_do_is_on_some_page(kind: type) -> None:
    names = {name for name in dir(kind) if not name.startswith("_")} - INTERNAL.get(kind, set())
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", CODE)) == []


def test_the_typed_sample_of_the_readme_runs(sandbox: Sandbox) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (sample,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Bunqueue(" in code]
    names: dict[str, Any] = {"__name__": "sample"}
    exec(sample, names)
    names["welcome"].add("ada@example.com")
    assert [run.outcome for run in sandbox.drain(names["app"])] == ["completed"]


@pytest.mark.parametrize("name", ["README.md", "docs/client.md", "docs/connections.md"])
def test_samples_are_python(name: str) -> None:
    samples = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert samples
    for sample in samples:
        compile(sample, name, "exec")
