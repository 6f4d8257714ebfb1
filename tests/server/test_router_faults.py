"""What goes wrong harms only whom it must: shards that die or hang, clients that misbehave."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from router_harness import WAIT_S, Client, RouterServer, alive, framed, queue_of_shard, wait_for

from router.shards.supervisor import SILENT_PINGS

MIB = 1024 * 1024
PINGS = {"shards.supervisor.PING_S": 0.2}  # who says nothing for six seconds hangs, also on a busy machine


def ask_until_up(client: Client, queue: str) -> list[str]:
    """Ask a shard until it answers; the errors on the way."""
    errors = []
    while not (reply := client.call(cmd="PUSH", queue=queue))["ok"]:
        errors.append(reply["error"])
        time.sleep(0.02)  # between two tries
    return errors


# Shards


def test_a_shard_that_dies_takes_only_those_with_it_who_waited_for_it(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        first, second = queue_of_shard(0), queue_of_shard(1)
        with server.connect() as victim, server.connect() as bystander:
            assert victim.call(cmd="PUSH", queue=second)["shard"] == 1
            gone = victim.call(cmd="PUSH", queue=second)["conn"]
            assert bystander.call(cmd="PUSH", queue=first)["shard"] == 0
            victim.send({"cmd": "PUSH", "queue": queue_of_shard(0, "die")})
            assert victim.closed()
            assert bystander.call(cmd="PUSH", queue=second)["ok"]
            wait_for(lambda: server.heard("severed") == [[1, gone]], "the other shard to be told")
            errors = ask_until_up(bystander, first)
            assert all(error == "Shard unavailable: shard 0 is restarting, try again" for error in errors)
        number = bystander_number = server.heard("live")[-1]
        assert number[0] == 0
        assert gone not in bystander_number[1]
        assert len(number[1]) == 1
        secrets = [value["secret"] for shard, value in server.heard("start") if shard == 0]
        epochs = {value["epoch"] for _, value in server.heard("start")}
        assert len(set(secrets)) == 2
        assert len(epochs) == 1


def test_who_asked_what_nobody_can_answer_any_more_is_cut_off(tmp_path: Path) -> None:
    """A shard had handed the command on to one that died; its own connection is fine."""
    single = {"cmd": "PUSH", "queue": queue_of_shard(0, "lost")}
    gathered = {"cmd": "ACKB", "ids": [queue_of_shard(0), queue_of_shard(1), queue_of_shard(1, "lost")]}
    with RouterServer(tmp_path, fake=True) as server, server.connect() as bystander:
        for asked in (single, gathered):
            with server.connect() as victim:
                number = victim.call(cmd="PUSH", queue=queue_of_shard(1))["conn"]
                victim.send(asked)
                assert victim.closed()
            wait_for(lambda number=number: [1, number] in server.heard("severed"), "the other to be told")
            assert bystander.call(cmd="PUSH", queue=queue_of_shard(0))["ok"]


def test_commands_for_a_shard_that_is_down_are_refused_at_once(tmp_path: Path) -> None:
    changes = {"processes.child_process.FIRST_DELAY_S": 60.0, "processes.child_process.LAST_DELAY_S": 60.0}
    with RouterServer(tmp_path, fake=True, changes=changes) as server, server.connect() as client:
        os.kill(server.shard_pids()[0], signal.SIGKILL)
        wait_for(lambda: "shard ended" in server.log())
        replies = [client.call(cmd="PUSH", queue=queue_of_shard(shard), reqId=shard) for shard in range(2)]
        assert sorted(reply["ok"] for reply in replies) == [False, True]
        (refused,) = (reply for reply in replies if not reply["ok"])
        text = f"Shard unavailable: shard {refused['reqId']} is restarting, try again"
        assert refused["error"] == text
        code = "SHARD_UNAVAILABLE"
        assert client.call(cmd="Stats", reqId=7) == {"ok": False, "error": text, "code": code, "reqId": 7}
        assert client.call(cmd="Ping")["ok"]


def test_a_connection_that_ends_is_told_to_a_shard_that_was_restarted(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        with server.connect() as client:
            number = client.call(cmd="PUSH", queue=queue_of_shard(0))["conn"]
            with server.connect() as other:
                other.send({"cmd": "PUSH", "queue": queue_of_shard(0, "die")})
                assert other.closed()
                ask_until_up(client, queue_of_shard(0))
        wait_for(lambda: server.heard("closed") == [[0, number]], "the shard to be told")


def test_a_shard_that_is_killed_at_any_moment_of_its_start_comes_back(tmp_path: Path) -> None:
    changes = {"processes.child_process.FIRST_DELAY_S": 0.01, "processes.child_process.LAST_DELAY_S": 0.01}
    with RouterServer(tmp_path, fake=True, changes=changes) as server:
        for kill in range(20):
            if pids := server.shard_pids():
                with suppress(ProcessLookupError):
                    os.kill(pids[-1], signal.SIGKILL)  # the youngest
            time.sleep(0.01 * kill)  # up to about the time that a start takes
        for shard in range(2):
            wait_for(lambda shard=shard: answers(server, shard), f"shard {shard}")


def answers(server: RouterServer, shard: int) -> bool:
    """Whether it does now; the router may not have seen yet that its process is dead."""
    with suppress(EOFError, ConnectionError), server.connect() as client:
        return bool(client.call(cmd="PUSH", queue=queue_of_shard(shard))["ok"])
    return False


def test_a_shard_that_hangs_is_killed_and_started_again(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, changes=PINGS) as server:
        pids = server.shard_pids()
        with server.connect() as client, server.connect() as other:
            client.send({"cmd": "PUSH", "queue": queue_of_shard(0, "stop")})
            assert client.closed()
            ask_until_up(other, queue_of_shard(0))
        assert "does not answer" in server.log()
        assert len([pid for pid in pids if alive(pid)]) == 1


def test_shards_that_answer_pings_are_left_alone(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, changes=PINGS) as server:
        pids = server.shard_pids()
        wait_for(lambda: len(server.heard("ping")) > 2 * (SILENT_PINGS + 1), "more pings than may be missed")
        assert server.shard_pids() == pids


def test_a_stranger_on_the_private_socket_is_not_taken_for_a_shard(tmp_path: Path) -> None:
    from bunqueue.server.links import shard_protocol as link

    with RouterServer(tmp_path, fake=True) as server:
        (folder,) = server.runtime_folders()
        for message in (
            link.answer(0, link.HELLO, link.encode(link.ShardHello(0, 1, "guessed"))),
            link.answer(0, link.HELLO, link.encode(link.ShardHello(77, 1, "guessed"))),
            link.answer(0, link.READY),
            link.answer(1, link.REPLIES, b"forged"),
        ):
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.settimeout(WAIT_S)
                stranger.connect(str(folder / "shards.sock"))
                stranger.sendall(message)
                assert stranger.recv(10) == b""
        with server.connect() as client:
            assert client.call(cmd="PUSH", queue="q")["ok"]


# Clients


def test_accepted_sockets_notice_a_peer_that_vanished(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client:
        port = client.socket.getsockname()[1]

        def is_kept_alive() -> bool:
            """The timer of the server's end, once it is accepted; 2 is keepalive, and it counts from when the
            connection was last used."""
            lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            (end,) = [line for line in lines if line[2].endswith(f":{port:04X}")]
            assert end[1].endswith(f":{server.port:04X}")
            return end[5].startswith("02:")

        wait_for(is_kept_alive, "the timer")


def test_a_client_that_does_not_read_is_paused_and_then_dropped(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, changes={"clients.memory_bounds.MAX_UNREAD": 20 * MIB}) as server:
        with server.connect() as client, server.connect() as other:
            before = server.memory()
            number = client.call(cmd="PUSH", queue=queue_of_shard(0))["conn"]
            client.send(*[{"cmd": "PUSH", "queue": queue_of_shard(0, f"big-{MIB}")}] * 50)
            wait_for(lambda: server.heard("broken") == [[0, number]], "the client to be dropped")
            assert other.call(cmd="PUSH", queue="q")["ok"]
            assert server.memory() - before < 150 * MIB
        assert "does not read" in server.log()


def test_a_client_that_reads_late_gets_everything(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client:
        commands = [{"cmd": "PUSH", "queue": queue_of_shard(0, f"big-{MIB}"), "reqId": n} for n in range(30)]
        client.send(*commands)
        time.sleep(0.5)  # so that the replies pile up
        assert [client.recv()["reqId"] for _ in commands] == list(range(30))
        assert client.call(cmd="Ping")["ok"]


def test_a_full_shard_pauses_its_feeder_and_nobody_else(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as feeder, server.connect() as other:
        before = server.memory()
        feeder.send({"cmd": "PUSH", "queue": queue_of_shard(0, "stop")})
        feeder.socket.settimeout(1)
        frame = framed({"cmd": "PUSH", "queue": queue_of_shard(0), "data": b"x" * MIB})
        with pytest.raises(TimeoutError):
            feeder.socket.sendall(frame * 50)
        assert server.memory() - before < 50 * MIB
        assert other.call(cmd="PUSH", queue=queue_of_shard(1))["ok"]
        os.kill(server.shard_pids()[0], signal.SIGKILL)
        assert feeder.closed()


def test_the_largest_frame_passes_and_nobody_waits_for_it(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client, server.connect() as other:
        data = b"x" * (64 * MIB - 100)
        client.send({"cmd": "PUSH", "queue": queue_of_shard(0), "data": data})
        assert client.recv()["size"] > 64 * MIB - 100
        big = {"cmd": "PUSH", "queue": queue_of_shard(0, f"big-{60 * MIB}")}
        client.send(big)
        assert len(client.recv()["big"]) == 60 * MIB
        assert other.call(cmd="Ping")["ok"]


def test_half_a_frame_and_silence_reset_the_connection(tmp_path: Path) -> None:
    changes = {"process.SWEEP_S": 0.05}
    with RouterServer(tmp_path, fake=True, changes=changes) as server:
        with server.connect() as client, server.connect() as idle:
            client.socket.sendall(b"\0\0")
            assert client.closed()
            assert idle.call(cmd="Ping")["ok"]


def test_an_oversized_frame_is_refused_as_soon_as_its_length_is_read(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client:
        client.socket.sendall((64 * MIB + 1).to_bytes(4, "big") + b"x" * 100_000)
        assert client.recv()["error"] == "Frame too large: 67108865 bytes (max 67108864)"
        assert client.closed()


def test_one_connection_too_many_is_told_so_and_closed(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, max_connections=2) as server:
        with server.connect() as first, server.connect() as second:
            assert first.call(cmd="Ping")["ok"]
            assert second.call(cmd="Ping")["ok"]
            with server.connect() as third:
                third.send({"cmd": "Ping"})
                assert third.recv()["error"] == "Too many connections (max 2)"
                assert third.closed()
        wait_for(lambda: is_let_in(server), "the places are free")


def is_let_in(server: RouterServer) -> bool:
    with server.connect() as client:
        return "error" not in client.call(cmd="Ping")


def test_garbage_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Twenty pings of somebody else do not wait for all of it, if there is enough: on a busy machine they may
    be late themselves."""
    with RouterServer(tmp_path, fake=True) as server, server.connect() as other:
        for count in (200_000, 1_000_000, 5_000_000):
            with server.connect() as noisy:
                reader = Thread(target=_take_refusals, args=(noisy, count), daemon=True)
                reader.start()
                noisy.socket.sendall(b"\0\0\0\0" * count)
                for _ in range(20):
                    assert other.call(cmd="Ping")["ok"]
                if reader.is_alive():
                    return
        pytest.fail("all pings have waited")


def _take_refusals(client: Client, count: int) -> None:
    """Read so many of them, or what comes before the end."""
    with suppress(EOFError, OSError):
        for _ in range(count):
            assert client.recv()["error"] == "Invalid command format"


def test_many_idle_connections_cost_little(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, max_connections=3000) as server:
        before = server.memory()
        clients = [server.connect() for _ in range(2000)]
        assert clients[-1].call(cmd="Ping")["ok"]
        assert (server.memory() - before) / 2000 < 16 * 1024
        for client in clients:
            client.socket.close()
        with server.connect() as client:
            wait_for(lambda: client.call(cmd="Ping")["ok"])
