"""The command line as a process that is a copy of one which has loaded it all.

Tests start ``bunqueue`` more than a thousand times, and each time it would load the same modules for most of
a second.  Here one process of the test run does so once, and then forks: what is tested starts as if Python
had been started with it, with its own files, environment, folder and session, as a child of the test process.

What a copy cannot do is started from cold: another command, another Python path, a library that is preloaded.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import platform
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from .end_servers import folder_prefix

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import sys; from bunqueue.cli import main; sys.exit(main())"
COMMAND = [sys.executable, "-c", PROGRAM]
MODULES = (
    "bunqueue.app.bunqueue",
    "bunqueue.cli.commands.worker",
    "bunqueue.cli.program",
    "bunqueue.client.blocking.queue",
    "bunqueue.worker.worker",
    "bunqueue.gateway.process",
    "concurrent.futures.thread",
    "router.process",
    "router.secondary.process",
    "shardproc.process",
    "typer._adapters",
    "uvloop",
)
MAX_ORDER = 1 << 20
ROOM = 16_384  # bytes for what /proc shows of a copy's arguments, and of its environment
CLONE_PARENT = 0x8000  # clone(2): the copy is a child of whoever started the process that copies itself
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
COLD = ("PYTHON", "LD_", "COVERAGE")  # what begins so has been looked at when a process is copied
MEANS_NOTHING = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}  # to a copy, whose files are opened anew
_one_order = threading.Lock()  # at a time, so that each gets its own answer


class Warm(subprocess.Popen[Any]):
    """A process of this program, however it is started."""

    def _execute_child(self, *arguments: Any) -> None:
        how = inspect.signature(super()._execute_child).bind(*arguments).arguments
        command = how["args"]
        if not _can_be_copied(command, how):
            super()._execute_child(*arguments)
            return
        files = [how["p2cread"], how["c2pwrite"], how["errwrite"]]
        order = {
            "arguments": list(map(os.fsdecode, command[len(COMMAND) :])),
            "folder": os.fsdecode(how["cwd"] or os.getcwd()),
            "environ": dict(os.environ if how["env"] is None else how["env"]),
            "session": how["start_new_session"],
        }
        try:
            with _one_order:
                socket.send_fds(
                    _template(),
                    [json.dumps(order).encode()],
                    [number if file == -1 else file for number, file in enumerate(files)],
                )
                self.pid = int(_template().recv(MAX_ORDER))
            self._child_created = True
        finally:
            self._close_pipe_fds(*(how[name] for name in _PIPES))


def run(
    command: list[str], *, input: str | None = None, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does, with what it says as text."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Warm(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def _can_be_copied(command: Any, how: dict[str, Any]) -> bool:
    return (
        SYS_CLONE is not None
        and isinstance(command, list)
        and command[: len(COMMAND)] == COMMAND
        and how["preexec_fn"] is None
        and not how["pass_fds"]
        and _cold(os.environ if how["env"] is None else how["env"]) == _cold(_environ())
    )


def _cold(environ: Any) -> dict[str, str]:
    return {key: value for key, value in environ.items() if key.startswith(COLD) and key not in MEANS_NOTHING}


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def program(folder: Path) -> Path:
    """Put a program ``bunqueue`` into a folder, for shells.  It asks for a copy, passes on its own files, and
    ends as that does; if it is killed, the copy gets SIGTERM."""
    _template()
    file = folder / "bunqueue"
    file.write_text(_CALLER.format(python=sys.executable, address=str(_address())))
    file.chmod(0o755)
    return file


_CALLER = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as template:
    template.connect("{address}")
    how = {{"folder": os.getcwd(), "environ": dict(os.environ), "session": False}}
    socket.send_fds(template, [json.dumps({{"arguments": sys.argv[1:], **how}}).encode()], [0, 1, 2])
    sys.exit(int(template.recv(16)))
"""


@cache
def _address() -> Path:
    """Where the template takes orders of shells."""
    return Path(tempfile.mkdtemp(prefix=folder_prefix())) / "template"


