"""Official clients of other languages work unchanged: scenarios, each on a server of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.certificates import Authority
from support.official_clients import SCENARIOS, Run
from support.server import ROOT, StartServer, quiet_port

pytestmark = pytest.mark.interop

TOKEN = "secret"


def scenarios(pattern: str, *others: str) -> list[str]:
    """The files that need nothing special."""
    found = {path.name for path in SCENARIOS.glob(pattern)} - {Path(pattern).parent.name, *others}
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


def test_bun_over_tls(start: StartServer, run_bun: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = start("--auth-token", TOKEN, *authority.issue().flags)
    run_bun("auth.test.ts", server, TOKEN=TOKEN, CA=authority.ca_file)


def test_python_over_tls(start: StartServer, run_python: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = start("--auth-token", TOKEN, *authority.issue().flags)
    run_python("auth.py", server, TOKEN=TOKEN, CA=authority.ca_file)


def test_bun_when_the_server_is_killed_and_comes_back(start: StartServer, run_bun: Run) -> None:
    run_bun("restart.ts", start(port=quiet_port()))


def test_python_when_the_server_is_killed_and_comes_back(start: StartServer, run_python: Run) -> None:
    run_python("restart.py", start(port=quiet_port()))


# The examples of the documentation


def examples(language: str) -> list[str]:
    page = (ROOT / "docs" / "other-clients.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples("typescript"))))
def test_examples_for_bun(number: int, start: StartServer, run_bun: Run, bun_scenarios: Path) -> None:
    server, name = start(), f"example-{number}.ts"
    text = examples("typescript")[number].replace("6789", str(server.port))
    (bun_scenarios / name).write_text(text, encoding="utf-8")
    output = run_bun(name, server)
    for expected in re.findall(r"// (.+)$", text, re.MULTILINE):
        assert expected.replace("'", '"') in re.sub(r",?\s+", " ", output).replace(" }", " }"), output


@pytest.mark.parametrize("number", range(len(examples("python"))))
def test_examples_for_python(number: int, start: StartServer, run_python: Run, tmp_path: Path) -> None:
    server, path = start(), tmp_path / "example.py"
    path.write_text(examples("python")[number].replace("6789", str(server.port)), encoding="utf-8")
    run_python(path, server)
