"""The server as a process: started as a user starts it, killed as nobody should."""

from __future__ import annotations

import fcntl
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .end_servers import folder_prefix
from .file_rules import check_folder
from .procfs import Process, children, open_files, runs, started_with
from .waiting import PATIENCE_S, wait_until
from .warm import COMMAND, PROGRAM, ROOT, Warm  # noqa: F401  # some are found here by others
from .wire import Address

READY = re.compile(
    r"bunqueue ready tcp=(?P<host>\S+):(?P<port>\d+)( http=(?P<http>\S+))? shards=(?P<shards>\d+)"
    r" data=(?P<data>.+) sync=(?P<sync>\w+)( damaged=(?P<damaged>[\d,]+))? pid=(?P<pid>\d+)\n"
)
READY_S = EXIT_S = PATIENCE_S
MAX_LOG = 20_000  # characters of a log that are shown
PORTS = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections
PORTS_EACH = 50  # a block, which one process of tests takes at a time


class NotStarted(Exception):
    """The server ended before it was ready."""

    def __init__(self, status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"status {status}, stdout {stdout!r}, stderr:\n{stderr}")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr

    @property
    def refusals(self) -> list[str]:
        """The lines meant for people, beside the log."""
        return [line for line in self.stderr.splitlines() if line.startswith("bunqueue: ")]


