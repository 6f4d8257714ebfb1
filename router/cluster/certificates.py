"""The certificate that a host presents to the others: made at each start, and trusted because it is in the
store."""

from __future__ import annotations

import datetime
import os
import secrets
import ssl
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

VALID = datetime.timedelta(days=3650)  # a certificate is at most as old as its process


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key, PEM."""

    certificate: str
    key: bytes


def make(name: str) -> Identity:
    """A new identity for a host."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    # If two certificates had the same name, OpenSSL would pick the wrong one as the issuer.
    unique = f"{name[:40]} {secrets.token_hex(8)}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, unique)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of hosts may differ, so validity dates do not matter: the certificate's row in the store
        # does.
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Identity(certificate.public_bytes(serialization.Encoding.PEM).decode(), secret)


def _loaded(context: ssl.SSLContext, identity: Identity) -> None:
    """Load an identity. Python reads certificates from files only."""
    descriptor, path = tempfile.mkstemp(prefix="bunqueue-")
    try:
        with open(descriptor, "wb") as file:
            file.write(identity.key + identity.certificate.encode())
        context.load_cert_chain(path)
    finally:
        os.unlink(path)


def server_context(identity: Identity, trusted: Iterable[str]) -> ssl.SSLContext:
    """For accepting other hosts: each has to present one of the trusted certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _loaded(context, identity)
    context.verify_mode = ssl.CERT_REQUIRED
    trust(context, trusted)
    return context


def client_context(identity: Identity, trusted: str) -> ssl.SSLContext:
    """For dialling one host, which has to present this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is known, whatever the address
    _loaded(context, identity)
    trust(context, [trusted])
    return context


def trust(context: ssl.SSLContext, certificates: Iterable[str]) -> None:
    """Trust these certificates as well."""
    for certificate in certificates:
        context.load_verify_locations(cadata=certificate)
