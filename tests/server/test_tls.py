"""TLS between clients and a real server: who is let in, what is said to whom is not, and new certificates."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.certificates import Authority, Certificate
from support.server import NotStarted, Server, StartServer, dispose, quiet_port
from support.waiting import PATIENCE_S, eventually, wait_until
from support.wire import frame, pack

from bunqueue import (
    ActiveJob,
    Admin,
    AsyncAdmin,
    AsyncQueue,
    BunqueueError,
    ConnectionLost,
    ConnectionOptions,
    ConnectTimeout,
    OptionError,
    Queue,
    TlsError,
    TlsOptions,
    Worker,
)
from bunqueue.client.connection.transport import Endpoint
from bunqueue.protocol.commands import core
from bunqueue.worker.locks.lock_renewer import ServerChannel

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tls") / "data", *authority.issue().flags)
    try:
        server.start()
        yield server
    finally:
        dispose(server)


@pytest.fixture
def trusting(authority: Authority) -> TlsOptions:
    return TlsOptions(ca_file=authority.ca_file)


async def test_adding_and_working_over_tls(tls_server: Server, trusting: TlsOptions) -> None:
    done = asyncio.Event()

    async def handler(job: ActiveJob) -> int:
        done.set()
        return len(job.data)

    data = "x" * 3_000_000  # many TLS records
    async with AsyncQueue("tls", port=tls_server.port, tls=trusting) as queue:
        handle = await queue.add("n", data)
        async with Worker("tls", handler, port=tls_server.port, tls=trusting):
            await done.wait()
            await eventually(handle.result, "the result is there")
        assert await handle.result() == 3_000_000
        assert (await handle.job()).data == data


def test_blocking_calls_and_urls_go_over_tls(tls_server: Server, authority: Authority) -> None:
    url = f"bunqueues://localhost:{tls_server.port}?ca_file={authority.ca_file}"
    with Queue("tls-blocking", url=url) as queue:
        assert queue.add("n", 1).state() == "waiting"
        (connection, *_) = filter(None, queue._caller._blocking_pool._slots)  # type: ignore[union-attr]
        for _ in range(3):
            queue.add("n", 2)
        assert queue.count() == 4
        # What TLS says of its own accord is not taken for the end of the connection.
        assert connection in queue._caller._blocking_pool._slots  # type: ignore[union-attr]
        assert not queue._caller._caller.is_open


def test_nothing_comes_before_the_first_reply(tls_server: Server, authority: Authority) -> None:
    """Not even a session ticket: clients with a thread that reads would meet it while another writes."""
    context = ssl.create_default_context(cafile=authority.ca_file)
    with (
        socket.create_connection((tls_server.host, tls_server.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(frame(pack({"cmd": "Ping"})))
        assert encrypted.recv(4)  # whatever was sent before it has been read, too
        assert encrypted.version() == "TLSv1.3"
        assert encrypted.session is None or not encrypted.session.has_ticket


async def test_a_context_of_the_users_own_will_do(tls_server: Server, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca_file)
    async with AsyncAdmin(port=tls_server.port, tls=context) as admin:
        assert await admin.ping() > 0


def test_locks_are_renewed_over_tls(tls_server: Server, trusting: TlsOptions) -> None:
    channel = ServerChannel(Endpoint(port=tls_server.port, tls=trusting))
    command = core.JobHeartbeatBatch(ids=["none"], tokens=["none"])
    assert channel.call(command, core.HeartbeatBatchReply).data.count == 0
    channel.close()


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_server_that_is_not_trusted_is_not_told_anything(tls_server: Server, blocking: bool) -> None:
    patient = ConnectionOptions(command_timeout=10 * PATIENCE_S * 1000)
    options: dict[str, Any] = {"port": tls_server.port, "tls": True, "token": "secret", "connection": patient}
    with pytest.raises(TlsError, match=r"its certificate is not trusted: .*; give tls=TlsOptions\(ca_file"):
        async with asyncio.timeout(PATIENCE_S):  # at once: it would not get better
            await _ping(blocking, options)


async def test_a_certificate_must_have_the_hosts_name(
    make_server: StartServer, authority: Authority, trusting: TlsOptions
) -> None:
    server = make_server(*authority.issue("queue.example.com", file="other").flags)
    server.start()
    with pytest.raises(TlsError, match=r"not trusted: .*(mismatch|not valid for)"):
        await _ping(False, {"port": server.port, "tls": trusting})
    named = TlsOptions(ca_file=authority.ca_file, server_name="queue.example.com")
    assert await _ping(False, {"port": server.port, "tls": named})
    assert await _ping(False, {"port": server.port, "tls": TlsOptions(verify=False)})


async def test_plain_and_tls_tell_each_other_apart(
    tls_server: Server, shared_server: Server, trusting: TlsOptions
) -> None:
    with pytest.raises(TlsError, match="what it says is not TLS; start it with --tls-cert"):
        await _ping(False, {"port": shared_server.port, "tls": trusting})
    options = ConnectionOptions(command_timeout=60_000, refused_timeout=200)
    for blocking in (False, True):
        with pytest.raises(
            ConnectTimeout, match=r"closed by the server; if the server .* give tls=True"
        ) as caught:
            await _ping(blocking, {"port": tls_server.port, "connection": options})
        assert "bunqueue start" not in str(caught.value)


async def _ping(blocking: bool, options: dict[str, Any]) -> float:
    if blocking:
        with Admin(**options) as admin:
            return await asyncio.to_thread(admin.ping)
    async with AsyncAdmin(**options) as admin:
        return await admin.ping()


async def test_clients_may_have_to_show_a_certificate(
    make_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    mine = authority.issue("worker-1", file="mine")
    foreign = Authority(tmp_path).issue("worker-1")
    server = make_server(*authority.issue().flags, "--tls-client-ca", authority.ca_file)
    server.start()

    def options(shown: Certificate | None) -> dict[str, Any]:
        files = {"cert_file": shown.cert, "key_file": shown.key} if shown else {}
        tls = TlsOptions(ca_file=authority.ca_file, **files)
        limit = ConnectionOptions(max_reconnect_attempts=1)
        return {"port": server.port, "tls": tls, "connection": limit}

    assert await _ping(False, options(mine))
    for wrong in (None, foreign):
        with pytest.raises((TlsError, ConnectionLost, BunqueueError)):
            await _ping(False, options(wrong))

    def told() -> bool:
        """One line for all of a while, however many there are."""
        counts = re.findall(r"clients failed at the TLS handshake clients=(\d+)", server.log())
        return sum(map(int, counts)) >= 2

    await eventually(told, "it was told")


@pytest.mark.parametrize("routers", ["1", "2"])
async def test_sighup_takes_a_new_certificate_and_cuts_nobody_off(
    make_server: StartServer, authority: Authority, routers: str
) -> None:
    """Whichever router a new connection comes to."""
    certificate = authority.issue(file="renewed")
    server = make_server(*certificate.flags, "--routers", routers)
    server.start()
    trusting = TlsOptions(ca_file=authority.ca_file)
    async with AsyncQueue("q", port=server.port, tls=trusting) as queue:
        await queue.add("n")
        before = _serial(server)
        assert authority.issue(file="renewed") == certificate
        server.signal(signal.SIGHUP)
        await eventually(lambda: "the TLS certificate is renewed" in server.log(), "it was read")
        await eventually(lambda: before not in {_serial(server) for _ in range(16)}, "it is shown")
        await asyncio.to_thread(Path(certificate.key).write_text, "nonsense")
        server.signal(signal.SIGHUP)
        await eventually(lambda: "was not renewed" in server.log(), "it was refused")
        assert await queue.count() == 1
        assert await _ping(False, {"port": server.port, "tls": trusting})
    assert server.stop() == 0


async def test_sighup_with_another_client_ca_has_everybody_come_again(
    make_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    ca = tmp_path / "clients.pem"
    shutil.copy(authority.ca_file, ca)
    certificate = authority.issue()
    server = make_server(*certificate.flags, "--tls-client-ca", str(ca), http_port=quiet_port())
    server.start()
    places = {"tcp": server.port, "http": server.http_port}
    shown = {"old": authority.issue("worker", file="old"), "new": other.issue("worker", file="new")}

    def speak(place: str, who: str, words: bytes) -> ssl.SSLSocket:
        """A connection that was answered; OSError if it is not let in."""
        context = ssl.create_default_context(cafile=authority.ca_file)
        context.load_cert_chain(*shown[who])
        with ExitStack() as failed:
            plain = failed.enter_context(socket.create_connection((server.host, places[place]), 30))
            sock = failed.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            sock.sendall(words)
            if not sock.recv(4096):
                raise ConnectionError
            failed.pop_all()
            return sock

    def is_let_in(place: str, who: str) -> bool:
        try:
            speak(place, who, PING if place == "tcp" else HEALTH).close()
        except OSError:
            return False
        return True

    def ends(sock: ssl.SSLSocket) -> bool:
        """Read until its end; TimeoutError if there is none."""
        try:
            while sock.recv(4096):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        sock.close()
        return True

    def look() -> None:
        begun = [
            speak(place, "old", words)
            for place, words in (("tcp", PING), ("http", HEALTH), ("http", EVENTS), ("http", UPGRADE))
        ]
        server.signal(signal.SIGHUP)  # the same one: nobody has to go
        wait_until(lambda: "the TLS certificate is renewed" in server.log(), "it was read")
        assert is_let_in("http", "old")
        begun[0].sendall(PING)
        assert begun[0].recv(4096)
        shutil.copy(other.ca_file, ca)
        server.signal(signal.SIGHUP)
        assert all([ends(sock) for sock in begun])
        assert [is_let_in(place, who) for place in places for who in shown] == [False, True] * 2

    await asyncio.to_thread(look)
    assert server.stop() == 0


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
EVENTS = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
PING = frame(pack({"cmd": "Ping"}))


def _serial(server: Server) -> bytes:
    """What the server shows."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(server.address))


