"""People who sign in elsewhere, with OpenID Connect or at a proxy: what the file of identities says of them.

Pure. Such a person is no entry of the file: they are who the provider or the proxy says, and may do what the
roles of their groups allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from bunqueue.model.rights import ANYBODY, Verb

OIDC, PROXY = "oidc", "proxy"
MAX_NAME = 128  # characters of a person's name
MAX_GROUPS = 1000  # of one person that are looked at
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class OidcRow(Struct, forbid_unknown_fields=True):
    """The table ``[oidc]``: a provider, and this server as its client."""

    issuer: str
    client_id: str
    url: str
    """Where browsers reach the dashboard."""
    client_secret_file: str = ""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "email"
    groups_claim: str = "groups"

    def __post_init__(self) -> None:
        self.issuer, self.url = self.issuer.rstrip("/") or self.issuer, self.url.rstrip("/")
        for name, value in (("issuer", self.issuer), ("url", self.url)):
            parts = urlsplit(value)
            if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
                raise ValueError(f"`{name}` must begin with https://")
        if "openid" not in self.scopes:
            raise ValueError("`scopes` must have openid among them")


class ProxyRow(Struct, forbid_unknown_fields=True):
    """The table ``[proxy]``: proxies that say in a header who somebody is."""

    addresses: list[str]
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"

    def __post_init__(self) -> None:
        for address in self.addresses:
            ip_network(address)  # raises ValueError, which names it


class People(NamedTuple):
    """How people sign in elsewhere, and what their groups may do."""

    groups: Mapping[str, Verb] = {}
    oidc: OidcRow | None = None
    secret: str = ""  # that of the provider's client
    proxy: ProxyRow | None = None

    def verbs_of(self, groups: Iterable[str]) -> Verb:
        """What somebody in these groups may do."""
        found = ANYBODY
        for group in groups:
            found |= self.groups.get(group, ANYBODY)
        return found

    def knows(self, way: str) -> bool:
        """Whether people come this way."""
        return (self.oidc if way == OIDC else self.proxy) is not None

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Where proxies are."""
        return _networks(*self.proxy.addresses) if self.proxy is not None else ()


@cache  # asked for each request
def _networks(*addresses: str) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(map(ip_network, addresses))


NO_PEOPLE = People()


def is_name(text: object) -> bool:
    """Whether this may be somebody's name."""
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME and text.isprintable()


def is_in(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether an address is in one of the networks."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in networks)
