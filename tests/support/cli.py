"""The command line in this process, which is quick, and as a program of its own, on a pipe or a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest import mock

import orjson

from bunqueue.cli import main

from .server import Server
from .warm import COMMAND, ROOT, run

TIMEOUT_S = 120.0


class Done(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)

    @property
    def value(self) -> str:
        """Of a command that prints one."""
        return self.out.rstrip("\n")


class Cli:
    """Commands to one server."""

    def __init__(self, server: Server) -> None:
        self.url = f"bunqueue://{server.host}:{server.port}"

    def __call__(self, *arguments: str, stdin: str = "", status: int | None = 0) -> Done:
        """Run a command in this process; ``status``: what it must end with, None: anything."""
        out, err = _Text(), _Text()
        source = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            mock.patch.object(sys, "stdin", source),
            mock.patch.dict(os.environ, {"BUNQUEUE_URL": self.url}),
        ):
            found = main([str(argument) for argument in arguments])
        done = Done(found, out.text, err.text)
        assert status is None or done.status == status, done
        return done

    def json(self, *arguments: str, stdin: str = "", status: int = 0) -> Any:
        """What a command says as JSON."""
        return self(*arguments, "--json", stdin=stdin, status=status).json

    def program(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Done:
        """Run the program in a process of its own."""
        done = run(command(*arguments), env=self.environ(env), input=stdin, timeout=TIMEOUT_S)
        return Done(done.returncode, done.stdout, done.stderr)

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """For a process; its terminal alone says how wide it is."""
        ours = {
            key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        return {**ours, "PYTHONPATH": str(ROOT), "BUNQUEUE_URL": self.url, **(more or {})}

    def terminal(self, *arguments: str, columns: int = 160, rows: int = 40) -> Terminal:
        """Start the program on a terminal of its own."""
        return Terminal(command(*arguments), self.environ({"TERM": "xterm-256color"}), columns, rows)


class _Text(io.TextIOWrapper):
    """A text stream in memory that has bytes below it, as the real ones do."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    @property
    def text(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode()


def command(*arguments: str) -> list[str]:
    """The program, to be run."""
    return [*COMMAND, *arguments]


class Terminal:
    """A program on a terminal."""

    def __init__(self, arguments: list[str], environ: dict[str, str], columns: int, rows: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            arguments,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
        )
        os.close(slave)
        self.said = ""

    def until(self, text: str) -> str:
        """Read until it has said that; all it has said."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.said:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"it did not say {text!r}, but {self.said!r}")
        return self.said

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def end(self) -> Done:
        """Wait for the end."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(max(0.0, deadline - time.monotonic())):
            pass
        status = self.process.wait(TIMEOUT_S)
        return Done(status, self.said.replace("\r\n", "\n"), "")

    def dispose(self) -> None:
        """Whatever has happened, leave nothing behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            part = os.read(self._master, 65536)
        except OSError:  # Linux says so when nobody has the other end any more
            return False
        self.said += part.decode("utf-8", "replace")
        return bool(part)
