"""Which URLs the server may call on request: none that lead into its own network.

The check is about the address to which an HTTP client would connect, however the URL is spelled:
``http://2130706433/``, ``http://0x7f.1/``, ``http://user@127.0.0.1/`` and ``http://[::ffff:7f00:1]/`` all
mean this machine.  Host names are not resolved here; the sender must also check the address it connects to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote, urlsplit, urlunsplit

MAX_URL = 2048  # characters
MASK = "***"  # shown instead of a password
MALFORMED = "Invalid URL format"
LOCALHOST = "localhost"
LOOPBACK = "loopback IP"
PRIVATE_NAME = "a private host name"
METADATA = "cloud metadata endpoints"

Address = IPv4Address | IPv6Address

# The first network that contains an address names it, so special ranges come before their larger networks.
_NETWORKS: tuple[tuple[IPv4Network | IPv6Network, str], ...] = tuple(
    (ip_network(network), name)
    for network, name in (
        ("0.0.0.0/8", "unspecified IP"),
        ("127.0.0.1/32", LOCALHOST),
        ("127.0.0.0/8", LOOPBACK),
        ("100.100.100.200/32", METADATA),
        ("168.63.129.16/32", METADATA),
        ("10.0.0.0/8", "private IP"),
        ("172.16.0.0/12", "private IP"),
        ("192.168.0.0/16", "private IP"),
        ("100.64.0.0/10", "private IP"),
        ("169.254.0.0/16", "link-local IP"),
        ("192.0.0.0/24", "reserved IP"),
        ("198.18.0.0/15", "reserved IP"),
        ("224.0.0.0/4", "multicast IP"),
        ("240.0.0.0/4", "reserved IP"),
        ("::/128", "unspecified IP"),
        ("::1/128", LOCALHOST),
        ("64:ff9b:1::/48", "private (NAT64) IP"),
        ("fc00::/7", "private (ULA) IP"),
        ("fe80::/10", "link-local IP"),
        ("fec0::/10", "private (site-local) IP"),
        ("ff00::/8", "multicast IP"),
    )
)
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
_METADATA_NAMES = frozenset(
    {
        "metadata",
        "metadata.google.internal",
        "metadata.goog",
        "metadata.azure.internal",
        "metadata.tencentyun.com",
        "metadata.platformequinix.com",
        "instance-data",
        "instance-data.ec2.internal",
        "rancher-metadata",
    }
)
# Domains that only resolve within some networks: those of RFC 6762 and 8375, and those that routers,
# companies and Kubernetes use.  Names with a single label are also private.
_PRIVATE_DOMAINS = (
    ".corp",
    ".home",
    ".home.arpa",
    ".intranet",
    ".lan",
    ".local",
    ".localdomain",
    ".private",
    ".svc",
)
# IPv6 networks whose addresses contain an IPv4 address, and how many bits follow the IPv4 address.
_CARRIERS = (
    (IPv6Network("::/96"), 0),
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("2002::/16"), 80),
)
_TEREDO = IPv6Network("2001::/32")

_DOTS = ".\u3002\uff0e\uff61"  # all of these characters separate labels
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")  # URL parsers disagree about these
_NAME = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


def url_problem(url: str, *, anywhere: bool = False) -> str | None:
    """Why a webhook must not have this URL, as the text of the refusal; None if it is allowed.

    ``anywhere`` also allows URLs that lead into the network.
    """
    if not url:
        return "Webhook URL is required"
    if len(url) > MAX_URL:
        return f"Webhook URL too long (max {MAX_URL} characters)"
    if _UNSAFE.search(url):
        return MALFORMED
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        return MALFORMED
    if not parts.scheme or not host:
        return MALFORMED
    if parts.scheme not in ("http", "https"):
        return "Webhook URL must use http or https protocol"
    try:
        if "[" in parts.netloc and ":" not in host:  # the IPvFuture form, which is not in use
            return MALFORMED
        place = forbidden_place(host)
    except ValueError:
        return MALFORMED
    return None if place is None or anywhere else f"Webhook URL cannot point to {place}"


def without_password(url: str) -> str:
    """A URL with its password masked: ``https://user:***@host/``."""
    netloc = urlsplit(url).netloc
    who, _, host = netloc.rpartition("@")
    name, colon, _ = who.partition(":")
    return url.replace(f"//{netloc}", f"//{name}:{MASK}@{host}", 1) if colon else url


