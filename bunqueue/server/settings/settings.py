"""The server's settings, merged from file, environment and flags.

Every option is declared once, as an annotated field of ``Settings``. Its flag, variable, file key, help text,
check and line in the reference table are derived from that. A flag overrides a variable, a variable overrides
the file, and the file overrides the default. An overridden value must be valid as well.

The file is TOML with the options as top-level keys, without tables. Every refusal is one line that names the
source, the value and what is allowed. No message, repr or table of this module ever shows a token.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from bunqueue.model.names import hint
from bunqueue.model.retention import Retention
from bunqueue.server.host.machine_memory import memory_here
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import (
    ADDRESS,
    BACKUP,
    CLUSTER,
    COMMAND,
    DATA_DIR,
    FILE,
    FOLLOW,
    HOST,
    LEVEL,
    MEMORY,
    MEMORY_LIMIT,
    ORIGINS,
    PEM,
    PORT,
    SNAPSHOTS,
    STDOUT_OR_FILE,
    STORE,
    SWITCH,
    SYNC,
    TOKENS,
    Kind,
    default_data_dir,
    default_shards,
    is_path,
    one_of,
    whole,
)

CONFIG_VARIABLE = "BUNQUEUE_CONFIG"
BOOT_VARIABLE = "BUNQUEUE_BOOT_ID"  # set by the systemd unit, which hides the kernel's own file
# They have our prefix but are not options, so they are not refused as unknown. The last two are for clients.
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, BOOT_VARIABLE, "BUNQUEUE_URL", "BUNQUEUE_TOKEN"})
MAX_SHOWN_CHARS = 80  # of a wrong value in a message, so that the line stays readable

# Kubernetes sets these variables for every service whose name begins with "bunqueue". If they were refused as
# unknown options, the server could not start beside such a service.
_SERVICE_LINK = re.compile(
    r"BUNQUEUE\w*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=|BUNQUEUE\w*_PORT=\w+://"
)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. ``name`` and ``default`` come from the annotated field; the rest is declared there.

    ``default_text`` describes a default that depends on the machine. ``other_variables`` are names that the
    reference server uses; our own variable overrides them.
    """

    kind: Kind
    help: str
    default_text: str = ""
    other_variables: tuple[str, ...] = ()
    name: str = ""
    default: Callable[[Mapping[str, str]], object] = lambda environ: None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "BUNQUEUE_" + self.name.upper()

    def show(self, value: object) -> str:
        """``value`` as written in the file; for secrets only their number."""
        if self.kind.secret and value:
            return f"<{len(value) if isinstance(value, tuple) else 1} hidden>"
        return msgspec.json.encode(value).decode()

    def check(self, value: object, source: str) -> None:
        """Raise ``SettingsError`` if ``value`` is not allowed."""
        if not self.kind.allows(value):
            shown = "the value (not shown)" if self.kind.secret else _truncated(repr(value))
            raise SettingsError(f"{source}: {shown} is not allowed; give {self.kind.bound}")

    def take(self, raw: object, source: str, environ: Mapping[str, str]) -> _Given:
        """Convert ``raw`` to a value. Raises ``SettingsError`` if it is not allowed."""
        value = tuple(raw) if isinstance(raw, list) else raw
        self.check(value, source)
        return _Given(self.kind.resolve(value, environ), source)


class _Given(NamedTuple):
    value: object
    source: str


