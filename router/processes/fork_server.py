"""A process that has loaded the other processes' programs, and forks copies of itself to run them.

Loading a program takes most of a second on a busy machine. Here it is done once: a shard then starts, and
restarts, within milliseconds, and shares the loaded code in memory with the others.

The fork server is forked from the router before that has loaded its own program and has a thread, an event
loop or an open file. It runs nothing but this loop. A copy becomes a child of the router, as if the router
had started it. The fork server ends with the router.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import logging
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn, TypeAlias

import msgspec

from bunqueue.server.host.process_arguments import name_process

MAX_FILES = 250  # limit of one message: SCM_MAX_FD of Linux is 253
MAX_ORDER = 1 << 16
FAILED = b"!"  # prefix of an answer: the rest says why there is no process
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Order(msgspec.Struct):
    """Requests a process that runs ``module``. ``files``: the descriptor numbers for the files sent with the
    order."""

    module: str
    files: list[int]


def adopt() -> bool:
    """Become the parent of processes that children of this one leave behind; False if that is not
    possible."""
    import ctypes

    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


Forks: TypeAlias = tuple[int, socket.socket]
"""A running fork server: its process id, and the socket that takes orders."""


def start(modules: Sequence[str]) -> Forks | None:
    """Fork the server, which loads ``modules``; None where that is not possible. May raise OSError.

    Call it before this process has a thread, an event loop or an open file.
    """
    if not hasattr(os, "pidfd_open") or not adopt():
        return None
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        its.close()
        ours.setblocking(False)
        return pid, ours
    try:
        _become_server(its.detach(), modules)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def _become_server(orders: int, modules: Sequence[str]) -> NoReturn:
    os.setsid()  # so a terminal's Ctrl-C does not reach it
    for number in _SIGNALS:  # the router decides when it ends
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    _keep_only([nothing, nothing, orders], [0, 1, 3])
    name_process("bunqueue fork server")
    gc.disable()  # loading makes no garbage
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a copy would write to all these pages, and so copy them
    _serve(socket.socket(fileno=3))


def _serve(orders: socket.socket) -> NoReturn:
    while True:
        try:
            text, files, _, _ = socket.recv_fds(orders, MAX_ORDER, MAX_FILES)
        except ConnectionResetError:  # the router was killed before it had read an answer
            text, files = b"", []
        if not text:
            os._exit(0)  # the router is gone
        try:
            answer = str(_fork(msgspec.json.decode(text, type=Order), files)).encode()
        except OSError as error:
            answer = FAILED + str(error).encode()
        for file in files:
            os.close(file)
        with suppress(OSError):
            orders.send(answer)


def _fork(order: Order, files: list[int]) -> int:
    """Start a process; returns its id.

    The intermediate process ends at once, so the new one becomes the router's child.
    """
    reader, writer = os.pipe()
    between = os.fork()
    if not between:
        with suppress(OSError):
            pid = os.fork()
            if not pid:
                _run(order, files)
            os.write(writer, str(pid).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(between, 0)
    if not found:
        raise OSError("the system allows no further process")
    return int(found)


def _run(order: Order, files: list[int]) -> NoReturn:
    """Run a module in this process, as if Python had been started with it."""
    status = 1
    try:
        os.setsid()
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _keep_only(files, order.files)
        name_process(f"bunqueue {order.module.rpartition('.')[2]}")
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
        gc.enable()
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        logging.shutdown()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def _keep_only(files: Sequence[int], numbers: Sequence[int]) -> None:
    """Have these files at these numbers, keep standard error, and close all others."""
    safe = max([2, *numbers]) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, safe) for file in files]
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
    wanted = {2, *numbers}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with suppress(OSError):  # the descriptor of the folder that is being listed
                os.close(int(name))
