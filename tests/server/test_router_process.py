"""The life of the server: start, what can go wrong with it, stop."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from router_harness import WAIT_S, Client, RouterServer, alive, queue_of_shard, wait_for

import router.process
import router.start
from bunqueue.server.host.descriptors import share
from router.errors import BAD_USAGE
from router.process import AGAIN_S


def failed(server: RouterServer) -> tuple[int, str]:
    """Exit status and last line on standard error of a server that does not come up; it prints nothing."""
    server.launch()
    try:
        status = server.wait()
        assert server.process.stdout is not None
        assert server.process.stdout.read() == b""
        assert not server.runtime_folders()
        return status, server.log().splitlines()[-1]
    finally:
        server.kill()


# Start


def test_it_says_in_one_line_when_and_where_it_is_ready(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, sync="full") as server:
        pid = server.process.pid
        expected = f"tcp=127.0.0.1:{server.port} shards=2 data={tmp_path}/data sync=full pid={pid}"
        assert server.ready_line == f"bunqueue ready {expected}\n"
        with server.connect() as client:
            assert client.call(cmd="Ping")["data"]["pong"] is True


def test_the_data_folder_and_the_socket_are_private(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        (folder,) = server.runtime_folders()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert json.loads((tmp_path / "data" / "manifest.json").read_text())["shards"] == 2


def test_the_runtime_folder_of_systemd_is_used(tmp_path: Path) -> None:
    # systemd's own is short, too: the path of a socket may have no more than 107 bytes.
    runtime = Path(tempfile.mkdtemp(prefix="systemd-", dir="/tmp"))
    with RouterServer(tmp_path, fake=True, environ={"RUNTIME_DIRECTORY": str(runtime)}) as server:
        assert list(runtime.glob("bunqueue-*/shards.sock"))
        assert not server.runtime_folders()
    runtime.rmdir()  # fails unless it is empty


def test_a_deep_folder_for_temporary_files_is_avoided(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with (
        RouterServer(tmp_path, fake=True, environ={"TMPDIR": str(deep)}) as server,
        server.connect() as client,
    ):
        assert client.call(cmd="Ping")["ok"]


def test_memory_only_needs_no_folder(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, data_dir=":memory:"):
        assert not (tmp_path / "data").exists()


def test_it_tells_the_service_manager(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(WAIT_S)
        with RouterServer(tmp_path, fake=True, environ={"NOTIFY_SOCKET": str(tmp_path / "notify")}):
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"


def test_it_says_how_far_loading_is(tmp_path: Path) -> None:
    often = {"shards.supervisor.REPORT_S": 0.0}
    with RouterServer(tmp_path, fake=True, environ={"FAKE_START": "slow"}, changes=often) as server:
        assert "shard is loading shard=1 loaded=" in server.log()
        assert "total=1000000" in server.log()


def test_a_port_in_use_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, line = failed(RouterServer(tmp_path, fake=True, tcp_port=port))
        assert status == 1
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line
        assert "--tcp-port" in line
        assert not (tmp_path / "data" / "manifest.json").exists()  # another --shards may follow


def test_a_host_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    status, line = failed(RouterServer(tmp_path, fake=True, host="203.0.113.1"))
    assert status == 1
    assert "cannot listen on 203.0.113.1:0" in line
    assert "--host" in line


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True):
        pass
    status, line = failed(RouterServer(tmp_path, fake=True, shards=4))
    assert status == 1
    assert "start with --shards 2, change it with bunqueue reshard --shards 4, or choose another" in line


def test_a_shard_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    status, line = failed(RouterServer(tmp_path, fake=True, environ={"FAKE_START": "fail"}))
    assert status == 1
    assert "ended 5 times before it was ready (last status 4)" in line


def test_a_foreign_package_of_the_same_name_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "shardproc").mkdir(parents=True)
    (foreign / "shardproc" / "__init__.py").touch()
    status, line = failed(RouterServer(tmp_path, environ={"FIRST_PATH": str(foreign)}))
    assert status == BAD_USAGE
    assert "shardproc" in line
    assert str(foreign) in line


@pytest.mark.parametrize(
    "arguments", [[], ["--settings-fd"], ["--settings-fd", "x"], ["--settings-fd", "987"]]
)
def test_it_is_not_started_by_hand(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert router.start.main(arguments) == BAD_USAGE
    assert capsys.readouterr().err.startswith("bunqueue: ")


# What it warns of


def test_fewer_files_than_clients_lower_the_number_of_clients(tmp_path: Path) -> None:
    limited = {"FILE_LIMIT": "100"}
    with RouterServer(tmp_path, fake=True, environ=limited) as server:
        assert "max_connections is lowered" in server.log()
        most = share(100, 10_000, shards=2).clients
        assert f"max_connections={most} wanted=10000 open_files=100" in server.log()
        clients = [server.connect() for _ in range(most)]
        assert clients[-1].call(cmd="Ping")["ok"]
        with server.connect() as late:
            assert late.recv()["error"] == f"Too many connections (max {most})"
        for client in clients:
            client.socket.close()


def test_clients_that_are_turned_away_are_counted_in_the_log(tmp_path: Path) -> None:
    sweeps = {"process.SWEEP_S": 0.05}
    with RouterServer(tmp_path, fake=True, changes=sweeps, max_connections=1) as server, server.connect():
        with server.connect() as late:
            assert late.closed()
        wait_for(lambda: "clients were turned away clients=1 max_connections=1" in server.log())


def test_running_out_of_files_is_said(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True, changes={"process.SWEEP_S": 0.05}) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (5, 5))
        wait_for(lambda: "no file can be opened any more" in server.log())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0", "insecure": True}, True),
        ({"host": "127.0.0.1", "insecure": True}, False),
        ({"host": "0.0.0.0", "auth_token": ("secret",), "plaintext": True}, False),
    ],
)
def test_an_open_door_is_warned_of(tmp_path: Path, settings: dict[str, Any], said: bool) -> None:
    with RouterServer(tmp_path, fake=True, **settings) as server:
        wait_for(lambda: " ready " in server.log())
        server.process.terminate()
        assert server.wait() == 0
        assert ("anyone who reaches this address is accepted; set --auth-token" in server.log()) is said


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_open_door_has_to_be_wanted(tmp_path: Path, host: str) -> None:
    said = r"--host .*; give --auth-token, --identities, --tls-client-ca or --insecure"
    with pytest.raises(AssertionError, match=said):
        RouterServer(tmp_path, fake=True, host=host).__enter__()


def test_tokens_without_tls_have_to_be_wanted(tmp_path: Path) -> None:
    tokens: dict[str, Any] = {"host": "0.0.0.0", "auth_token": ("secret",)}
    said = r"--host .*; give --tls-cert and --tls-key, or --plaintext"
    with pytest.raises(AssertionError, match=said):
        RouterServer(tmp_path, fake=True, **tokens).__enter__()
    with RouterServer(tmp_path, fake=True, **tokens, plaintext=True) as server:
        wait_for(lambda: "tokens and payloads travel unencrypted to 0.0.0.0:" in server.log())


def test_files_in_an_open_folder_are_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    with RouterServer(tmp_path, sync="full") as server, server.connect() as client:
        assert client.call(cmd="PUSH", queue="q")["ok"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
    assert {"manifest.json", "server.lock", "shard-00.db", "shard-00.lock", "shard-00.db-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}


# Stop


def test_sigterm_ends_it_and_all_shards_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        pids = server.shard_pids()
        assert len(pids) == 2
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert not any(map(alive, pids))
        assert not server.runtime_folders()


def test_sigint_ends_it_too(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0


def test_sighup_without_tls_changes_nothing(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client:
        pids = server.shard_pids()
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "SIGHUP renews the TLS certificate" in server.log(), "it is said")
        assert client.call(cmd="Ping")["ok"]
        assert server.shard_pids() == pids


def test_the_last_replies_are_delivered(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server, server.connect() as client:
        queues = [queue_of_shard(shard, "hold") for shard in range(2)]
        client.send(*({"cmd": "PUSH", "queue": queue, "reqId": queue} for queue in queues))
        wait_for(lambda: len(server.heard("held")) == 2, "the shards hold them")
        server.process.terminate()
        assert {client.recv()["reqId"] for _ in range(2)} == set(queues)
        assert client.closed()
        assert server.wait() == 0


def test_no_new_client_is_let_in_and_no_new_command_taken_while_it_stops(tmp_path: Path) -> None:
    server = RouterServer(
        tmp_path, fake=True, environ={"FAKE_END": "never"}, changes={"shards.supervisor.DRAIN_S": 1.0}
    )
    with server, server.connect() as client:
        server.process.terminate()
        wait_for(lambda: "stopping" in server.log())
        client.send({"cmd": "Ping"})
        with pytest.raises(ConnectionRefusedError):
            wait_for(lambda: Client(server.port).socket.close())
        assert client.closed()
        assert server.wait() == 0
        assert "did not stop in time" in server.log()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    for_ever = {"shards.supervisor.DRAIN_S": 10 * WAIT_S}
    with RouterServer(tmp_path, fake=True, environ={"FAKE_END": "never"}, changes=for_ever) as server:
        pids = server.shard_pids()
        server.process.terminate()
        wait_for(lambda: "stopping" in server.log())
        time.sleep(AGAIN_S + 0.1)  # sooner, it would be taken for the first one
        server.process.terminate()
        assert server.wait() == 1
        wait_for(lambda: not any(map(alive, pids)), "the shards to be gone")
        assert not server.runtime_folders()


def test_the_same_signal_twice_at_once_is_one(tmp_path: Path) -> None:
    """What `timeout bunqueue start` does: it signals the process, and then its group."""
    with RouterServer(tmp_path, fake=True) as server:
        # Both are there when it goes on; another number, as equal ones may arrive as one.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            server.process.send_signal(number)
        assert server.wait() == 0
        assert server.log().rstrip().endswith("stopped")


def test_it_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    server = RouterServer(tmp_path, fake=True, environ={"FAKE_START": "slow"}).launch()
    try:
        wait_for(lambda: len(server.heard("start")) == 2, "both shards to start")
        pids = server.shard_pids()
        server.process.terminate()
        assert server.wait() == 0
        assert not any(map(alive, pids))
        assert not server.runtime_folders()
    finally:
        server.kill()


def test_shards_do_not_get_a_terminals_interrupt(tmp_path: Path) -> None:
    with RouterServer(tmp_path, fake=True) as server:
        assert all(os.getsid(pid) != os.getsid(server.process.pid) for pid in server.shard_pids())


def test_an_installed_interpreter_runs_the_shards_safely() -> None:
    assert router.process.COMMAND == (sys.executable, "-P", "-m", "shardproc")