def _truncated(shown: str) -> str:
    return shown if len(shown) <= MAX_SHOWN_CHARS else shown[:MAX_SHOWN_CHARS] + "..."


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's settings. Raises ``SettingsError`` when made with a value that is not allowed."""

    host: Annotated[str, Option(HOST, "The address to listen on.")] = "127.0.0.1"
    tcp_port: Annotated[int, Option(PORT, "The port of the wire protocol; 0 takes any free one.")] = 6789
    http_port: Annotated[
        int, Option(PORT, "The port of the HTTP gateway and its dashboard; 0 means no gateway.")
    ] = 6790
    data_dir: Annotated[
        str,
        Option(
            DATA_DIR,
            "The folder that keeps the jobs, relative to the current one; :memory: keeps nothing.",
            default_text="the folder `bunqueue` in the user's data directory",
        ),
    ] = msgspec.field(default_factory=default_data_dir)
    shards: Annotated[
        int,
        Option(
            whole(1, 64, power_of_two=True),
            "How many processes share the queues; once the data folder exists, bunqueue reshard changes it.",
            default_text="the number of cores, rounded down to a power of two",
        ),
    ] = msgspec.field(default_factory=default_shards)
    routers: Annotated[
        int,
        Option(
            whole(1, 32), "How many processes let clients in; more than one if one is too busy for all cores."
        ),
    ] = 1
    sync: Annotated[
        Literal["normal", "full"],
        Option(SYNC, "What is acknowledged survives any crash; with full, also a power loss."),
    ] = "normal"
    store: Annotated[
        str,
        Option(
            STORE,
            "Where the jobs are kept beside the data folder, so that they outlive this machine.",
            default_text="none: the data folder alone",
        ),
    ] = ""
    store_snapshots: Annotated[
        str, Option(SNAPSHOTS, "Where snapshots of the store's shards are kept.", default_text="the store")
    ] = ""
    backup: Annotated[
        str,
        Option(
            BACKUP,
            "Where to store what changes in the data folder, each second; bunqueue restore makes it again.",
            default_text="none",
        ),
    ] = ""
    backup_key: Annotated[
        str,
        Option(FILE, "A file with the key that encrypts backups: 32 bytes as Base64.", default_text="none"),
    ] = ""
    backup_key_command: Annotated[
        str,
        Option(
            COMMAND,
            "A command that prints that key, as from a key service; instead of the file.",
            default_text="none",
        ),
    ] = ""
    follow: Annotated[
        str,
        Option(
            FOLLOW,
            "Be the standby of the server that ships its changes there; the number of shards is that of it.",
            default_text="none",
        ),
    ] = ""
    cluster: Annotated[
        str,
        Option(
            CLUSTER, "The name of the cluster of hosts that share the store's shards.", default_text="none"
        ),
    ] = ""
    cluster_address: Annotated[
        str, Option(ADDRESS, "Where the other hosts of the cluster reach this one.", default_text="none")
    ] = ""
    cluster_host: Annotated[
        str, Option(CLUSTER, "The name of this host in its cluster.", default_text="the machine's name")
    ] = ""
    cluster_copies: Annotated[
        int, Option(whole(0, 15), "How many other hosts of the cluster keep a copy of each shard up to date.")
    ] = 1
    damaged_shard: Annotated[
        Literal["isolate", "stop", "serve"],
        Option(
            one_of("isolate", "stop", "serve"),
            "What to do at a start with a shard whose file is damaged: isolate it, so that the others serve; "
            "stop; or serve without the jobs that cannot be read.",
        ),
    ] = "isolate"
    auth_token: Annotated[
        tuple[str, ...],
        Option(
            TOKENS,
            "A token that lets clients in; without any, everybody is let in. "
            "Repeat the flag for several, separate them by commas in the variable.",
            other_variables=("AUTH_TOKENS",),
        ),
    ] = ()
    insecure: Annotated[
        bool, Option(SWITCH, "Start without a token even on an address that other machines can reach.")
    ] = False
    read_only_token: Annotated[
        tuple[str, ...],
        Option(TOKENS, "A token that may read everything and change nothing, over TCP and HTTP."),
    ] = ()
    plaintext: Annotated[
        bool,
        Option(SWITCH, "Take tokens without TLS even on an address that other machines can reach."),
    ] = False
    identities: Annotated[
        str,
        Option(
            FILE,
            "The file that says who may do what, with names, roles and tokens: see docs/security.md.",
            default_text="none",
        ),
    ] = ""
    http_origin: Annotated[
        tuple[str, ...],
        Option(ORIGINS, "Another web site, such as https://example.com, whose pages may use the gateway."),
    ] = ()
    session_max_age: Annotated[
        int, Option(whole(1, 8760), "How many hours somebody stays signed in to the dashboard.")
    ] = 12
    webhook_addresses: Annotated[
        Literal["public", "any"],
        Option(one_of("public", "any"), "Where webhooks may go; any: also into the server's own network."),
    ] = "public"
    tls_cert: Annotated[
        str, Option(PEM, "The certificate and its intermediate certificates; without one there is no TLS.")
    ] = ""
    tls_key: Annotated[str, Option(PEM, "The private key of the certificate, without a password.")] = ""
    tls_client_ca: Annotated[
        str, Option(PEM, "Require client certificates signed by one of these; without it none are required.")
    ] = ""
    rate_limit: Annotated[
        int,
        Option(
            whole(0, 1_000_000_000), "Commands that one connection may send in a minute; 0 means no limit."
        ),
    ] = 0
    default_protocol: Annotated[
        Literal[2, 3], Option(one_of(2, 3), "The protocol version of clients that do not say Hello.")
    ] = 2
    max_connections: Annotated[
        int, Option(whole(1, 1_000_000), "How many clients may be connected at the same time.")
    ] = 10_000
    memory_limit: Annotated[
        int,
        Option(
            MEMORY_LIMIT,
            "The memory the server may take; a shard refuses jobs beyond its share of it. 0: no limit.",
            default_text="what the control group allows, or else the machine has",
        ),
    ] = msgspec.field(default_factory=memory_here)
    busy_poll: Annotated[
        int,
        Option(whole(0, 1000), "For how many us, after prompt requests, to poll for more before sleeping."),
    ] = 200
    events_max_age: Annotated[int, Option(whole(1, 87_600), "How many hours the event log goes back.")] = 168
    events_max_count: Annotated[
        int, Option(whole(0, 1_000_000_000), "How many events the log of a shard keeps.")
    ] = 1_000_000
    completed_max_age: Annotated[
        int, Option(whole(0, 87_600), "How many hours completed jobs and results are kept; 0: no limit.")
    ] = Retention().max_age_s // 3600
    completed_max_count: Annotated[
        int, Option(whole(0, 1_000_000_000), "How many completed jobs a queue keeps; 0: no limit.")
    ] = Retention().max_count
    dead_letters_max_age: Annotated[
        int, Option(whole(0, 87_600), "How many hours dead letters are kept; 0: no limit.")
    ] = 168
    dead_letters_max_count: Annotated[
        int,
        Option(
            whole(0, 1_000_000_000),
            "How many dead letters a queue keeps; beyond, the oldest is dropped; 0: no limit.",
        ),
    ] = 10_000
    audit_max_age: Annotated[
        int, Option(whole(1, 87_600), "How many hours the trail of who changed what goes back.")
    ] = 8760
    audit_max_size: Annotated[
        int, Option(whole(1, 1_000_000), "How many MB of that trail each process of the server keeps.")
    ] = 64
    audit_log: Annotated[
        str,
        Option(
            STDOUT_OR_FILE,
            "Where each entry of that trail is also written, as a line of JSON.",
            default_text="none",
        ),
    ] = ""
    wal_limit: Annotated[
        int,
        Option(
            whole(128, 1_000_000),
            "How many MB a shard's write-ahead log may reach while a reader has the file open; beyond, "
            "pushes are refused.",
        ),
    ] = 1024
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        Option(LEVEL, "The least severe messages to log."),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Option(one_of("text", "json"), "The form of log lines on standard error.")
    ] = "text"

    def __post_init__(self) -> None:
        for option in OPTIONS:
            option.check(getattr(self, option.name), option.name)
        _check_ports(self.tcp_port, self.http_port, "tcp_port", "http_port")
        _check_tls(self.tls_cert, self.tls_key, self.tls_client_ca)
        if self.store and self.in_memory:
            raise SettingsError("store: give a data_dir that is a folder, not :memory:")
        if self.store_snapshots and not self.store:
            raise SettingsError("store_snapshots: only with a store; give store, too")
        if self.backup and self.in_memory:
            raise SettingsError("backup: give a data_dir that is a folder, not :memory:")
        if self.audit_log and self.in_memory:
            raise SettingsError("audit_log: a server in memory keeps no trail; give data_dir a folder")
        for name in ("backup_key", "backup_key_command"):
            if getattr(self, name) and not (self.backup or self.follow):
                raise SettingsError(f"{name}: only with backup or follow; give one of them, too")
        if self.backup_key and self.backup_key_command:
            raise SettingsError("backup_key: not with backup_key_command; leave one of them out")
        _check_follow(self)
        _check_cluster(self)
        if self.read_only_token and not (self.auth_token or self.identities):
            raise SettingsError(
                "read_only_token: give auth_token, too; without one everybody may do everything"
            )

    @property
    def in_memory(self) -> bool:
        """Whether nothing is kept on disk."""
        return self.data_dir == MEMORY

    def to_json(self) -> bytes:
        """Everything, **tokens in plain text**, for a child process's private pipe; never log or store it."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Settings:
        """Read the result of ``to_json``. Raises ``SettingsError`` for anything else."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.DecodeError as error:
            raise SettingsError(f"settings handed over as JSON: {error}") from None

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [(option.name, option.show(getattr(self, option.name))) for option in OPTIONS]

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value}' for name, value in self.__rich_repr__())})"


