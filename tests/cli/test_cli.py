"""The command line as users run it: exit status, one line on standard error, what ``start`` hands over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bunqueue.cli import BAD_USAGE, main
from bunqueue.cli.commands import server
from bunqueue.server.host import replacing
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import OPTIONS, Settings

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from bunqueue.cli import main; sys.exit(main())"
FAKE_ROUTER = """
import json, os, sys
data = b""
while part := os.read(int(sys.argv[2]), 4096):
    data += part
seen = {"argv": sys.argv[1:], "pid": os.getpid(), "safe": sys.flags.safe_path, "data": data.decode()}
print(json.dumps(seen))
"""


def run(
    arguments: Sequence[str],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    *,
    path: Sequence[Path] = (ROOT,),
    program: str = PROGRAM,
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, in ``folder``, with nothing of our environment."""
    clean = {"HOME": str(folder), "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=clean | dict(environ or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == BAD_USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("bunqueue: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A folder with a copy of this package beside a router that prints what it was given."""
    place = tmp_path / "installation"
    shutil.copytree(ROOT / "bunqueue", place / "bunqueue", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("router", "shardproc"):
        (place / name).mkdir()
        (place / name / "__init__.py").touch()
    (place / "router" / "__main__.py").write_text(FAKE_ROUTER)
    return place


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["start", "--tcp-port", "99999"], "flag --tcp-port: 99999 is not allowed; give a whole number"),
        (["start", "--tcp-port=-1"], "from 0 to 65535"),
        (["start", "--shards", "3"], "power of two from 1 to 64"),
        (["config", "show", "--sync", "maybe"], "flag --sync: 'maybe' is not allowed; give normal or full"),
        (["start", "--config", "missing.toml"], "file missing.toml: cannot be read: No such file"),
        (["start", "--config", "bad.toml"], "file bad.toml: is not valid TOML"),
        (["start", "--config", "wrong.toml"], "file wrong.toml, key shards: 5 is not allowed"),
        (["start", "--nonsense"], "try bunqueue start --help"),
        (["start", "--tcp-port"], "--tcp-port"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "bad.toml").write_text("tcp_port = \n")
    (tmp_path / "wrong.toml").write_text("shards = 5\n")
    assert words in refusal(run(arguments, tmp_path))


def test_bad_variables_are_refused(tmp_path: Path) -> None:
    bad = refusal(run(["start"], tmp_path, {"BUNQUEUE_TCP_PORT": "http"}))
    assert "variable BUNQUEUE_TCP_PORT: 'http' is not allowed" in bad
    unknown = refusal(run(["start"], tmp_path, {"BUNQUEUE_PROT": "1"}))
    assert "variable BUNQUEUE_PROT: no such option" in unknown


def test_config_show_has_precedence_sources_and_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(
        "tcp_port = 1\nhttp_port = 2\nrate_limit = 3\nauth_token = ['hush']\n"
    )
    environ = {"BUNQUEUE_CONFIG": "file.toml", "BUNQUEUE_HTTP_PORT": "20", "BUNQUEUE_RATE_LIMIT": "30"}
    result = run(["config", "show", "--rate-limit", "300"], tmp_path, environ)
    assert (result.returncode, result.stderr) == (0, "")
    shown = dict(line.split(" = ", 1) for line in result.stdout.splitlines())
    found = {name: tuple(part.strip() for part in rest.split("#")) for name, rest in shown.items()}
    assert list(found) == [option.name for option in OPTIONS]
    assert found["tcp_port"] == ("1", "file file.toml, key tcp_port")
    assert found["http_port"] == ("20", "variable BUNQUEUE_HTTP_PORT")
    assert found["rate_limit"] == ("300", "flag --rate-limit")
    assert found["log_level"] == ('"info"', "default")
    assert found["auth_token"] == ("<1 hidden>", "file file.toml, key auth_token")
    assert "hush" not in result.stdout


@pytest.mark.parametrize("command", [["start"], ["config", "show"]])
def test_every_option_is_a_flag_with_its_help(tmp_path: Path, command: list[str]) -> None:
    result = run([*command, "--help"], tmp_path, {"COLUMNS": "400"})
    assert result.returncode == 0
    for option in OPTIONS:
        assert option.flag in result.stdout
        assert option.help in " ".join(result.stdout.split())
    assert "--config" in result.stdout


def test_help_shows_flags_without_a_value_as_such(tmp_path: Path) -> None:
    shown = run(["--help"], tmp_path).stdout
    assert "--version " in shown
    assert "bool" not in shown


def test_version(tmp_path: Path) -> None:
    results = [run([argument], tmp_path) for argument in ("version", "--version")]
    assert [result.returncode for result in results] == [0, 0]
    assert results[0].stdout == results[1].stdout
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert results[0].stdout == f"bunqueue {declared}\n"


def test_json_where_no_server_is_asked(tmp_path: Path) -> None:
    version = json.loads(run(["version", "--json"], tmp_path).stdout)["version"]
    assert run(["version"], tmp_path).stdout == f"bunqueue {version}\n"
    arguments = ["config", "show", "--json", "--tcp-port", "7", "--auth-token", "hush-hush"]
    shown = json.loads(run(arguments, tmp_path).stdout)
    assert shown["tcp_port"] == {"value": 7, "source": "flag --tcp-port"}
    assert shown["auth_token"]["value"] == "<1 hidden>"
    assert list(shown) == [option.name for option in OPTIONS]


def test_heavy_libraries_are_loaded_late(tmp_path: Path) -> None:
    cheap = "import sys, bunqueue.cli; sys.exit('typer' in sys.modules)"
    assert run([], tmp_path, program=cheap).returncode == 0
    plain = """
import sys
from bunqueue.cli import main
main()
sys.exit(bool({"rich", "pydantic"} & set(sys.modules)))
"""
    for arguments in (["config", "show"], ["start", "--shards", "3"], ["version"]):
        assert run(arguments, tmp_path, program=plain).returncode == 0, arguments


def test_main_returns_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert main(["config", "show", "--shards", "7"]) == BAD_USAGE
    assert "--shards: 7" in capsys.readouterr().err
    assert main([]) == BAD_USAGE
    shown = capsys.readouterr()
    assert "Usage" in shown.out
    assert shown.err == ""


def test_start_becomes_the_router_with_the_settings(tmp_path: Path, installation: Path) -> None:
    arguments = ["start", "--tcp-port", "7000", "--auth-token", "hush-1", "--auth-token", "hush-2"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(installation)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        output, _ = process.communicate(timeout=60)
    seen = json.loads(output)
    assert process.returncode == 0
    assert seen["pid"] == process.pid
    assert seen["safe"]
    assert seen["argv"][0] == "--settings-fd"
    assert "hush" not in str(seen["argv"])
    settings = Settings.from_json(seen["data"])
    assert (settings.tcp_port, settings.auth_token) == (7000, ("hush-1", "hush-2"))
    assert settings.data_dir == str(tmp_path / ".local/share/bunqueue")


def test_start_passes_over_modules_in_the_current_folder(tmp_path: Path, installation: Path) -> None:
    for name in ("router", "shardproc"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    result = run(["start"], tmp_path, path=[installation])
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["router", "shardproc"])
def test_start_refuses_other_packages_of_the_same_name(tmp_path: Path, installation: Path, name: str) -> None:
    other = tmp_path / "other"
    (other / name).mkdir(parents=True)
    (other / name / "__init__.py").touch()
    line = refusal(run(["start"], tmp_path, path=[other, installation]))
    assert f"the package {name} in {other / name} is not the server's, which is in {installation}" in line


def test_start_refuses_a_module_and_a_missing_package(tmp_path: Path, installation: Path) -> None:
    shutil.rmtree(installation / "shardproc")
    # Without the finder of an editable installation, which knows where the package really is.
    alone = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]; "
    program = alone + PROGRAM
    missing = run(["start"], tmp_path, path=[installation], program=program)
    assert "shardproc is not installed" in refusal(missing)
    (installation / "shardproc.py").touch()
    other = run(["start"], tmp_path, path=[installation], program=program)
    assert "shardproc.py is not the server's" in refusal(other)


def test_settings_too_large_for_the_pipe_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "MAX_SETTINGS_BYTES", 100)
    with pytest.raises(SettingsError, match="use fewer tokens"):
        server._become_router(Settings(data_dir=":memory:", shards=1))
