"""Three PostgreSQL under Patroni, with one etcd or three, from the system's packages, started for a test.

As docs/store.md says to set them up: synchronous, and strictly so.  Patroni's times are as short as it
allows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from .end_servers import folder_prefix
from .postgres import ACCOUNT, account, binaries
from .procfs import command_line, kill_tree, signal_all, tree
from .server import quiet_port
from .waiting import wait_until

TTL_S = 20  # the shortest that Patroni takes: so long a leader may be silent
STOPS_S = 30.0
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


@dataclass(frozen=True)
class Machine:
    """Where a PostgreSQL runs with its Patroni, and perhaps an etcd."""

    address: str = "127.0.0.1"
    inside: tuple[str, ...] = ()  # a command of root's that runs programs there
    network: str = "127.0.0.1/32"  # who may connect
    disk: Path | None = None  # for the data of all of them
    environ: Mapping[str, str] = field(default_factory=dict)  # what differs in that of PostgreSQL and Patroni


class Process:
    """One that lives as long as the test wants."""

    def __init__(
        self, log: Path, *command: str, inside: tuple[str, ...] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        self._log, self._command, self._environ = log, command, dict(environ or {})
        self._account = account()
        if inside:  # which only root may do
            user = pwd.getpwnam(ACCOUNT)
            who = ("--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups")
            self._command, self._account = (*inside, "setpriv", *who, *command), {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = {**os.environ, "TMPDIR": str(self._log.parent), "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
        environ |= self._environ
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._log.parent, env=environ, **self._account
            )

    @property
    def pids(self) -> list[int]:
        """Its own, and those of all that it has started; none while it does not run."""
        return tree(self._process.pid) if self._process is not None and self._process.poll() is None else []

    def start_if_ended(self) -> None:
        """As a service manager does."""
        if not self.pids:
            self.kill()
            self.start()

    def stop(self) -> None:
        """In order, as a service manager does."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOPS_S)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process.pid)
            self._process.wait()
            self._process = None

    def said(self) -> str:
        return self._log.read_text()[-3000:]


