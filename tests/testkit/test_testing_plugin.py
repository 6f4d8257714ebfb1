"""The pytest plugin as users have it: in test runs of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bunqueue.testing import Faults, Ran, Sandbox

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["pytester"]

PROGRAM = """
from bunqueue import AsyncQueue, Queue

emails = Queue("emails")


def sign_up(address):
    emails.add("welcome", {"to": address})


async def sign_up_async(address):
    async with AsyncQueue("emails") as queue:
        await queue.add("welcome", {"to": address})
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(program=PROGRAM)
    pytester.makeini(
        "[pytest]\naddopts = --strict-markers -p no:cacheprovider\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


def outcomes(project: pytest.Pytester, text: str, *arguments: str) -> pytest.RunResult:
    project.makepyfile(test_it=text)
    return project.runpytest_subprocess(*arguments)


def test_tests_are_isolated_from_each_other(project: pytest.Pytester) -> None:
    result = outcomes(
        project,
        """
        import pytest
        from program import emails, sign_up

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(bunqueue, number):
            sign_up("ada@example.com")
            bunqueue.assert_added("emails", "welcome", {"to": "ada@example.com"}, count=1)
            assert emails.count() == 1

        @pytest.mark.bunqueue(start="2026-01-01")
        def test_time(bunqueue):
            assert bunqueue.now.isoformat() == "2026-01-01T00:00:00+00:00"
        """,
    )
    result.assert_outcomes(passed=3)


def test_a_failed_assertion_shows_the_near_misses(project: pytest.Pytester) -> None:
    result = outcomes(
        project,
        """
        from program import sign_up

        def test_one(bunqueue):
            sign_up("bob@example.com")
            bunqueue.assert_added("emails", "welcome", {"to": "ada@example.com"})
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*- 'welcome' in queue 'emails': data*is 'bob@example.com', not 'ada@example.com'"]
    )
    assert "def assert_added" not in result.stdout.str()  # what is of no help


def test_the_samples_of_the_page_are_tests_that_pass(project: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    text = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    result = outcomes(project, text)
    result.assert_outcomes(passed=len(re.findall(r"^ *(?:async )?def test_", text, re.MULTILINE)))


def test_the_page_names_all_that_a_sandbox_can_do() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    words = {name for kind in (Sandbox, Faults) for name in vars(kind) if not name.startswith("_")}
    words -= {
        "open",
        "call",
        "meet",
        "meeting",
        "crashing",
        "dying",
        "step_function",
        "close",
    }  # for bunqueue itself; `with` closes
    assert not [word for word in sorted(words) if not re.search(rf"\b{word}\b", page)]
    assert not [name for name in Ran.__dataclass_fields__ if not re.search(rf"\b{name}\b", page)]


def test_a_wrong_marker_is_told(project: pytest.Pytester) -> None:
    result = outcomes(
        project,
        """
        import pytest

        @pytest.mark.bunqueue(begin="2026-01-01")
        def test_one(bunqueue):
            pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there is only bunqueue(start=*"])


@pytest.mark.parametrize("marker", ["asyncio", "anyio"])
def test_coroutines_under_either_plugin(project: pytest.Pytester, marker: str) -> None:
    result = outcomes(
        project,
        f"""
        import pytest
        from bunqueue import Worker
        from program import sign_up, sign_up_async

        pytestmark = pytest.mark.{marker}

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        async def send(job):
            return job.data["to"]

        async def test_drain(bunqueue):
            await sign_up_async("ada@example.com")
            sign_up("bob@example.com")
            ran = await bunqueue.drain_async(send)
            assert [run.result for run in ran] == ["ada@example.com", "bob@example.com"]

        async def test_worker(bunqueue):
            async with Worker("emails", send) as worker:
                await sign_up_async("ada@example.com")
                await bunqueue.advance_async(1000)
                assert worker.stats.completed == 1
        """,
    )
    result.assert_outcomes(passed=2)


def test_unittest_does_without_pytest(project: pytest.Pytester) -> None:
    path = project.makepyfile(
        test_it="""
        import unittest
        from bunqueue.testing import Sandbox
        from program import sign_up

        class Test(unittest.TestCase):
            def test_one(self):
                bunqueue = self.enterContext(Sandbox())
                sign_up("ada@example.com")
                bunqueue.assert_added("emails")
        """
    )
    done = subprocess.run([sys.executable, "-m", "unittest", path.name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_plugin_costs_nothing_where_it_is_not_used(project: pytest.Pytester) -> None:
    result = outcomes(
        project,
        """
        import sys

        def test_one():
            loaded = {name for name in sys.modules if name.split(".")[0] in ("bunqueue", "shardproc")}
            assert loaded == {"bunqueue", "bunqueue.testing", "bunqueue.testing.plugin", "bunqueue.version"}
            assert not {"msgspec", "sqlite3"} & sys.modules.keys()
        """,
    )
    result.assert_outcomes(passed=1)
