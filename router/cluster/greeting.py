"""How the hosts of a cluster introduce themselves, and prove that they may read the store."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping

from bunqueue.server.links import host_protocol as host_link

from ..core.cluster_view import HostRow


class Greeting:
    """What this host reports of itself, and what it accepts from others."""

    def __init__(self, cluster: str, store: str, unknown: Callable[[], None]) -> None:
        """``unknown`` is called when a host greets that the store was not known to have."""
        self.cluster, self.store, self.unknown = cluster, store, unknown
        self.me = ""  # the id of this host
        self.number = 0
        self.secret = ""
        self.incarnation = secrets.token_hex(8)
        self.hosts: Mapping[str, HostRow] = {}

    def name(self, host: str) -> str:
        """For people."""
        return self.hosts[host].name if host in self.hosts else host

    def hello(self) -> host_link.Hello:
        oldest, newest = host_link.VERSIONS
        return host_link.Hello(
            self.cluster, self.store, self.me, self.number, self.incarnation, oldest, newest
        )

    def welcome(self, version: int) -> host_link.Welcome:
        return host_link.Welcome(version, self.me, self.incarnation)

    def prove(self, challenge: bytes) -> bytes:
        return host_link.prove(self.secret, challenge, self.me)

    def proves(self, host: str, challenge: bytes, proof: bytes) -> bool:
        return hmac.compare_digest(host_link.prove(self.secret, challenge, host), proof)

    def problem_of(self, hello: host_link.Hello) -> str | None:
        """Why a host is refused; None if it may prove its identity."""
        if (hello.cluster, hello.store) != (self.cluster, self.store):
            return f"this is the cluster {self.cluster} of another store"
        if host_link.agree(hello.oldest, hello.newest) is None:
            oldest, newest = host_link.VERSIONS
            return (
                f"no common version: this host speaks {oldest} to {newest} of the protocol between hosts, "
                f"not {hello.oldest} to {hello.newest}; upgrade the older host"
            )
        row = self.hosts.get(hello.host)
        if row is None:
            self.unknown()
            return "this host is not known from the store yet: try again"
        if row.number != hello.number or hello.host == self.me:
            return "the store has this host under another number"
        return None
