"""Requests that come through a proxy which the file of identities trusts, and whom it says they are from.

What any other client says in these headers is not read: only the address of the connection counts.
"""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from bunqueue.server.identities.directory import Directory, Grant
from bunqueue.server.identities.people import MAX_GROUPS, PROXY, is_in

FORWARDED_FOR, FORWARDED_PROTO = "x-forwarded-for", "x-forwarded-proto"


def is_trusted(scope: Scope, directory: Directory) -> bool:
    """Whether a request comes from a proxy that the file names."""
    networks = directory.people.networks
    return bool(networks) and is_in(str((scope.get("client") or ("",))[0]), networks)


def see_through(scope: Scope, headers: Headers, directory: Directory) -> None:
    """Make a request that came through a trusted proxy look as the proxy got it: from where, and whether over
    TLS. The last address that is not itself a proxy's counts: those before it may be made up."""
    networks = directory.people.networks
    for text in reversed(",".join(headers.getlist(FORWARDED_FOR)).split(",")):
        address = text.strip()
        if is_in(address, networks):
            continue
        if is_address(address):
            scope["client"] = (address, 0)
        break
    if headers.get(FORWARDED_PROTO) == "https":
        scope["scheme"] = "https" if scope["type"] == "http" else "wss"


def person(headers: Headers, directory: Directory) -> Grant | None:
    """Who a trusted proxy says this is; None if it says nothing, or something twice."""
    proxy = directory.people.proxy
    if proxy is None:
        return None
    names, groups = headers.getlist(proxy.user_header), headers.getlist(proxy.groups_header)
    if len(names) != 1 or len(groups) != 1:
        return None
    some = [group.strip() for group in groups[0].split(",", MAX_GROUPS)]
    return directory.of_person(PROXY, names[0], some)


def is_address(text: str) -> bool:
    """Whether this is an IP address, not a name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
