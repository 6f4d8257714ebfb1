"""TLS on the client: the users' options, and the context made from them."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from functools import lru_cache

from bunqueue.client.connection.options import refused, unfit
from bunqueue.errors import TlsError

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How to verify the server, and how to authenticate to it. Files are in PEM format."""

    ca_file: Path | None = None
    """Certificates of the authorities that may have signed the server's; None: those the system trusts."""
    cert_file: Path | None = None
    """This client's own certificate, for a server that asks for one (`--tls-client-ca`)."""
    key_file: Path | None = None
    """The key of `cert_file`; None: the key is in `cert_file` itself."""
    server_name: str | None = None
    """The name that the server's certificate must have; None: the host's."""
    verify: bool = True
    """False: accept any certificate, so a man in the middle can read and change everything. For
    testing only.
    """

    def __post_init__(self) -> None:
        for name in ("ca_file", "cert_file", "key_file"):
            path = getattr(self, name)
            if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
                raise refused(f"tls: {name}", path, "is not allowed; give the path of a PEM file")
        if self.key_file is not None and self.cert_file is None:
            raise unfit("tls: key_file", "a key is of no use without its certificate; give cert_file")
        if not isinstance(self.verify, bool):
            raise refused("tls: verify", self.verify, "is not allowed; give True or False")
        if self.server_name is not None and not (isinstance(self.server_name, str) and self.server_name):
            raise refused("tls: server_name", self.server_name, "is not allowed; give a host name")


Tls = bool | ssl.SSLContext | TlsOptions
"""What users may give: True means TLS with the system's certificates; False and None mean no TLS."""


def tls_options(value: Tls | None) -> ssl.SSLContext | TlsOptions | None:
    """Convert `value`; None: no TLS. Files are read at once, so a wrong one raises OptionError now."""
    if value is None or value is False:
        return None
    if value is True:
        value = TlsOptions()
    if isinstance(value, TlsOptions):
        client_context(value)
    elif not isinstance(value, ssl.SSLContext):
        raise refused("tls", value, "is not allowed; give True, an ssl.SSLContext or TlsOptions")
    elif value.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise unfit("tls", "this context is a server's; make one with ssl.create_default_context()")
    return value


def client_context(tls: ssl.SSLContext | TlsOptions) -> ssl.SSLContext:
    """The context to connect with. Raises OptionError when a file cannot be used."""
    return tls if isinstance(tls, ssl.SSLContext) else _context(tls)


@lru_cache(maxsize=32)  # reading the system's certificates takes 20 ms
def _context(tls: TlsOptions) -> ssl.SSLContext:
    name, path = "ca_file", tls.ca_file
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            name, path = "cert_file", tls.cert_file
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise unfit(f"tls: {name}", f"{path} cannot be used: {_reason(error)}") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    """Raise an error instead of asking for a password at the terminal."""
    raise ValueError("the key has a password; load it into an ssl.SSLContext of your own and give that")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to it"
        return f"it is not PEM, or not whole ({error.reason or error})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_PASSING = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLWantReadError)
"""The connection ended during the handshake: the server may be restarting."""
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")


def tls_problem(error: ssl.SSLError, address: str) -> TlsError | None:
    """The error for a failed handshake; None if a retry may succeed."""
    if isinstance(error, _PASSING):
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted: {error.verify_message}"
        fix = "give tls=TlsOptions(ca_file=...) with the certificate of who signed it"
    elif error.reason in _NOT_TLS:
        why = "what it says is not TLS"
        fix = "start it with --tls-cert and --tls-key, or connect without tls"
    else:
        why = f"TLS failed: {error.reason or error}"
        fix = "see the server's log; if it wants a certificate, give tls=TlsOptions(cert_file=...)"
    return TlsError(f"{address}: {why}; {fix}", address=address)
