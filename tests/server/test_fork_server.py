"""The process that the server's others are copies of: what it gives them, and a server without it."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from router_harness import RouterServer, queue_of_shard, wait_for
from support.procfs import children, command_line, open_files, process, runs
from support.server import quiet_port

ENDED = "the fork server has ended"
PARTS = ("fork server", "shard 0", "shard 1", "gateway", "router 1")


def child(server: RouterServer, program: str) -> int:
    """The process of that name, once there is one."""

    def look() -> int:
        return next((each.pid for each in children(server.process.pid) if runs(each.pid, program)), 0)

    return int(wait_for(look, program))


def kill_and_wait_for_the_next(server: RouterServer, shard: int = 0) -> None:
    """Kill a shard, and wait until it answers again."""

    def answers() -> bool:
        with suppress(EOFError, ConnectionError), server.connect() as client:
            return bool(client.call(cmd="PUSH", queue=queue_of_shard(shard), data=1)["ok"])
        return False

    victim = child(server, f"shard {shard}")
    gone = process(victim)
    assert gone is not None
    gone.kill()
    wait_for(lambda: not gone.alive and answers(), "the shard answers")
    assert child(server, f"shard {shard}") != victim


def test_what_its_copies_are_and_have(tmp_path: Path) -> None:
    with RouterServer(tmp_path, http_port=quiet_port(), routers=2) as server:
        router = server.process.pid
        parts = {name: child(server, name) for name in PARTS}
        assert {child.pid for child in children(router)} == {*parts.values()}
        for name, pid in parts.items():
            assert os.getsid(pid) == pid, f"{name} hears what a terminal says"
            assert command_line(pid).rstrip(b"\0").decode() == f"bunqueue {name}"
            wait_for(lambda name=name, pid=pid: comm(pid) == f"bunqueue {name}"[:15], "its short name")
        sockets = {path for path in open_files(router) if path.startswith("socket:")}
        for name in ("fork server", "shard 0", "shard 1"):
            assert not sockets & {*open_files(parts[name])}, f"{name} has a socket of the router's"


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")


def test_a_shard_that_dies_comes_from_it_again(tmp_path: Path) -> None:
    with RouterServer(tmp_path) as server:
        origin = child(server, "fork server")
        for _ in range(3):
            kill_and_wait_for_the_next(server)
        assert child(server, "fork server") == origin
        assert ENDED not in server.log()
        assert server.log().count("shard ended shard=0 status=-9") == 3


def test_the_server_goes_on_without_it(tmp_path: Path) -> None:
    with RouterServer(tmp_path) as server:
        origin = process(child(server, "fork server"))
        assert origin is not None
        origin.kill()
        for _ in range(2):
            kill_and_wait_for_the_next(server)
        assert server.log().count(ENDED) == 1
        assert not Path(f"/proc/{origin.pid}").exists(), "not even a zombie is left"


def test_it_ends_with_a_router_that_is_killed(tmp_path: Path) -> None:
    with RouterServer(tmp_path) as server:
        family = children(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: not any(each.alive for each in family), "all have ended")
        server.process.wait()
