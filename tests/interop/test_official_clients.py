"""Official clients of other languages work unchanged: scenarios, each on a server of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import HERE, Run
from support.server import StartServer, quiet_port

pytestmark = pytest.mark.interop

TOKEN = "secret"


def scenarios(pattern: str, *others: str) -> list[str]:
    """The files that need nothing special."""
    found = {path.name for path in Path(HERE).glob(pattern)} - {Path(pattern).parent.name, *others}
    return sorted(found)


@pytest.mark.parametrize("name", scenarios("bun/*.test.ts", "auth.test.ts"))
def test_bun(name: str, start: StartServer, run_bun: Run) -> None:
    run_bun(name, start())


@pytest.mark.parametrize("name", scenarios("python/*.py", "support.py", "auth.py", "restart.py"))
def test_python(name: str, start: StartServer, run_python: Run) -> None:
    run_python(name, start())


def test_bun_with_a_token(start: StartServer, run_bun: Run) -> None:
    run_bun("auth.test.ts", start("--auth-token", TOKEN), TOKEN=TOKEN)


def test_python_with_a_token(start: StartServer, run_python: Run) -> None:
    run_python("auth.py", start("--auth-token", TOKEN), TOKEN=TOKEN)


def test_bun_when_the_server_is_killed_and_comes_back(start: StartServer, run_bun: Run) -> None:
    run_bun("restart.ts", start(port=quiet_port()))


def test_python_when_the_server_is_killed_and_comes_back(start: StartServer, run_python: Run) -> None:
    run_python("restart.py", start(port=quiet_port()))
