"""A real router process and plain sockets to talk to it, with an encoder that the server does not share."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgpack
from support.procfs import runs
from support.waiting import PATIENCE_S

from bunqueue.server.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
FAKE_SHARD = Path(__file__).with_name("router_fake_shard.py")
WAIT_S = PATIENCE_S

# Runs the router in this very process, with fake shards and with constants changed.
_RUNNER = """
import importlib, json, os, resource, sys
if limit := int(os.environ.get("FILE_LIMIT", "0")):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
command, changes, settings_fd = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for name, value in changes.items():
    module, _, attribute = name.rpartition(".")
    setattr(importlib.import_module("router." + module), attribute, value)
import router.start
sys.exit(router.start.main(["--settings-fd", settings_fd], command))
"""


def wait_for(condition: Callable[[], Any], what: str = "", limit: float = WAIT_S) -> Any:
    """The first true value of ``condition``, which is asked again and again."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.01)  # between two looks
    return value


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter while it is being read
        return False


class RouterServer:
    """A server on a free port; use it as a context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        fake: bool = False,
        changes: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        usual = {"tcp_port": 0, "http_port": 0, "shards": 2, "data_dir": str(folder / "data")}
        self.settings = Settings(**{**usual, **settings})
        self._command = [sys.executable, str(FAKE_SHARD)] if fake else None
        self._changes = dict(changes or {})
        self._environ = dict(environ or {})
        self.fake_log = folder / "fake.log"
        self.ready_line = ""
        self._temporary: Path | None = None

    def launch(self) -> RouterServer:
        """Start it without waiting."""
        reader, writer = os.pipe()
        os.write(writer, self.settings.to_json())
        os.close(writer)
        command = [sys.executable, "-P"]
        if self._command or self._changes or "FILE_LIMIT" in self._environ:
            command += ["-c", _RUNNER, json.dumps(self._command), json.dumps(self._changes), str(reader)]
        else:
            command += ["-m", "router", "--settings-fd", str(reader)]
        path = os.pathsep.join([*self._environ.pop("FIRST_PATH", "").split(), str(ROOT)])
        environ = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self._runtime()), **self._environ}
        environ["FAKE_LOG"] = str(self.fake_log)
        with open(self.folder / "stderr", "wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pass_fds=[reader],
                env=environ,
                cwd=self.folder,
            )
        os.close(reader)
        return self

    def _runtime(self) -> Path:
        """A folder of its own for temporary files; short, as a socket's path has 107 bytes at most."""
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="bq", dir="/tmp"))
            weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def __enter__(self) -> RouterServer:
        self.launch()
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], WAIT_S)
        self.ready_line = self.process.stdout.readline().decode() if ready else ""
        if not self.ready_line.startswith("bunqueue ready tcp="):
            self.kill()
            raise AssertionError(f"not ready: {self.ready_line!r}\n{self.log()}")
        self.port = int(self.ready_line.split()[2].rpartition(":")[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self.kill()

    def kill(self) -> None:
        """End the router and the shards, whatever state they are in."""
        for pid in self.shard_pids():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(WAIT_S)

    def log(self) -> str:
        return (self.folder / "stderr").read_text()

    def runtime_folders(self) -> list[Path]:
        return list(self._runtime().glob("bunqueue-*"))

    def shard_pids(self) -> list[int]:
        """The processes of the shards, in the order in which they were started; without the fork server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        try:
            pids = [int(pid) for pid in children.read_text().split()]
        except FileNotFoundError:
            return []
        return [pid for pid in pids if alive(pid) and not runs(pid, "fork server")]

    def memory(self) -> int:
        """Resident bytes of the router."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def heard(self, what: str) -> list[list[Any]]:
        """What the fake shards noted: ``[shard, value]``."""
        lines = self.fake_log.read_text().splitlines() if self.fake_log.exists() else []
        notes = [json.loads(line) for line in lines]
        return [[shard, value] for shard, kind, value in notes if kind == what]

    def connect(self, token: str = "") -> Client:
        client = Client(self.port)
        if token:
            assert client.call(cmd="Auth", token=token)["ok"]
        return client


class Client:
    """One connection; requests and replies as plain values."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._buffer = bytearray()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *commands: Mapping[str, Any]) -> None:
        self.socket.sendall(b"".join(map(framed, commands)))

    def recv(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """The next reply; EOFError when the server has closed the connection."""
        self.socket.settimeout(timeout)
        while len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError
            self._buffer += data
        end = 4 + int.from_bytes(self._buffer[:4], "big")
        payload = bytes(self._buffer[4:end])
        del self._buffer[:end]
        return dict(msgpack.unpackb(payload, strict_map_key=False))

    def call(self, **command: Any) -> dict[str, Any]:
        self.send(command)
        return self.recv()

    def silent(self, seconds: float = 0.2) -> bool:
        """Whether nothing comes for so long."""
        ready, _, _ = select.select([self.socket], [], [], seconds)
        return not ready and not self._buffer

    def closed(self) -> bool:
        """Whether the server ends the connection, after whatever it still says."""
        try:
            while True:
                self.recv()
        except (EOFError, ConnectionError):
            return True


def framed(command: object) -> bytes:
    payload: bytes = msgpack.packb(command)
    return len(payload).to_bytes(4, "big") + payload


def queue_of_shard(shard: int, prefix: str = "q", shards: int = 2) -> str:
    """The first queue of that name that this shard owns."""
    from bunqueue.model.ids import slot_of_queue

    return next(
        name for number in range(1000) if slot_of_queue(name := f"{prefix}-{number}") & (shards - 1) == shard
    )