class Member:
    """One PostgreSQL and its Patroni."""

    def __init__(self, folder: Path, name: str, etcds: Sequence[str], machine: Machine) -> None:
        self.name, self.port, self._api = name, quiet_port(), quiet_port()
        self.machine = machine
        self.data = (machine.disk or folder) / name
        self.process = Process(
            folder / f"{name}.log",
            *("patroni", str(folder / f"{name}.yml")),
            inside=machine.inside,
            environ=machine.environ,
        )
        (folder / f"{name}.yml").write_text(yaml.safe_dump(self._settings(folder, etcds)))

    def _settings(self, folder: Path, etcds: Sequence[str]) -> dict[str, Any]:
        here, network = self.machine.address, self.machine.network
        return {
            "scope": "jobs",
            "name": self.name,
            "restapi": {"listen": f"{here}:{self._api}", "connect_address": f"{here}:{self._api}"},
            "etcd": {"hosts": list(etcds)},  # that of Debian 12 does not keep a leader's lock safe in `etcd3`
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
                "listen": f"{here}:{self.port}",
                "connect_address": f"{here}:{self.port}",
                "data_dir": str(self.data),
                "bin_dir": str(binaries()),
                "basebackup": [{"checkpoint": "fast"}],  # else a standby waits for one that takes minutes
                "pgpass": str(folder / f"{self.name}.pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "postgres"},
                },
                "pg_hba": [f"host all all {network} trust", f"host replication all {network} trust"],
                "parameters": {
                    "unix_socket_directories": "",
                    "shared_buffers": "32MB",
                    "dynamic_shared_memory_type": "mmap",  # else a kill leaves it in /dev/shm
                    "max_wal_size": "128MB",  # the disks of tests are small
                    "wal_retrieve_retry_interval": "200ms",
                    "wal_sender_timeout": "5s",
                },
                "remove_data_directory_on_rewind_failure": True,
            },
        }

    def state(self) -> dict[str, Any]:
        """What Patroni says of it; empty while it does not answer."""
        return self._ask("patroni")

    @property
    def leads(self) -> bool:
        """Whether it says so of itself."""
        return _leads(self.state())

    def roles(self) -> list[str]:
        """Those of all members, as Patroni has written them down."""
        return sorted(member["role"] for member in self._ask("cluster").get("members", []))

    def _ask(self, page: str) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            url = f"http://{self.machine.address}:{self._api}/{page}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        return {}

    @property
    def pids(self) -> list[int]:
        """Those of Patroni and of PostgreSQL with its backends."""
        return list(dict.fromkeys([*self.process.pids, *self._of_postgresql()]))

    def _of_postgresql(self) -> list[int]:
        """It is no child of the Patroni that starts it."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            if str(self.data).encode() in command_line(pid):  # it has not ended, and left the file
                return tree(pid)
        return []

    def kill_postgresql(self) -> None:
        """SIGKILL to the server and all its backends; its Patroni lives."""
        signal_all(signal.SIGKILL, self._of_postgresql())

    def kill(self) -> None:
        """As if the machine had lost its power."""
        self.process.kill()
        self.kill_postgresql()


class PatroniCluster:
    """One leader, and two standbys of which one at least is synchronous."""

    def __init__(self, machines: Sequence[Machine] = (), *, etcds: int = 1) -> None:
        """``machines``: three, where the members are to run; the etcds are on the first of them."""
        programs()
        machines = machines or [Machine()] * 3
        self._folder = Path(tempfile.mkdtemp(prefix=folder_prefix() + "patroni-"))
        self._disks = [machine.disk for machine in machines if machine.disk is not None]
        at = [(machine, quiet_port(), quiet_port()) for machine in machines[:etcds]]
        peers = ",".join(f"e{n}=http://{machine.address}:{peer}" for n, (machine, _, peer) in enumerate(at))
        self.etcds = [self._etcd(f"e{n}", *each, peers) for n, each in enumerate(at)]
        clients = [f"{machine.address}:{client}" for machine, client, _ in at]
        self.members = [
            Member(self._folder, f"pg{number}", clients, machine)
            for number, machine in enumerate(machines, start=1)
        ]

    def _etcd(self, name: str, machine: Machine, client_port: int, peer_port: int, peers: str) -> Process:
        client, peer = (f"http://{machine.address}:{port}" for port in (client_port, peer_port))
        return Process(
            self._folder / f"{name}.log",
            *("etcd", "--name", name, "--data-dir", str((machine.disk or self._folder) / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", peers, "--enable-v2", "--logger", "zap", "--log-level", "warn"),
            *("--heartbeat-interval", "200", "--election-timeout", "2000"),  # the machine is busy
            inside=machine.inside,
        )

    def __enter__(self) -> PatroniCluster:
        if os.geteuid() == 0:
            for path in (self._folder, *self._folder.iterdir(), *self._disks):
                shutil.chown(path, ACCOUNT, ACCOUNT)
        processes = [*self.etcds, *(member.process for member in self.members)]
        try:
            for process in processes:
                process.start()
            self.until_whole()
        except BaseException:
            print(*(process.said() for process in processes), sep="\n----\n")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.members, *self.etcds):
            each.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        """With all members, as a server is given it: the leader is the one that can be written to."""
        hosts = ",".join(f"{member.machine.address}:{member.port}" for member in self.members)
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
        leaders = [each for each in self.members if each.leads]
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

    def until_led(self) -> Member:
        """Wait for a leader."""
        found = wait_until(self.leader, "one PostgreSQL leads", STARTS_S)
        assert found is not None
        return found

    def until_followed(self) -> Member:
        """Wait for a standby for which commits wait."""
        self.until_whole()
        streams = self.until_led().state()["replication"]
        (name,) = (each["application_name"] for each in streams if each["sync_state"] == "sync")
        return next(member for member in self.members if member.name == name)

    def until_whole(self) -> None:
        wait_until(self.is_whole, "a leader and two standbys, one of them synchronous", STARTS_S)


def _leads(state: dict[str, Any]) -> bool:
    return state.get("role") in ("master", "primary") and state.get("state") == "running"
