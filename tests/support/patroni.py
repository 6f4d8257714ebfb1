"""Three PostgreSQL under Patroni, with an etcd, from the system's packages, started for a test.

As docs/store.md says to set them up: synchronous, and strictly so.  Patroni's times are as short as it
allows.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from .postgres import ACCOUNT, account, binaries
from .procfs import descendants
from .server import quiet_port
from .waiting import wait_until

TTL_S = 20  # the shortest that Patroni takes: so long a leader may be silent
STARTS_S = 180.0  # mostly initdb, on a machine whose disk is busy
_PROGRAMS = {"patroni": "patroni", "etcd": "etcd-server"}  # and their packages


def programs() -> None:
    """Without them tests are skipped, but never where CI is set."""
    binaries()
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return
    text = f"failover by Patroni is not tested: apt-get install {' '.join(missing)}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def kill_tree(pid: int) -> None:
    """SIGKILL, to a process and all that it has started."""
    for each in [pid, *(child.pid for child in descendants(pid))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


class Process:
    """One that lives as long as the test wants."""

    def __init__(self, log: Path, *command: str) -> None:
        self._log, self._command = log, command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._log.parent, env=environ, **account()
            )

    def kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait()
            self._process = None

    def said(self) -> str:
        return self._log.read_text()[-3000:]


class Member:
    """One PostgreSQL and its Patroni."""

    def __init__(self, folder: Path, name: str, etcd_port: int) -> None:
        self.name, self.port, self._api = name, quiet_port(), quiet_port()
        self.data = folder / name
        self.process = Process(folder / f"{name}.log", "patroni", str(folder / f"{name}.yml"))
        (folder / f"{name}.yml").write_text(yaml.safe_dump(self._settings(folder, etcd_port)))

    def _settings(self, folder: Path, etcd_port: int) -> dict[str, Any]:
        return {
            "scope": "jobs",
            "name": self.name,
            "restapi": {
                "listen": f"127.0.0.1:{self._api}",
                "connect_address": f"127.0.0.1:{self._api}",
            },
            "etcd3": {"host": f"127.0.0.1:{etcd_port}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL_S,
                    "loop_wait": 1,
                    "retry_timeout": 5,
                    "synchronous_mode": True,
                    "synchronous_mode_strict": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": ["no-sync", {"auth": "trust"}, {"encoding": "UTF8"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.data),
                "bin_dir": str(binaries()),
                "basebackup": [{"checkpoint": "fast"}],  # else a standby waits for one that takes minutes
                "pgpass": str(folder / f"{self.name}.pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                },
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "parameters": {
                    "unix_socket_directories": "",
                    "shared_buffers": "32MB",
                    "wal_retrieve_retry_interval": "200ms",
                },
            },
        }

    def state(self) -> dict[str, Any]:
        """What Patroni says of it; empty while it does not answer."""
        return self._ask("patroni")

    def roles(self) -> list[str]:
        """Those of all members, as Patroni has written them down."""
        return sorted(member["role"] for member in self._ask("cluster").get("members", []))

    def _ask(self, page: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._api}/{page}", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        return {}

    def kill_postgresql(self) -> None:
        """SIGKILL to the server and all its backends; its Patroni lives."""
        with contextlib.suppress(FileNotFoundError):
            kill_tree(int((self.data / "postmaster.pid").read_text().split()[0]))

    def kill(self) -> None:
        """As if the machine had lost its power.  PostgreSQL is no child of the Patroni that starts it."""
        self.process.kill()
        self.kill_postgresql()


class PatroniCluster:
    """One leader, and two standbys of which one at least is synchronous."""

    def __init__(self) -> None:
        programs()
        self._folder = Path(tempfile.mkdtemp(prefix="bunqueue-patroni-"))
        ports = quiet_port(), quiet_port()
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        self.etcd = Process(
            self._folder / "etcd.log",
            *("etcd", "--name", "one", "--data-dir", str(self._folder / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"one={peer}", "--logger", "zap"),
        )
        self.members = [Member(self._folder, f"pg{number}", ports[0]) for number in (1, 2, 3)]

    def __enter__(self) -> PatroniCluster:
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir()):
                shutil.chown(path, ACCOUNT, ACCOUNT)
        try:
            for process in (self.etcd, *(member.process for member in self.members)):
                process.start()
            self.until_whole()
        except BaseException:
            print(self.etcd.said(), *(member.process.said() for member in self.members), sep="\n----\n")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.members, self.etcd):
            each.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """With all members, as a server is given it: the leader is the one that can be written to."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"postgresql://postgres@{hosts}/{database}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        url = f"{self.url()}?target_session_attrs=read-write"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return self.url(name)

    def leader(self) -> Member | None:
        """The member that says so of itself."""
        leaders = [each for each in self.members if _leads(each.state())]
        return leaders[0] if len(leaders) == 1 else None

    def is_whole(self) -> bool:
        """Whether there is a leader, two standbys stream from it, and it waits for one of them.

        Patroni writes down a moment later than PostgreSQL which one that is.  A leader that dies before this
        has no heir that Patroni trusts: it chooses none, for ever, as it must.
        """
        leader = self.leader()
        streams = (leader.state().get("replication") or []) if leader is not None else []
        if len(streams) != 2 or not any(each["sync_state"] == "sync" for each in streams):
            return False
        assert leader is not None
        return leader.roles() == ["leader", "replica", "sync_standby"]

    def until_whole(self) -> None:
        wait_until(self.is_whole, "a leader and two standbys, one of them synchronous", STARTS_S)


def _leads(state: dict[str, Any]) -> bool:
    return state.get("role") in ("master", "primary") and state.get("state") == "running"