async def test_a_certificate_that_ends_soon_is_told(make_server: StartServer, authority: Authority) -> None:
    for words, begins, ends in (
        ("the TLS certificate has expired", NOW - timedelta(days=3), NOW - timedelta(days=1)),
        ("the TLS certificate is not valid yet", NOW + timedelta(days=1), NOW + timedelta(days=90)),
        ("the TLS certificate expires in 5 days", None, NOW + timedelta(days=5, minutes=5)),
    ):
        server = make_server(*authority.issue(file="dated", begins=begins, ends=ends).flags)
        server.start()
        wait_until(lambda: words in server.log(), words)  # noqa: B023
        server.stop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--tls-cert": "nowhere.pem"}, "nowhere.pem: it cannot be read: No such file or directory"),
        ({"--tls-key": "nowhere.key"}, "nowhere.key: it cannot be read: No such file or directory"),
        ({"--tls-cert": "nonsense"}, "nonsense: it is no certificate in PEM form"),
        ({"--tls-key": "nonsense"}, "nonsense: it is no private key in PEM form"),
        ({"--tls-key": "other.key"}, "other.key: it is not the key of the certificate"),
        ({"--tls-client-ca": "nonsense"}, "nonsense: it is no certificate in PEM form"),
        ({"--tls-key": None}, "tls_cert: give tls_key, too"),
        ({"--tls-cert": None}, "tls_key: give tls_cert, too"),
        (
            {"--tls-cert": None, "--tls-key": None, "--tls-client-ca": "ca.pem"},
            "tls_client_ca: only with TLS",
        ),
    ],
)
def test_files_that_are_wrong_are_told_in_one_line(
    make_server: StartServer, tmp_path: Path, change: dict[str, str | None], words: str
) -> None:
    authority = Authority(tmp_path)
    Path(authority.issue(file="other").cert).with_name("nonsense").write_text("nonsense")
    certificate = authority.issue()
    given: dict[str, str | None] = {"--tls-cert": certificate.cert, "--tls-key": certificate.key}
    given |= {flag: path and str(tmp_path / path) for flag, path in change.items()}
    server = make_server(*[word for flag, path in given.items() if path for word in (flag, path)])
    with pytest.raises(NotStarted) as caught:
        server.start()
    (line,) = caught.value.refusals
    assert words in line
    assert caught.value.status == 2


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(
    make_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    certificate = authority.issue(file="locked")
    locked = tmp_path / "locked.key"
    _lock(Path(certificate.key), locked)
    server = make_server("--tls-cert", certificate.cert, "--tls-key", str(locked))
    with pytest.raises(NotStarted, match="it has a password; take that off"):
        server.start()
    with pytest.raises(OptionError, match="the key has a password; load it into an"):
        Queue("q", tls=TlsOptions(cert_file=certificate.cert, key_file=locked))


def _lock(key: Path, locked: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    loaded = form.load_pem_private_key(key.read_bytes(), None)
    secret = form.BestAvailableEncryption(b"secret")
    locked.write_bytes(loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, secret))


def test_who_does_not_shake_hands_takes_nobodys_place(authority: Authority, make_server: StartServer) -> None:
    server = make_server("--max-connections", "5", *authority.issue().flags)
    server.start()
    context = ssl.create_default_context(cafile=authority.ca_file)
    silent = [socket.create_connection(server.address, 30) for _ in range(20)]
    try:
        with (
            socket.create_connection(server.address, 30) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as line,
        ):
            line.sendall(pack({"cmd": "Ping"}))
            assert line.recv(4)
    finally:
        for one in silent:
            one.close()
