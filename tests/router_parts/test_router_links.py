"""The port on which a host waits for the others: who comes in there, and what others cost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue.server.links import host_protocol as host_link
from router.cluster import certificates, links
from router.cluster.links import Links

STORE, CLUSTER = "store-1", "jobs"
OLDEST, NEWEST = host_link.VERSIONS


@dataclass
class Row:
    """What of a host stands in the store."""

    id: str
    number: int
    certificate: str
    name: str = "b"
    link: str = "127.0.0.1:1"


class Listener:
    """A cluster that has nothing to do."""

    def refresh_soon(self) -> None: ...


A, B, C = (certificates.make(name) for name in "abc")


@contextmanager
def listening() -> Iterator[tuple[Links, int]]:
    """The host a, which knows the hosts b and c from the store."""
    made: Any = Links(None, CLUSTER, STORE, A)  # type: ignore[arg-type]  # nobody gets as far as the hub
    made.greeting.me, made.greeting.number, made.cluster = "a", 1, Listener()
    port = made.listen("127.0.0.1", 0)
    rows = {"b": Row("b", 2, B.certificate), "c": Row("c", 3, C.certificate)}
    certificates.trust(made._tls, [B.certificate, C.certificate])
    made.greeting.hosts = rows
    yield made, port


def hello(**other: Any) -> bytes:
    fields = {"cluster": CLUSTER, "store": STORE, "host": "b", "number": 2, "incarnation": "1"}
    said = host_link.Hello(**{**fields, "oldest": OLDEST, "newest": NEWEST, **other})
    return host_link.envelope(host_link.HOST, host_link.HELLO, host_link.encode(said))


async def asked(port: int, identity: certificates.Identity | None, said: bytes) -> tuple[int, bytes]:
    """The kind and the body of the answer to what a host says that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity is not None:
        certificates._loaded(context, identity)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(said)
        header = host_link.HEADER.unpack(await reader.readexactly(host_link.HEADER.size))
        return header[4], await reader.readexactly(header[0])
    finally:
        writer.transport.abort()


async def test_only_hosts_of_the_store_are_heard() -> None:
    with listening() as (made, port):
        kind, challenge = await asked(port, B, hello())
        assert (kind, len(challenge)) == (host_link.CHALLENGE, host_link.SECRET_BYTES)
        for stranger in (None, certificates.make("b"), signed_by_b()):
            try:
                kind, _ = await asked(port, stranger, hello())
            except (OSError, asyncio.IncompleteReadError):  # at the handshake
                continue
            assert kind == host_link.REFUSED
        await made.close()


async def test_a_host_is_only_itself() -> None:
    with listening() as (made, port):
        for said, why in (
            (hello(host="c", number=3), "the certificate is not the one that this host has in the store"),
            (hello(number=3), "the store has this host under another number"),
            (hello(host="a", number=1), "is not known from the store"),
            (hello(store="store-2"), "of another store"),
        ):
            kind, body = await asked(port, B, said)
            assert kind == host_link.REFUSED
            assert why in body.decode()
        await made.close()


async def test_connections_that_show_nothing_take_no_place_from_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MAX_OPEN", 8)
    with listening() as (made, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        ended = [asyncio.create_task(reader.read()) for reader, _ in idle]
        await eventually(lambda: sum(task.done() for task in ended) >= len(idle) - links.MAX_OPEN, "they end")
        assert (await asked(port, B, hello()))[0] == host_link.CHALLENGE
        for _, writer in idle:
            writer.transport.abort()
        await asyncio.gather(*ended, return_exceptions=True)
        await made.close()


def signed_by_b() -> certificates.Identity:
    """A certificate that a host of the store has signed for somebody else."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    issuer: Any = serialization.load_pem_private_key(B.key, None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c")]))
        .issuer_name(x509.load_pem_x509_certificate(B.certificate.encode()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(issuer, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificates.Identity(made.public_bytes(serialization.Encoding.PEM).decode(), secret)