def _declared() -> tuple[Option, ...]:
    def default_of(field: msgspec.structs.FieldInfo) -> Callable[[Mapping[str, str]], object]:
        return field.default_factory if field.default is msgspec.NODEFAULT else lambda _: field.default

    return tuple(
        replace(option, name=field.name, default=default_of(field))
        for field in msgspec.structs.fields(Settings)
        for option in get_args(field.type)
        if isinstance(option, Option)
    )


OPTIONS = _declared()  # in display order
_BY_NAME = {option.name: option for option in OPTIONS}


class Resolved(NamedTuple):
    """Settings, and for each option a text that says where its value came from."""

    settings: Settings
    sources: Mapping[str, str]


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """The effective settings; arguments and errors as for ``resolve_settings``."""
    return resolve_settings(flags, environ).settings


def resolve_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Resolved:
    """The effective settings and their sources.

    ``flags`` maps option names, and ``config`` for the file, to text or values; None or an empty list counts
    as not given. Raises ``SettingsError`` for an unknown option, a bad value, or a file that cannot be read.
    """
    given = {option.name: _Given(option.default(environ), "default") for option in OPTIONS}
    given |= _from_file(flags, environ) | _from_environment(environ) | _from_flags(flags, environ)
    tcp, http = given["tcp_port"], given["http_port"]
    _check_ports(tcp.value, http.value, f"tcp_port ({tcp.source})", f"http_port ({http.source})")
    values: dict[str, Any] = {name: value for name, (value, _) in given.items()}
    return Resolved(Settings(**values), {name: source for name, (_, source) in given.items()})


