"""The server's side of TLS: loads its certificate, and explains what is wrong with it.

Plain connections use nothing of this module.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress

from bunqueue.logs import get_logger
from bunqueue.server.settings.settings import Settings

from ..errors import BAD_USAGE, StartError

SOON_S = 14 * 86_400  # before a certificate expires, warn
_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID
_MISMATCH = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")

_log = get_logger("router")


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The context for handshakes with clients; None without TLS. StartError when a file is missing or
    invalid."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A ticket is the first thing that a client reads. A Python client that reads in one thread while it
    # writes its first command in another loses that command: OpenSSL allows one thread at a time.
    context.num_tickets = 0
    _read_certificate(context, settings)
    if settings.tls_client_ca:
        _read_client_ca(context, settings.tls_client_ca)
    return context


def certificate_end(settings: Settings) -> float:
    """When the TLS certificate expires, in seconds since the epoch, as far as known: 0 without one, now if it
    has expired. Warns if that is soon: the clients, not the server, refuse it then."""
    if not settings.tls_cert:
        return 0.0
    problem, end = _dates(settings)
    if problem:
        _log.warning(
            f"{problem}; get a new one, put it in place, and send this process SIGHUP",
            certificate=settings.tls_cert,
        )
    return end


def _read_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    for option, path in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
        _check_readable(option, path)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except ssl.SSLError as error:
        raise StartError(_refusal(error, settings), BAD_USAGE) from error
    except ValueError:  # from `_no_password`
        text = (
            f"--tls-key {settings.tls_key}: it has a password; take that off (openssl pkey -in OLD -out NEW)"
        )
        raise StartError(text, BAD_USAGE) from None


def _refusal(error: ssl.SSLError, settings: Settings) -> str:
    if error.reason in _MISMATCH:
        return f"--tls-key {settings.tls_key}: it is not the key of the certificate {settings.tls_cert}"
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        scratch.load_verify_locations(settings.tls_cert)
    except ssl.SSLError:
        return f"--tls-cert {settings.tls_cert}: it is no certificate in PEM form"
    return f"--tls-key {settings.tls_key}: it is no private key in PEM form"


def _read_client_ca(context: ssl.SSLContext, path: str) -> None:
    """Accept only clients with a certificate that is signed by one of these CAs."""
    _check_readable("--tls-client-ca", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise StartError(f"--tls-client-ca {path}: it is no certificate in PEM form", BAD_USAGE) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise StartError(f"{option} {path}: it cannot be read: {error.strerror}", BAD_USAGE) from error


def _no_password() -> str:
    """Raise an error instead of asking at the terminal."""
    raise ValueError


def _dates(settings: Settings) -> tuple[str, float]:
    """What is wrong with the dates of the certificate, "" if nothing; and when it expires.

    Found by a handshake with ourselves, in memory, as a client that trusts just this certificate.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(settings.tls_cert)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        end = _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return "the TLS certificate has expired", time.time()
        return ("the TLS certificate is not valid yet" if error.verify_code == _NOT_YET else ""), 0.0
    ends = ssl.cert_time_to_seconds(end)
    left = ends - time.time()
    return (f"the TLS certificate expires in {left / 86_400:.0f} days" if left < SOON_S else ""), ends


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """The date until which the client accepts the server's certificate; SSLCertVerificationError if it does
    not."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    guest = client.wrap_bio(to_client, to_server)
    host = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (guest, host, guest, host):  # hello, certificate, finished, finished
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    certificate = guest.getpeercert()
    assert certificate is not None
    return str(certificate["notAfter"])