class Server:
    """One server on one data folder; it may be started again after it ended."""

    def __init__(
        self, data_dir: Path | str, *flags: str, shards: int = 2, port: int = 0, http_port: int = 0
    ) -> None:
        """``http_port``: 0 for a server without the HTTP gateway; see `quiet_port`."""
        self.data_dir = data_dir
        self.http_port = http_port
        self.shards = shards
        self.flags = flags
        self.port = port
        self.host = "127.0.0.1"
        self.ready = ""  # the ready line
        self.inside: tuple[str, ...] = ()  # a command that runs it elsewhere: in a network of its own, say
        self.environ: dict[str, str] = {}  # what differs in the environment of its processes
        # A short path of its own: what a killed router leaves behind goes with it.
        self._folder = Path(tempfile.mkdtemp(prefix=folder_prefix()))
        self._stderr = self._folder / "stderr"
        self._router: subprocess.Popen[bytes] | None = None

    # Start and stop

    def start(self) -> None:
        """Start it and wait until it is ready; NotStarted when it ends instead."""
        self.launch()
        self.until_ready()

    def launch(self) -> None:
        """Start it and do not wait."""
        assert self._router is None, "it runs"
        arguments = ["--tcp-port", str(self.port), "--http-port", str(self.http_port)]
        arguments += ["--data-dir", str(self.data_dir), "--shards", str(self.shards), *self.flags]
        environ = {key: value for key, value in os.environ.items() if not _is_ours(key)}
        environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self._folder)} | self.environ
        with self._stderr.open("ab") as log:
            self._log_start = log.tell()
            self._router = Warm(
                [*self.inside, *COMMAND, "start", *arguments],
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def until_ready(self) -> None:
        """Wait for the ready line."""
        assert self._router is not None
        assert self._router.stdout is not None
        descriptor = self._router.stdout.fileno()
        deadline = time.monotonic() + READY_S
        text = b""
        while not text.endswith(b"\n"):
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"the server was not ready within {READY_S:g} s\n{self.log()}")
            part = os.read(descriptor, 4096)
            if not part:
                status = self.wait()
                raise NotStarted(status, text.decode(), self.log())
            text += part
        self.ready = text.decode()
        match = READY.fullmatch(self.ready)
        assert match is not None, self.ready
        assert int(match["pid"]) == self._router.pid
        assert int(match["shards"]) == self.shards
        self.port = int(match["port"])

    @property
    def address(self) -> Address:
        return self.host, self.port

    @property
    def pid(self) -> int:
        """The router's."""
        assert self._router is not None
        return self._router.pid

    @property
    def running(self) -> bool:
        """Whether the router is."""
        return self._router is not None and self._router.poll() is None

    def wait(self, within_s: float = EXIT_S) -> int:
        """Wait for the router's end; its exit status, negative for a signal."""
        assert self._router is not None
        try:
            status = self._router.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the router did not end within {within_s:g} s\n{self.log()}") from None
        if self._router.stdout is not None:
            self._router.stdout.close()
        self._router = None
        return status

    def signal(self, number: int) -> None:
        """Send the router a signal."""
        os.kill(self.pid, number)

    def stop(self) -> int:
        """The orderly end; the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill_router(self) -> list[Process]:
        """SIGKILL the router alone; the shards that it leaves behind."""
        shards = self.shard_processes()
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        return shards

    def kill_all(self) -> None:
        """SIGKILL the router and the shards, as near to at once as can be."""
        shards = self.shard_processes()
        os.kill(self.pid, signal.SIGSTOP)  # a shard that saw the router go would end as it should
        for shard in shards:
            shard.kill()
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
        self.until_gone()

    def kill_shards(self, only: int | None = None) -> None:
        """SIGKILL the shards, or the one with that number."""
        victims = self.shard_processes() if only is None else [self.shard(only)]
        for victim in victims:
            victim.kill()
        wait_until(lambda: not any(victim.alive for victim in victims), "the killed shards are gone")

    def restart(self) -> None:
        """Start again at the same place.  The port may take a moment to be free."""
        deadline = time.monotonic() + EXIT_S
        while True:
            try:
                self.start()
            except NotStarted as error:
                if "Address already in use" not in error.stderr or time.monotonic() > deadline:
                    raise
            else:
                return

    # Processes

    def shard_processes(self) -> list[Process]:
        """The shard processes that run now."""
        return [
            child
            for child in children(self.pid)
            if not runs(child.pid, "gateway", "fork server", "backup", "following")
        ]

    def gateway(self) -> Process:
        """The process of the HTTP gateway; waits until there is one."""
        found = wait_until(lambda: self._children("gateway"), "there is a gateway")
        return found[0]

    def backup(self) -> Process:
        """The process that ships what changes; waits until there is one."""
        return wait_until(lambda: self._children("backup"), "there is a backup process")[0]

    def fork_server(self) -> Process:
        """The process that the others are copies of; waits until there is one."""
        return wait_until(lambda: self._children("fork server"), "there is a fork server")[0]

    def _children(self, program: str) -> list[Process]:
        return [child for child in children(self.pid) if runs(child.pid, program)]

    @property
    def url(self) -> str:
        """Of the HTTP gateway."""
        return f"http://{self.host}:{self.http_port}"

    def shard(self, number: int) -> Process:
        """The process of one shard, told by the file that it has open; waits until there is one."""
        name = f"/shard-{number:02d}.db"

        def look() -> Process | None:
            for child in self.shard_processes():
                if any(path.endswith(name) for path in open_files(child.pid)):
                    return child
            return None

        found = wait_until(look, f"shard {number} has a process")
        assert found is not None
        return found

    def left_over(self) -> list[Process]:
        """All processes of this server, of every start, that are alive."""
        return started_with(f"TMPDIR={self._folder}")

    def until_gone(self, within_s: float = EXIT_S) -> None:
        """Wait until no process is left."""
        wait_until(lambda: not self.left_over(), "no process of the server is left", within_s)

    def log(self) -> str:
        """Standard error since the last start."""
        return self._stderr.read_bytes()[self._log_start :].decode(errors="replace")

    def whole_log(self) -> str:
        """Standard error of all starts."""
        return self._stderr.read_text(errors="replace") if self._stderr.exists() else ""

    def dispose(self) -> None:
        """End everything and remove what only this object knows of."""
        if self._router is not None:
            self._router.kill()
            self.wait()
        for left in self.left_over():
            left.kill()
        self.until_gone()
        shutil.rmtree(self._folder, ignore_errors=True)


StartServer = Callable[..., Server]
"""Makes a `Server`, not yet started, that ends with the test."""


def dispose(server: Server) -> None:
    """End the server, and write its log where pytest shows it if the test fails.  What it leaves must keep
    the rules of all files."""
    log = server.whole_log()
    server.dispose()
    sys.stderr.write(f"--- log of the server on {server.data_dir}\n{log[-MAX_LOG:]}\n")
    check_folder(server.data_dir)


def _is_ours(variable: str) -> bool:
    return variable.startswith("BUNQUEUE_") or variable in ("AUTH_TOKENS", "RUNTIME_DIRECTORY")


def quiet_port() -> int:
    """A free port that no outgoing connection and no other test will be given, not even while its server is
    down."""
    while True:
        port = next(_own_ports)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _blocks_of_ports() -> Iterator[int]:
    """Ports in blocks that belong to one process of tests on this machine, each port once."""
    folder = Path(tempfile.gettempdir()) / "bunqueue-test-ports"
    folder.mkdir(exist_ok=True)
    for first in random.sample(PORTS[::PORTS_EACH], len(PORTS) // PORTS_EACH):
        owned = os.open(folder / str(first), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(owned)
            continue
        yield from range(first, first + PORTS_EACH)
    raise AssertionError(f"all ports of {PORTS} are taken by other tests")


_own_ports = _blocks_of_ports()
