"""PostgreSQL from the system's packages, started for a test: one node, or one with a synchronous standby."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg
import pytest

from .end_servers import folder_prefix
from .server import quiet_port
from .waiting import wait_until

ACCOUNT = "postgres"


def binaries() -> Path:
    """The folder of PostgreSQL's programs.  Without them tests are skipped, but never where CI is set."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    named = shutil.which("initdb")
    if found or named:
        return found[-1].parent if found else Path(named or "").resolve().parent
    text = "no PostgreSQL here: the log is not tested with it (apt-get install postgresql)"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def ask(url: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql, values or None)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam(ACCOUNT)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _primary(leader: Node, name: str) -> str:
    return f"host=127.0.0.1 port={leader.port} user=postgres application_name={name}"


class Node:
    """One PostgreSQL server.  ``url`` is that of its database `postgres`."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.environ: dict[str, str] = {}
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        self._run(
            "initdb", "--pgdata", str(self.folder), "--auth", "trust", "--username", "postgres", "--no-sync"
        )
        self.configure(wal_level="replica", max_wal_senders=4, listen_addresses="127.0.0.1", port=self.port)
        self.configure(
            unix_socket_directories="", shared_buffers="32MB", fsync="on", log_min_messages="fatal"
        )
        self.configure(wal_retrieve_retry_interval="200ms")  # else 5 s until a standby finds its leader again
        self.configure(dynamic_shared_memory_type="mmap")  # else a kill leaves it in /dev/shm

    def let_in(self, network: str) -> None:
        """Other machines may connect, too.  Before it starts."""
        self.configure(listen_addresses="*")
        with (self.folder / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {network} trust\n")

    def copy_of(self, leader: Node, name: str) -> None:
        """Make this a standby of `leader`."""
        at = ("--host", "127.0.0.1", "--port", str(leader.port), "--username", "postgres")
        self._run(
            "pg_basebackup", *at, "--pgdata", str(self.folder), "--write-recovery-conf", "--checkpoint=fast"
        )
        follows = _primary(leader, name)
        self.configure(port=self.port, primary_conninfo=follows, synchronous_standby_names="")

    def follow(self, leader: Node, name: str) -> None:
        """Stream from another leader from now on."""
        self.configure(primary_conninfo=_primary(leader, name))
        self.ask("select pg_reload_conf()")

    def received(self) -> int:
        """How much of its leader's log this standby has on disk."""
        ((position,),) = self.ask("select pg_last_wal_receive_lsn() - '0/0'")
        return int(position)

    def configure(self, **settings: object) -> None:
        with (self.folder / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self) -> None:
        program = [str(binaries() / "postgres"), "-D", str(self.folder)]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            environ = {
                **os.environ,
                "TMPDIR": str(self.folder.parent),
                **self.environ,
            }  # as end_servers.py knows it
            self._process = subprocess.Popen(program, stdout=log, stderr=log, env=environ, **account())
        wait_until(self._answers, "PostgreSQL answers")

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url):
            return True
        assert self._process is not None
        assert self._process.poll() is None, (self.folder.parent / f"{self.folder.name}.log").read_text()
        return False

    def kill(self) -> None:
        """SIGKILL, to the server and all its backends."""
        if self._process is not None:
            children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True)
            for pid in [self._process.pid, *map(int, children.stdout.split())]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            (self.folder / "postmaster.pid").unlink(missing_ok=True)
            self._process = None

    @property
    def pid(self) -> int:
        """That of the server; its backends are its children."""
        assert self._process is not None
        return self._process.pid

    def start_if_ended(self) -> None:
        """It ends by itself when it has nowhere to write, and an operator starts it."""
        wait_until(self._answers_or_ended, "PostgreSQL answers, or has ended")
        assert self._process is not None
        if self._process.poll() is not None:
            self.kill()
            self.start()

    def _answers_or_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None or self._answers()

    def pause(self) -> None:
        """SIGSTOP to the server's processes: it is there, and does not answer."""
        assert self._process is not None
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        assert self._process is not None
        children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True)
        return [self._process.pid, *map(int, children.stdout.split())]

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return ask(self.url, sql, *values)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([binaries() / program, *arguments], capture_output=True, text=True, **account())
        assert done.returncode == 0, done.stderr


class Postgres:
    """A leader and perhaps synchronous standbys, any one of which has to acknowledge, in a folder."""

    def __init__(
        self,
        *,
        standby: bool = False,
        standbys: int = 0,
        network: str = "",
        disk: Path | None = None,
        leaders_environ: dict[str, str] | None = None,
    ) -> None:
        """``network``: other machines that may connect, as 10.0.0.0/8; ``disk``: for the leader's data;
        ``leaders_environ``: what differs in the environment of its processes."""
        binaries()
        self._network = network
        self._folder = Path(tempfile.mkdtemp(prefix=folder_prefix() + "pg-"))
        if os.geteuid() == 0:
            for folder in (self._folder, *([disk] if disk else [])):
                shutil.chown(folder, ACCOUNT, ACCOUNT)
        self.leader = Node((disk or self._folder) / "leader", quiet_port())
        self.leader.environ = leaders_environ or {}
        names = ["standby", *(f"standby{number}" for number in range(2, standbys + 1))]
        self.standbys = [Node(self._folder / name, quiet_port()) for name in names if standby or standbys]
        self.standby = self.standbys[0] if self.standbys else None

    def __enter__(self) -> Postgres:
        try:
            self.leader.create()
            if self._network:
                self.leader.let_in(self._network)
            self.leader.start()
            for standby in self.standbys:
                standby.copy_of(self.leader, standby.folder.name)
                standby.start()
            if self.standbys:
                names = ", ".join(standby.folder.name for standby in self.standbys)
                self.leader.ask(f"alter system set synchronous_standby_names = 'ANY 1 ({names})'")
                self.leader.ask("select pg_reload_conf()")
                wait_until(self._are_synchronous, "the standbys are synchronous")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _are_synchronous(self) -> bool:
        found = self.leader.ask("select sync_state from pg_stat_replication")
        return found == [("quorum",)] * len(self.standbys)

    def __exit__(self, *_: object) -> None:
        for node in (*self.standbys, self.leader):
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        return self.leader.url

    def fail_over(self) -> None:
        """The leader dies, and the standby that has received most takes its place, as Patroni would do it."""
        self.leader.kill()
        new, *others = sorted(self.standbys, key=Node.received, reverse=True)
        for standby in others:
            standby.follow(new, standby.folder.name)
        new.configure(synchronous_standby_names="ANY 1 (*)")  # before it is asked for anything
        new.ask("select pg_reload_conf()")
        new.ask("select pg_promote()")
        self.leader, self.standbys, self.standby = new, others, others[0] if others else None

    def pids(self) -> list[int]:
        """Those of all servers."""
        return [node.pid for node in (self.leader, *self.standbys)]

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"test_{secrets.token_hex(6)}"
        self.leader.ask(f"create database {name}")
        return self.leader.url.removesuffix("/postgres") + f"/{name}"
