"""Files that other users of the machine can read: a warning at the start, and a finding of the doctor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.cli import Cli
from support.server import StartServer

from bunqueue.server.host.file_permissions import file_problem, folder_problem


def config_file(folder: Path, text: str, mode: int) -> Path:
    path = folder / "bunqueue.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_open_files_are_warned_of_once(make_server: StartServer, tmp_path: Path) -> None:
    config = config_file(tmp_path, "auth_token = ['right']\n", 0o644)
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    server = make_server("--config", str(config))
    server.start()
    for path, cure in ((config, "go-rwx"), (data, "o-rwx")):
        mode = path.stat().st_mode & 0o777
        line = f"WARNING router other users can read {path} (mode {mode:04o}): chmod {cure} {path}"
        assert server.log().count(line) == 1, server.log()
    cli = Cli(server)
    found = {row["check"]: row for row in cli.json("doctor", "--token", "right")}["file modes"]
    assert found["status"] == "warning"
    assert found["finding"].startswith("others can read the config file and the data folder: ")


def test_closed_files_are_not(make_server: StartServer, tmp_path: Path) -> None:
    config = config_file(tmp_path, "auth_token = ['right']\n", 0o600)
    server = make_server("--config", str(config))
    server.start()
    assert "other users" not in server.log()
    found = {row["check"]: row for row in Cli(server).json("doctor", "--token", "right")}["file modes"]
    assert found["status"] == "ok"


def test_a_config_file_without_secrets_may_be_open(make_server: StartServer, tmp_path: Path) -> None:
    config = config_file(tmp_path, "rate_limit = 1000000\n", 0o644)
    server = make_server("--config", str(config))
    server.start()
    assert "other users" not in server.log()


def test_the_folder_of_a_stopped_server(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server(shards=1)
    server.start()
    server.stop()
    data = tmp_path / "data"
    data.chmod(0o705)
    rows = Cli(server).json("doctor", "--data-dir", str(data))
    (found,) = [row for row in rows if row["check"] == "file modes"]
    assert (found["status"], found["finding"]) == (
        "warning",
        f"other users can read {data} (mode 0705): chmod o-rwx {data}",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_the_group_may_read_a_file_of_another_user(tmp_path: Path) -> None:
    """That is how the server reads root:bunqueue with mode 0640, which the systemd unit asks for."""
    path = config_file(tmp_path, "", 0o640)
    assert "go-rwx" in (file_problem(str(path)) or "")
    os.chown(path, 12345, os.getegid())
    assert file_problem(str(path)) is None
    path.chmod(0o644)
    assert "chmod o-rwx" in (file_problem(str(path)) or "")


def test_what_is_not_there_has_no_mode(tmp_path: Path) -> None:
    assert file_problem("") is None
    assert file_problem(str(tmp_path / "none")) is None
    assert folder_problem(str(tmp_path / "none")) is None
