"""Hosts with networks of their own: each has a link to its clients, to the store and to the other hosts.

Needs root, and `ip` of iproute2.  A link is taken down as somebody pulls a plug: nobody is told.

The bridges are in a network namespace, too, which the calling thread joins: with new addresses in that of the
machine, browsers of other tests would give up what they are loading (net::ERR_NETWORK_CHANGED).
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
from functools import cache

CLIENTS, STORE, PEERS = range(3)
CLONE_NEWNET = 0x40000000


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _join(namespace: int) -> None:
    """Move the calling thread, and all that it starts from now on, into an open network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns comes with Python 3.12
    if libc.setns(namespace, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@cache
def possible() -> bool:
    """Whether this machine lets us make networks."""
    if shutil.which("ip") is None:
        return False
    try:
        with Network(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


class Network:
    """So many hosts, and three bridges; who enters is where the bridges are."""

    def __init__(self, hosts: int) -> None:
        self._tag = f"bq{random.randrange(16**4):04x}"
        self._part = random.randrange(64, 250)
        self._hosts = hosts

    @property
    def range(self) -> str:
        return f"10.{self._part}.0.0/16"

    @property
    def store(self) -> str:
        """Where hosts reach what listens where the bridges are."""
        return self.address(STORE, 254)

    def address(self, net: int, host: int) -> str:
        return f"10.{self._part}.{net}.{host + 1}" if host < 254 else f"10.{self._part}.{net}.254"

    def inside(self, host: int) -> tuple[str, ...]:
        """What runs a program in the network of a host."""
        return ("ip", "netns", "exec", f"{self._tag}-{host}")

    def __enter__(self) -> Network:
        self._outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _ip("netns", "add", self._tag)
            inside = os.open(f"/run/netns/{self._tag}", os.O_RDONLY)
            _join(inside)
            os.close(inside)
            _ip("link", "set", "lo", "up")
            for net in (CLIENTS, STORE, PEERS):
                _ip("link", "add", f"{self._tag}b{net}", "type", "bridge")
                _ip("addr", "add", f"{self.address(net, 254)}/24", "dev", f"{self._tag}b{net}")
                _ip("link", "set", f"{self._tag}b{net}", "up")
            for host in range(self._hosts):
                self._connect(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self, host: int) -> None:
        space = f"{self._tag}-{host}"
        _ip("netns", "add", space)
        _ip("-n", space, "link", "set", "lo", "up")
        for net in (CLIENTS, STORE, PEERS):
            _ip(
                "link", "add", self._end(host, net), "type", "veth", "peer", "name", f"e{net}", "netns", space
            )
            _ip("link", "set", self._end(host, net), "master", f"{self._tag}b{net}", "up")
            _ip("-n", space, "addr", "add", f"{self.address(net, host)}/24", "dev", f"e{net}")
            _ip("-n", space, "link", "set", f"e{net}", "up")

    def _end(self, host: int, net: int) -> str:
        return f"{self._tag}h{host}n{net}"

    def cut(self, host: int, *nets: int) -> None:
        for net in nets:
            _ip("link", "set", self._end(host, net), "down")

    def mend(self, host: int) -> None:
        for net in (CLIENTS, STORE, PEERS):
            _ip("link", "set", self._end(host, net), "up")

    def __exit__(self, *_: object) -> None:
        for host in range(self._hosts):
            subprocess.run(["ip", "netns", "del", f"{self._tag}-{host}"], capture_output=True)
        _join(self._outside)
        os.close(self._outside)
        subprocess.run(["ip", "netns", "del", self._tag], capture_output=True)