def without_secrets(url: str) -> str:
    """A URL for readers without further rights: without its credentials and the values in its query."""
    parts = urlsplit(url)
    _, at, host = parts.netloc.rpartition("@")
    query = "&".join(f"{name}={MASK}" if equals else MASK for name, equals in _query(parts.query))
    return urlunsplit((parts.scheme, f"{MASK}@{host}" if at else host, parts.path, query, ""))


def _query(text: str) -> list[tuple[str, str]]:
    """The names in a query, each with its "=" if it has a value."""
    return [pair.partition("=")[:2] for pair in text.split("&")] if text else []


def forbidden_place(host: str) -> str | None:
    """Why a host must not be called; None if it is allowed.  Raises ValueError if it is not a host."""
    if ":" in host:
        if "%" in host:  # a zone id: the name of an interface of this machine
            raise ValueError(host)
        return _first(IPv6Address(host))
    name = _plain_name(host)
    if _NUMBER.fullmatch(name.rpartition(".")[2]):  # the whole name must then be an address
        return next((found for reading in _readings(name) if (found := _first(reading))), None)
    if not _NAME.fullmatch(name):
        raise ValueError(host)
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return LOCALHOST
    if name in _METADATA_NAMES or f".{name}".endswith(".internal"):  # used by clouds, and for Docker's host
        return METADATA
    return PRIVATE_NAME if "." not in name or name.endswith(_PRIVATE_DOMAINS) else None


def _plain_name(host: str) -> str:
    """A host name in the form used for resolution: unescaped, ASCII, lower case, without dots at the end."""
    name = unquote(host, errors="strict").rstrip(_DOTS)
    return name.encode("idna").decode().lower().rstrip(".")


def _readings(text: str) -> Iterator[IPv4Address]:
    """The addresses that a dotted number may mean: most parsers read a leading 0 as octal, but not all."""
    parts = text.split(".")
    if len(parts) > 4 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError(text)
    readings = [(part, False) for part in parts], [(part, True) for part in parts]
    found = []
    for reading in readings:
        try:
            found.append(_address([_number(part, decimal) for part, decimal in reading]))
        except ValueError:
            continue
    if not found:
        raise ValueError(text)
    yield from found


def _number(text: str, decimal: bool) -> int:
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8 if text.startswith("0") and not decimal else 10)


def _address(numbers: list[int]) -> IPv4Address:
    """Parse as ``inet_aton`` does: the last number fills the remaining bytes."""
    *bytes_, last = numbers
    if any(number > 255 for number in bytes_) or last >= 256 ** (4 - len(bytes_)):
        raise ValueError(numbers)
    return IPv4Address(sum(number << 8 * (3 - place) for place, number in enumerate(bytes_)) + last)


def _first(address: Address) -> str | None:
    """The first forbidden network that contains an address, or an IPv4 address inside it."""
    for found in (address, *_carried(address)):
        for network, name in _NETWORKS:
            if found.version == network.version and found in network:
                return LOOPBACK if name == LOCALHOST and found is not address else name
    return None


def _carried(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that packets to an IPv6 address may reach."""
    if not isinstance(address, IPv6Address):
        return
    for network, shift in _CARRIERS:
        if address in network:
            yield IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    if address in _TEREDO:
        yield IPv4Address(~int(address) & 0xFFFFFFFF)


def is_forbidden_address(text: str) -> bool:
    """Whether connecting to a resolved address is forbidden."""
    return _first(ip_address(text)) is not None
