"""The files in ``config/`` say the truth about the settings, and what the unit relies on works."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bunqueue.cli import BAD_USAGE
from bunqueue.cli.framework.exits import WRONG_FILES
from bunqueue.server.host import machine_memory
from bunqueue.server.host.systemd import notify
from bunqueue.server.settings.settings import BOOT_VARIABLE, CONFIG_VARIABLE, OPTIONS, load_settings
from shardproc import clock

CONFIG = Path(__file__).resolve().parents[2] / "config"
HOME = {"HOME": "/home/someone"}


@pytest.fixture
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    parser.read(CONFIG / "bunqueue.service")
    return parser


def uncommented() -> str:
    return re.sub(r"(?m)^#(?=[a-z])", "", (CONFIG / "bunqueue.toml").read_text())


def test_annotated_file_shows_every_option_once_and_in_order() -> None:
    assert re.findall(r"(?m)^([a-z_]+) = ", uncommented()) == [option.name for option in OPTIONS]


def test_annotated_file_shows_the_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The machine that the annotations speak of.
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(machine_memory, "group_limits", lambda *_: iter([16 << 30]))
    path = tmp_path / "bunqueue.toml"
    path.write_text(uncommented())
    defaults = load_settings({}, HOME)
    assert load_settings({"config": str(path)}, HOME) == defaults
    assert load_settings({"config": str(CONFIG / "bunqueue.toml")}, HOME) == defaults


def test_unit_starts_the_server_with_options_that_exist(unit: configparser.ConfigParser) -> None:
    program, command, *rest = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "bunqueue"
    assert command == "start"
    flags = [word.partition("=")[0] for word in rest if word.startswith("-")]
    assert set(flags) <= {option.flag for option in OPTIONS} | {"--config"}
    assert Path(rest[rest.index("--config") + 1]).name in {path.name for path in CONFIG.iterdir()}


def test_every_option_named_in_the_unit_exists(unit: configparser.ConfigParser) -> None:
    named = set(re.findall(r"BUNQUEUE_[A-Z_]+", (CONFIG / "bunqueue.service").read_text()))
    assert named <= {option.variable for option in OPTIONS} | {CONFIG_VARIABLE, BOOT_VARIABLE}
    environ = dict(item.split("=", 1) for item in shlex.split(unit["Service"]["Environment"]))
    settings = load_settings({}, environ)
    assert settings.data_dir == "/var/lib/" + unit["Service"]["StateDirectory"]


def test_unit_keeps_what_the_server_relies_on(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert (service["Restart"], service["RestartPreventExitStatus"]) == (
        "on-failure",
        f"{BAD_USAGE} {WRONG_FILES}",
    )
    assert service["RuntimeDirectoryMode"] == service["StateDirectoryMode"] == "0700"
    assert int(service["LimitNOFILE"]) > load_settings({}, HOME).max_connections * 2
    assert "AF_UNIX" in service["RestrictAddressFamilies"].split()


def test_unit_bounds_the_service_and_hides_the_machine(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert service["LimitCORE"] == "0"  # a dump would hold tokens
    assert int(service["TasksMax"]) >= 8 * 64  # the most shards, each with threads
    assert service["MemoryMax"].endswith("%")
    assert (service["PrivateUsers"], service["ProcSubset"]) == ("yes", "pid")


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("0123456789abcdef0123456789abcdef", "01234567-89ab-cdef-0123-456789abcdef"),
        ("%b", ""),
        (None, ""),
    ],
)
def test_the_boot_is_known_where_the_kernels_file_is_hidden(
    monkeypatch: pytest.MonkeyPatch, given: str | None, known: str
) -> None:
    monkeypatch.setattr(clock, "BOOT_FILE", Path("/nowhere"))
    monkeypatch.delenv(BOOT_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(BOOT_VARIABLE, given)
    assert msgspec.json.decode(clock.Clock().mark(0))["boot"] == known


def test_notify_without_a_manager_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (None, "", "relative", "vsock:2:1"):
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        if address is not None:
            monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert notify("READY=1") is False


def test_notify_reaches_the_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert notify("READY=1\nSTATUS=serving") is True
        assert manager.recv(100) == b"READY=1\nSTATUS=serving"
    assert notify("STOPPING=1") is False  # the manager is gone


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets exist on Linux only")
def test_notify_knows_abstract_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"bunqueue-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        assert notify("READY=1") is True
        assert manager.recv(100) == b"READY=1"


# A host of a cluster


def test_a_hosts_settings_are_those_of_a_cluster() -> None:
    settings = load_settings({"config": str(CONFIG / "cluster" / "bunqueue.toml")}, HOME)
    assert settings.cluster
    assert settings.store
    assert settings.data_dir == "/var/lib/bunqueue"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    unit = (CONFIG / "bunqueue.service").read_text()
    program = shutil.which("true")
    (tmp_path / "bunqueue.service").write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={program}", unit))
    more = tmp_path / "bunqueue.service.d" / "cluster.conf"
    more.parent.mkdir()
    more.write_text((CONFIG / "cluster" / "bunqueue.service.conf").read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "bunqueue.service")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