def _check_ports(tcp_port: object, http_port: object, tcp: str, http: str) -> None:
    if tcp_port == http_port != 0:
        raise SettingsError(f"{tcp} and {http}: both are {tcp_port}; give each a port of its own")


def _check_tls(cert: str, key: str, client_ca: str) -> None:
    if bool(cert) != bool(key):
        given, missing = ("tls_cert", "tls_key") if cert else ("tls_key", "tls_cert")
        raise SettingsError(f"{given}: give {missing}, too; a certificate and its key belong together")
    if client_ca and not cert:
        raise SettingsError("tls_client_ca: only with TLS; give tls_cert and tls_key")


def _check_follow(settings: Settings) -> None:
    if not settings.follow:
        return
    if settings.in_memory:
        raise SettingsError("follow: give a data_dir that is a folder, not :memory:")
    if settings.backup:
        raise SettingsError(
            "follow: leave out backup; once it is promoted, it ships to the place it followed"
        )
    if settings.store:
        raise SettingsError("follow: not with a store, which keeps copies itself; leave one of them out")


def _check_cluster(settings: Settings) -> None:
    if not settings.cluster:
        for name in ("cluster_address", "cluster_host"):
            if getattr(settings, name):
                raise SettingsError(f"{name}: only in a cluster; give cluster, too")
    elif not settings.store:
        raise SettingsError("cluster: give store, too; its hosts share what is there")
    elif not settings.cluster_address:
        raise SettingsError("cluster: give cluster_address, too: where the other hosts reach this one")


def _from_flags(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for name, raw in flags.items():
        if name == "config" or raw is None or raw == [] or raw == ():
            continue
        if (option := _BY_NAME.get(name)) is None:
            raise _unknown("flag", "--" + name.replace("_", "-"), [option.flag for option in OPTIONS])
        value = option.kind.read(raw) if isinstance(raw, str) else raw
        given[name] = option.take(value, f"flag {option.flag}", environ)
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, _Given]:
    known = {option.variable for option in OPTIONS} | OTHER_VARIABLES
    for variable in sorted(environ.keys() - known):
        if variable.startswith("BUNQUEUE_") and not _SERVICE_LINK.match(f"{variable}={environ[variable]}"):
            raise _unknown("variable", variable, sorted(known))
    return {
        option.name: option.take(option.kind.read(environ[variable]), f"variable {variable}", environ)
        for option in OPTIONS
        for variable in (*option.other_variables, option.variable)  # our own name comes last and wins
        if variable in environ
    }


def file_with_secrets(flags: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """The config file, if it sets a secret, overridden or not; else "". Raises ``SettingsError``."""
    path = _config_path(flags, environ)
    given = {} if path is None else _read_toml(path)
    return path if path and any(given.get(option.name) for option in OPTIONS if option.kind.secret) else ""


def _config_path(flags: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    path, origin = flags.get("config"), "flag --config"
    if path is None:
        path, origin = environ.get(CONFIG_VARIABLE), f"variable {CONFIG_VARIABLE}"
    if path is not None and (not isinstance(path, str) or not is_path(path)):
        raise SettingsError(
            f"{origin}: {_truncated(repr(path))} is not allowed; give the path of a TOML file"
        )
    return path


def _from_file(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, _Given]:
    path = _config_path(flags, environ)
    if path is None:
        return {}
    given = {}
    for key, value in _read_toml(path).items():
        if key in _BY_NAME:
            given[key] = _BY_NAME[key].take(value, f"file {path}, key {key}", environ)
        elif isinstance(value, dict):
            raise SettingsError(
                f"file {path}, table {_truncated(repr(key))}: write options as top-level keys, not in tables"
            )
        else:
            raise _unknown(f"file {path}, key", key, list(_BY_NAME))
    return given


def _read_toml(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"file {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # not TOML, or not even UTF-8
        raise SettingsError(f"file {path}: is not valid TOML: {' '.join(str(error).split())}") from None


def _unknown(what: str, name: str, known: list[str]) -> SettingsError:
    shown = _truncated(name if name.isprintable() else repr(name))
    return SettingsError(f"{what} {shown}: no such option; {hint(name, known)}")
