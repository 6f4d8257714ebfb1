"""Which values an option of the server accepts, and the defaults that depend on the machine.

An option that does not name its kind gets one of those at the end of this file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bunqueue.model.ids import is_power_of_two
from bunqueue.server.host.machine_memory import LEAST

MEMORY = ":memory:"  # the ``data_dir`` that stores nothing on disk
MAX_TOKENS, MAX_TOKEN_CHARS = 64, 512  # together half of what the pipe to the child process can carry
MAX_ORIGINS = 16
BACKUP_PLACES = ("/", "s3://", "gs://", "az://")
STORE_SCHEMES = ("postgresql://", "postgres://")

_SIZE = re.compile(r"([0-9]{1,18})([KMGT]?)")
_TOKEN = re.compile(r"[!-+\--~]+")  # printable ASCII except space and comma
_ORIGIN = re.compile(r"https?://([a-z0-9.-]{1,253}|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which values an option accepts.

    ``read`` turns the text of a flag or variable into a value, or returns it unchanged if malformed.
    ``allows`` checks that value, or the one from a configuration file.  ``resolve`` makes a path absolute.
    """

    bound: str
    allows: Callable[[object], bool]
    read: Callable[[str], object] = lambda text: text
    resolve: Callable[[object, Mapping[str, str]], object] = lambda value, environ: value
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    secret: bool = False
    switch: bool = False  # its flag takes no value


