"""How the router starts processes, with a fork server that is out of order."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import pytest

from router.processes import fork_server, launcher
from router.processes.launcher import PYTHON, Launcher, Process

MODULE = (*PYTHON, "this")  # a module of the standard library that says something and ends


@pytest.fixture
def fork() -> Iterator[tuple[Launcher, socket.socket]]:
    """A launcher, and the fork server's end of its socket."""
    made = Launcher()
    made._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made._orders.setblocking(False)
    made._pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
    with orders:
        yield made, orders
    made.close()
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(made._pid, 0)


async def said(process: Process) -> bytes:
    assert process.stdout is not None
    text = await process.stdout.read()
    assert await process.wait() == 0
    return text


async def test_one_that_does_not_answer_is_given_up(
    fork: tuple[Launcher, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "ANSWER_S", 0.01)
    for _ in range(2):
        assert b"Zen of Python" in await said(await fork[0].start(MODULE, talks=True))
    assert fork[0]._orders is None


async def test_one_that_has_ended_is_given_up(fork: tuple[Launcher, socket.socket]) -> None:
    fork[1].close()
    assert b"Zen of Python" in await said(await fork[0].start(MODULE, talks=True))
    assert fork[0]._orders is None


async def test_one_that_can_start_nothing_now_is_asked_again(fork: tuple[Launcher, socket.socket]) -> None:
    for _ in range(2):
        fork[1].send(fork_server.FAILED + b"the system allows no further process")
        with pytest.raises(OSError, match=r"^the system allows no further process$"):
            await fork[0].start(MODULE)
    assert fork[0]._orders is not None


async def test_a_command_that_is_no_module_of_ours_is_run_as_it_is(
    fork: tuple[Launcher, socket.socket],
) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))")
    process = await fork[0].start(command)
    assert process.stdin is not None
    process.stdin.write(b"shard")
    process.stdin.close()
    assert await process.wait() == 5
    process = await fork[0].start(command)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == -signal.SIGTERM
