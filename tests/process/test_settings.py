"""Settings: precedence, refusals of one line that name source and bound, and secrets that stay secret."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.option_kinds import MAX_TOKEN_CHARS, MAX_TOKENS
from bunqueue.server.settings.settings import (
    OPTIONS,
    Settings,
    file_with_secrets,
    load_settings,
    resolve_settings,
)

HOME = {"HOME": "/home/someone"}


def refusal(flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, HOME | dict(environ or {}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def written(folder: Path, text: str) -> str:
    path = folder / "bunqueue.toml"
    path.write_text(text)
    return str(path)


def test_defaults() -> None:
    found = load_settings({}, HOME)
    assert (found.host, found.tcp_port, found.http_port) == ("127.0.0.1", 6789, 6790)
    assert (found.sync, found.auth_token, found.rate_limit, found.default_protocol) == ("normal", (), 0, 2)
    assert (found.max_connections, found.log_level, found.log_format) == (10_000, "info", "text")
    assert (found.events_max_age, found.events_max_count) == (7 * 24, 1_000_000)


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {}, "/home/someone/.local/share/bunqueue"),
        ("linux", {"XDG_DATA_HOME": "/data"}, "/data/bunqueue"),
        ("linux", {"XDG_DATA_HOME": "relative"}, "/home/someone/.local/share/bunqueue"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, "/home/someone/Library/Application Support/bunqueue"),
    ],
)
def test_default_data_dir(
    monkeypatch: pytest.MonkeyPatch, platform: str, environ: dict[str, str], folder: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert load_settings({}, HOME | environ).data_dir == folder


@pytest.mark.parametrize(("cores", "shards"), [(1, 1), (2, 2), (3, 2), (4, 4), (63, 32), (64, 64), (200, 64)])
def test_default_shards(monkeypatch: pytest.MonkeyPatch, cores: int, shards: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert load_settings({}, HOME).shards == shards


def test_flag_beats_variable_beats_file_beats_default(tmp_path: Path) -> None:
    path = written(tmp_path, "tcp_port = 1001\nrate_limit = 1002\nhost = 'file'\n")
    environ = HOME | {"BUNQUEUE_CONFIG": path, "BUNQUEUE_TCP_PORT": "2001", "BUNQUEUE_RATE_LIMIT": "2002"}
    found, sources = resolve_settings({"tcp_port": "3001", "sync": None, "auth_token": []}, environ)
    assert (found.tcp_port, found.rate_limit, found.host, found.sync) == (3001, 2002, "file", "normal")
    assert sources["tcp_port"] == "flag --tcp-port"
    assert sources["rate_limit"] == "variable BUNQUEUE_RATE_LIMIT"
    assert sources["host"] == f"file {path}, key host"
    assert sources["sync"] == "default"


def test_file_of_flag_beats_file_of_variable(tmp_path: Path) -> None:
    path = written(tmp_path, "tcp_port = 1001")
    assert load_settings({"config": path}, HOME | {"BUNQUEUE_CONFIG": "/missing"}).tcp_port == 1001


def test_all_options_from_all_sources(tmp_path: Path) -> None:
    text = {
        "host": "::1",
        "tcp_port": "0",
        "http_port": "65535",
        "data_dir": "/somewhere",
        "shards": "64",
        "routers": "1",
        "sync": "full",
        "store": "postgresql://user@host/jobs",
        "store_snapshots": "s3://bucket/jobs",
        "backup": "s3://bucket/backups",
        "backup_key": "/etc/backup.key",
        "cluster": "jobs",
        "cluster_address": "one.example.com:6791",
        "cluster_host": "one",
        "cluster_copies": "2",
        "damaged_shard": "serve",
        "auth_token": "a,b",
        "insecure": "true",
        "read_only_token": "c",
        "plaintext": "true",
        "identities": "/etc/identities.toml",
        "http_origin": "https://example.com,http://localhost:8080",
        "session_max_age": "8",
        "webhook_addresses": "any",
        "tls_cert": "/etc/server.pem",
        "tls_key": "/etc/server.key",
        "tls_client_ca": "/etc/ca.pem",
        "rate_limit": "60",
        "default_protocol": "3",
        "max_connections": "1",
        "memory_limit": "536870912",
        "busy_poll": "0",
        "events_max_age": "1",
        "events_max_count": "0",
        "completed_max_age": "0",
        "completed_max_count": "5",
        "dead_letters_max_age": "0",
        "dead_letters_max_count": "0",
        "audit_max_age": "1",
        "audit_max_size": "1",
        "audit_log": "stdout",
        "wal_limit": "128",
        "log_level": "debug",
        "log_format": "json",
    }
    not_beside_others = {"backup_key_command", "follow"}
    assert list(text) == [option.name for option in OPTIONS if option.name not in not_beside_others]
    from_variables = load_settings(
        {}, HOME | {f"BUNQUEUE_{name.upper()}": value for name, value in text.items()}
    )
    from_flags = load_settings(text | {"auth_token": ["a", "b"]}, HOME)
    values = msgspec.structs.asdict(from_flags)
    lines = [f"{name} = {msgspec.json.encode(value).decode()}" for name, value in values.items()]
    from_file = load_settings({"config": written(tmp_path, "\n".join(lines))}, HOME)
    assert from_variables == from_flags == from_file == Settings.from_json(from_file.to_json())
    assert from_file.auth_token == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("host", "", "host name"),
        ("host", "a b", "host name"),
        ("tcp_port", "65536", "0 to 65535"),
        ("tcp_port", "-1", "0 to 65535"),
        ("tcp_port", "6_789", "0 to 65535"),
        ("tcp_port", " 1", "0 to 65535"),
        ("tcp_port", "9" * 5000, "0 to 65535"),
        ("tcp_port", "tcp://10.0.0.1:6789", "0 to 65535"),
        ("http_port", "x", "0 to 65535"),
        ("data_dir", "", "path"),
        ("data_dir", "a\nb", "path"),
        ("routers", "0", "1 to 32"),
        ("routers", "33", "1 to 32"),
        ("shards", "0", "power of two from 1 to 64"),
        ("shards", "3", "power of two from 1 to 64"),
        ("shards", "128", "power of two from 1 to 64"),
        ("sync", "FULL", "normal or full"),
        ("rate_limit", "-1", "0 to 1000000000"),
        ("default_protocol", "1", "2 or 3"),
        ("max_connections", "0", "1 to 1000000"),
        ("events_max_age", "0", "1 to 87600"),
        ("events_max_count", "-1", "0 to 1000000000"),
        ("cluster_address", "one:65536", "at most 65535"),
        ("cluster_address", "one", "host:port"),
        ("log_level", "trace", "debug, info, warning, error or critical"),
        ("log_format", "", "text or json"),
    ],
)
def test_bad_value_is_refused_with_source_value_and_bound(name: str, value: str, bound: str) -> None:
    flag, variable = "--" + name.replace("_", "-"), f"BUNQUEUE_{name.upper()}"
    for message, source in (
        (refusal({name: value}), f"flag {flag}: "),
        (refusal({}, {variable: value}), f"variable {variable}: "),
    ):
        assert message.startswith(source)
        assert repr(value)[:20].strip("'") in message
        assert bound in message
        assert len(message) < 250


@pytest.mark.parametrize("value", ["true", '"6789"', "1.5", "[1]", "2024-01-01", "{x = 1}"])
def test_file_values_have_their_type(tmp_path: Path, value: str) -> None:
    path = written(tmp_path, f"tcp_port = {value}")
    assert refusal({"config": path}).startswith(f"file {path}, key tcp_port: ")


def test_overridden_value_must_be_valid_too() -> None:
    assert "BUNQUEUE_SHARDS" in refusal({"shards": 2}, {"BUNQUEUE_SHARDS": "3"})


def test_equal_ports_are_refused() -> None:
    message = refusal({"tcp_port": 7000}, {"BUNQUEUE_HTTP_PORT": "7000"})
    assert "flag --tcp-port" in message
    assert "variable BUNQUEUE_HTTP_PORT" in message
    assert load_settings({"tcp_port": 0, "http_port": 0}, HOME).tcp_port == 0


def test_unknown_names_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean --tcp-port?" in refusal({"tcpport": "1"})
    assert "did you mean BUNQUEUE_TCP_PORT?" in refusal({}, {"BUNQUEUE_TCPPORT": "1"})
    path = written(tmp_path, "tcp-port = 1")
    assert refusal({"config": path}) == f"file {path}, key tcp-port: no such option; did you mean tcp_port?"
    assert "tcp_port, http_port" in refusal({"config": written(tmp_path, "zzz = 1")})
    assert "top-level keys" in refusal({"config": written(tmp_path, "[server]\ntcp_port = 1")})


def test_variables_of_kubernetes_services_are_no_options() -> None:
    environ = {
        "BUNQUEUE_SERVICE_HOST": "10.0.0.1",
        "BUNQUEUE_SERVICE_PORT": "6789",
        "BUNQUEUE_SERVICE_PORT_HTTP": "6790",
        "BUNQUEUE_PORT": "tcp://10.0.0.1:6789",
        "BUNQUEUE_PORT_6789_TCP": "tcp://10.0.0.1:6789",
        "BUNQUEUE_PORT_6789_TCP_ADDR": "10.0.0.1",
        "BUNQUEUE_WEB_PORT_80_TCP_PROTO": "tcp",
        "BUNQUEUE_WEB_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings({}, HOME | environ) == load_settings({}, HOME)
    assert "BUNQUEUE_PORT" in refusal({}, {"BUNQUEUE_PORT": "6789"})


@pytest.mark.parametrize(
    "content", [b"tcp_port = ", b"\xff\xfe", b"tcp_port = 1\ntcp_port = 2", b"a = '''x\n"]
)
def test_file_that_is_not_toml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    assert refusal({"config": str(path)}).startswith(f"file {path}: is not valid TOML: ")


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal({}, {"BUNQUEUE_CONFIG": str(tmp_path / "missing.toml")})
    assert "cannot be read" in refusal({"config": str(tmp_path)})
    assert refusal({}, {"BUNQUEUE_CONFIG": ""}).startswith("variable BUNQUEUE_CONFIG: '' is not allowed")


def test_data_dir_is_made_absolute() -> None:
    assert load_settings({"data_dir": "~/jobs"}, HOME).data_dir == "/home/someone/jobs"
    assert load_settings({"data_dir": "jobs"}, HOME).data_dir == str(Path.cwd() / "jobs")
    kept = load_settings({"data_dir": ":memory:"}, HOME)
    assert kept.data_dir == ":memory:"
    assert kept.in_memory


def test_tokens_of_the_variables() -> None:
    assert load_settings({}, HOME | {"AUTH_TOKENS": " a, b,"}).auth_token == ("a", "b")
    both = HOME | {"AUTH_TOKENS": "old", "BUNQUEUE_AUTH_TOKEN": "new"}
    found, sources = resolve_settings({}, both)
    assert found.auth_token == ("new",)
    assert sources["auth_token"] == "variable BUNQUEUE_AUTH_TOKEN"


@pytest.mark.parametrize(
    "value", ["", " ", ",", "hush hush", "hüsh", "hush\x00", "h" * (MAX_TOKEN_CHARS + 1)]
)
def test_bad_tokens_are_refused_without_being_shown(value: str) -> None:
    for message in (
        refusal({"auth_token": [value]}),
        refusal({}, {"BUNQUEUE_AUTH_TOKEN": value}),
        refusal({}, {"AUTH_TOKENS": value}),
    ):
        assert "hush" not in message
        assert "hhh" not in message
        assert "not shown" in message


def test_too_many_tokens_are_refused() -> None:
    refusal({"auth_token": ["t"] * (MAX_TOKENS + 1)})
    largest = load_settings({"auth_token": ["t" * MAX_TOKEN_CHARS] * MAX_TOKENS}, HOME)
    assert len(largest.to_json()) < 65536


def test_token_that_is_no_list_in_the_file(tmp_path: Path) -> None:
    message = refusal({"config": written(tmp_path, "auth_token = 'hush'")})
    assert "key auth_token" in message
    assert 'write a list: ["..."]' in message
    assert "hush" not in message


def test_no_text_form_shows_tokens() -> None:
    from rich.pretty import pretty_repr

    found = load_settings({"auth_token": ["hush-1", "hush-2"]}, HOME)
    for shown in (repr(found), str(found), f"{found}", pretty_repr(found)):
        assert "hush" not in shown
        assert "2 hidden" in shown


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("auth_token = ['hush']", True),
        ("auth_token = ['hush']\nread_only_token = ['look']", True),
        ("auth_token = []\ntcp_port = 1", False),
        ("tcp_port = 1", False),
    ],
)
def test_the_file_with_secrets_is_known(tmp_path: Path, text: str, found: bool) -> None:
    path = written(tmp_path, text)
    expected = path if found else ""
    assert file_with_secrets({"config": path}, HOME) == expected
    overridden = HOME | {"BUNQUEUE_CONFIG": path, "BUNQUEUE_AUTH_TOKEN": "other"}
    assert file_with_secrets({}, overridden) == expected, "the file still holds the secret"
    assert file_with_secrets({}, HOME) == ""


def test_direct_construction_is_checked() -> None:
    assert Settings(tcp_port=0, data_dir=":memory:", shards=2).tcp_port == 0
    with pytest.raises(SettingsError, match="shards: 3 is not allowed"):
        Settings(shards=3)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"tcp_port": "x"}', b'{"tcp_port": -1}', b'{"unknown": 1}'])
def test_from_json_refuses_what_to_json_never_gives(data: bytes) -> None:
    with pytest.raises(SettingsError):
        Settings.from_json(data)


def test_paths_of_certificates_are_made_absolute_and_may_be_empty() -> None:
    given = {"tls_cert": "a.pem", "tls_key": "~/a.key", "tls_client_ca": ""}
    found = load_settings(given, HOME)
    assert (found.tls_cert, found.tls_key) == (os.path.abspath("a.pem"), f"{HOME['HOME']}/a.key")
    assert found.tls_client_ca == ""