def whole(low: int, high: int, *, power_of_two: bool = False) -> Kind:
    def read(text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text

    def allows(value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return low <= value <= high and (not power_of_two or is_power_of_two(value))

    words = "power of two" if power_of_two else "whole number"
    return Kind(bound=f"a {words} from {low} to {high}", allows=allows, read=read)


def byte_size(low: int) -> Kind:
    """A number of bytes, also as text with a unit; 0 means no limit."""

    def read(text: object) -> object:
        found = _SIZE.fullmatch(text) if isinstance(text, str) else None
        return int(found[1]) << 10 * " KMGT".index(found[2] or " ") if found else text

    def allows(value: object) -> bool:
        size = read(value)
        return isinstance(size, int) and not isinstance(size, bool) and (size == 0 or low <= size < 2**62)

    return Kind(
        bound=f"bytes, or with a unit such as 512M or 2G (K, M, G, T), from {low >> 20}M on, or 0",
        allows=allows,
        read=read,
        resolve=lambda value, environ: read(value),
    )


def one_of(*values: str | int) -> Kind:
    def read(text: str) -> object:
        return next((value for value in values if str(value) == text), text)

    def allows(value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in values)

    choices = tuple(str(value) for value in values)
    bound = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return Kind(bound=bound, allows=allows, read=read, choices=choices)


def _is_host(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._:%-]{1,255}", value) is not None


def _is_address(value: str) -> bool:
    """Whether this is a ``host:port`` that other hosts can connect to."""
    found = re.fullmatch(r"\[?[A-Za-z0-9._:%-]{1,255}\]?:([0-9]{1,5})", value)
    return found is not None and int(found[1]) <= 65535


def is_path(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and value.isprintable()


def home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def default_data_dir(environ: Mapping[str, str] = os.environ) -> str:
    """The folder ``bunqueue`` in the platform's data directory for the user."""
    if sys.platform == "darwin":
        return os.path.join(home(environ), "Library", "Application Support", "bunqueue")
    base = environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative path
        base = os.path.join(home(environ), ".local", "share")
    return os.path.join(base, "bunqueue")


def default_shards(environ: Mapping[str, str] = os.environ) -> int:
    """The number of cores that this process may use, rounded down to a power of two, at most 64."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 << (min(cores, 64).bit_length() - 1)


def _absolute(value: object, environ: Mapping[str, str]) -> object:
    path = str(value)
    if path == MEMORY:
        return path
    return os.path.abspath(home(environ) + path[1:] if path == "~" or path.startswith("~/") else path)


def _resolve_file(value: object, environ: Mapping[str, str]) -> object:
    return value and _absolute(value, environ)


def _read_tokens(text: str) -> object:
    # Empty text stays text and is refused: an accidentally empty variable must not open the server to all.
    return tuple(part for piece in text.split(",") if (part := piece.strip())) or text


def _are_tokens(value: object) -> bool:
    def fits(token: object) -> bool:
        return isinstance(token, str) and len(token) <= MAX_TOKEN_CHARS and bool(_TOKEN.fullmatch(token))

    return isinstance(value, tuple) and len(value) <= MAX_TOKENS and all(map(fits, value))


def _are_origins(value: object) -> bool:
    def fits(origin: object) -> bool:
        return isinstance(origin, str) and _ORIGIN.fullmatch(origin) is not None

    return isinstance(value, tuple) and len(value) <= MAX_ORIGINS and all(map(fits, value))


HOST = Kind(bound="a host name or IP address (letters, digits and . : - _ %)", allows=_is_host)
PORT = whole(0, 65535)
DATA_DIR = Kind(bound="a path of printable characters, or :memory:", allows=is_path, resolve=_absolute)
PEM = Kind(
    bound="the path of a PEM file", allows=lambda value: value == "" or is_path(value), resolve=_resolve_file
)
FILE = Kind(
    bound="the path of a file", allows=lambda value: value == "" or is_path(value), resolve=_resolve_file
)
COMMAND = Kind(
    bound="a command of up to 4,096 characters; it is not run by a shell",
    allows=lambda value: value == "" or is_path(value),
)
STDOUT_OR_FILE = Kind(
    bound="stdout, or the path of a file",
    allows=lambda value: value in ("", "stdout") or is_path(value),
    resolve=lambda value, environ: value if value == "stdout" else _resolve_file(value, environ),
)
MEMORY_LIMIT = byte_size(LEAST)
STORE = Kind(
    bound="a URL of PostgreSQL, such as postgresql://user@host/database",
    allows=lambda value: value == "" or (is_path(value) and str(value).startswith(STORE_SCHEMES)),
    secret=True,
)
CLUSTER = Kind(
    bound="up to 63 letters, digits and . _ -",
    allows=lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._-]{0,63}", value) is not None,
)
ADDRESS = Kind(
    bound="host:port, with a port of at most 65535",
    allows=lambda value: isinstance(value, str) and (not value or _is_address(value)),
)
SNAPSHOTS = Kind(
    bound="an absolute path, s3://bucket/prefix, or nothing for the store itself",
    allows=lambda value: value == "" or (is_path(value) and str(value).startswith(("/", "s3://"))),
)
FOLLOW = Kind(
    bound="where the primary ships to with --backup: an absolute path, s3://bucket/prefix, gs://... or "
    "az://...; the address of a server (bunqueue://...) cannot be followed",
    allows=lambda value: value == "" or (is_path(value) and str(value).startswith(BACKUP_PLACES)),
)
BACKUP = Kind(
    bound="an absolute path, s3://bucket/prefix, gs://... or az://...",
    allows=lambda value: value == "" or (is_path(value) and str(value).startswith(BACKUP_PLACES)),
)
SWITCH = Kind(
    bound="true or false",
    allows=lambda value: isinstance(value, bool),
    read=lambda text: {"true": True, "false": False}.get(text, text),
    choices=("true", "false"),
    switch=True,
)
SYNC = one_of("normal", "full")
LEVEL = one_of("debug", "info", "warning", "error", "critical")
TOKENS = Kind(
    bound=f'up to {MAX_TOKENS} tokens (repeat the flag; in the file write a list: ["..."]), '
    f"each 1 to {MAX_TOKEN_CHARS} ASCII characters without space or comma",
    allows=_are_tokens,
    read=_read_tokens,
    repeatable=True,
    secret=True,
)
ORIGINS = Kind(
    bound=f'up to {MAX_ORIGINS} origins (repeat the flag; in the file write a list: ["..."]), '
    "each a scheme and a host in small letters, and its port unless it is the usual one",
    allows=_are_origins,
    read=_read_tokens,
    repeatable=True,
)
