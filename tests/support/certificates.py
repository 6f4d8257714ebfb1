"""Certificates of a test's own authority, as files."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """A certificate with those between it and its issuer, and its key."""

    cert: str
    key: str

    @property
    def flags(self) -> tuple[str, ...]:
        """For a server."""
        return "--tls-cert", self.cert, "--tls-key", self.key


class Authority:
    """Signs certificates; who trusts `ca_file` trusts them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()

    @cached_property
    def ca_file(self) -> str:
        path = self._folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(path))
        return str(path)

    def issue(
        self, *names: str, file: str = "server", ends: datetime | None = None, begins: datetime | None = None
    ) -> Certificate:
        """For these names, 127.0.0.1 and localhost unless given."""
        issued = self._ca.issue_cert(
            *(names or ("127.0.0.1", "localhost")), not_after=ends, not_before=begins
        )
        cert, key = self._folder / f"{file}.pem", self._folder / f"{file}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        key.write_bytes(issued.private_key_pem.bytes())
        return Certificate(str(cert), str(key))