@cache
def _template() -> socket.socket:
    """What takes orders."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tests.support.warm import serve; serve({str(_address())!r})",
                "-" * ROOM,
            ],
            env={**_environ(), "ROOM": "-" * ROOM},
            stdin=its,
            cwd=ROOT,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# In the process that is copied


def serve(address: str) -> NoReturn:
    """Load everything; then start a copy for each order, until nobody is there who gives any."""
    orders = socket.socket(fileno=os.dup(0))
    os.set_inheritable(orders.fileno(), False)
    callers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    callers.bind(address)
    callers.listen(64)
    for module in MODULES:
        __import__(module)
    sys.path[:] = ["", *sys.path[1:]]
    gc.collect()
    gc.freeze()
    waits = selectors.DefaultSelector()
    waits.register(orders, selectors.EVENT_READ, lambda: _start(orders))
    waits.register(callers, selectors.EVENT_READ, lambda: _start_for(callers.accept()[0], waits))
    while True:
        for key, _ in waits.select():
            key.data()


def _start(orders: socket.socket) -> None:
    """A copy that is a child of the test process."""
    text, files, _, _ = socket.recv_fds(orders, MAX_ORDER, 3)
    if not text:
        os._exit(0)
    pid = _copy(text, files, CLONE_PARENT)
    orders.send(str(pid).encode())


def _start_for(caller: socket.socket, waits: selectors.BaseSelector) -> None:
    """A copy for a shell's program, which waits for its exit status."""
    text, files, _, _ = socket.recv_fds(caller, MAX_ORDER, 3)
    if not text:
        caller.close()
        return
    pid = _copy(text, files, 0)
    ended = os.pidfd_open(pid)

    def end() -> None:
        waits.unregister(ended)
        os.close(ended)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):
            caller.send(str(status if status >= 0 else 128 - status).encode())
        with suppress(KeyError):
            waits.unregister(caller)
        caller.close()

    def left() -> None:
        waits.unregister(caller)
        os.kill(pid, signal.SIGTERM)

    waits.register(ended, selectors.EVENT_READ, end)
    waits.register(caller, selectors.EVENT_READ, left)


def _copy(text: bytes, files: list[int], flags: int) -> int:
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(ctypes.PyDLL(None).syscall(SYS_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0))
    if not pid:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        for number in set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2, *files}:
            with suppress(OSError):
                os.close(number)
        _be(json.loads(text), files)
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    for file in files:
        os.close(file)
    return pid


def _be(order: dict[str, Any], files: list[int]) -> NoReturn:
    """Run the program, as if Python had been started with it."""
    status: object = 1
    try:
        if order["session"]:
            os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environ"])
        _show([*COMMAND, *order["arguments"]], order["environ"])
        sys.argv = ["-c", *order["arguments"]]
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr

        import bunqueue.cli
        from bunqueue.cli.commands import server

        server.become = _become
        status = bunqueue.cli.main()
    except SystemExit as error:
        status = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    _end(status)


def _become(package: str, *arguments: str) -> NoReturn:
    """What the program replaces itself with is loaded, too."""
    sys.argv = [package, *arguments]
    sys.path[:] = sys.path[1:]  # -P
    runpy.run_module(package, run_name="__main__", alter_sys=True)
    sys.exit(0)


def _end(status: object) -> NoReturn:
    """As the interpreter ends."""
    import logging

    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    with suppress(BaseException):
        threading._shutdown()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    with suppress(BaseException):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(int(status or 0) & 0xFF)


def _show(arguments: list[str], environ: dict[str, str]) -> None:
    """Have /proc show these, as far as there is room: tests find processes by them."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    first = {key: environ[key] for key in ("TMPDIR",) if key in environ}
    shown = [f"{key}={value}" for key, value in {**first, **environ}.items()]
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for texts, (start, end) in ((arguments, fields[45:47]), (shown, fields[47:49])):
            room = int(end) - int(start)
            said = b"".join(os.fsencode(text) + b"\0" for text in texts)[: room - 1]
            os.pwrite(memory.fileno(), said.ljust(room, b"\0"), int(start))
