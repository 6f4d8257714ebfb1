"""Where a server is: URLs, the environment, and what beats what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bunqueue import ConnectionOptions, OptionError, TlsOptions
from bunqueue.client.connection.address import Target, endpoint, parse_url
from bunqueue.server.settings.settings import OTHER_VARIABLES, resolve_settings


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("bunqueue://db1", Target("db1")),
        ("bunqueue://db1/", Target("db1")),
        ("BUNQUEUE://DB1:7000", Target("db1", 7000)),
        ("bunqueue://[::1]:7000", Target("::1", 7000)),
        ("bunqueue://s3cret@db1", Target("db1", token="s3cret")),
        ("bunqueue://:s%2F3@db1", Target("db1", token="s/3")),
        ("bunqueues://db1", Target("db1", tls=TlsOptions())),
        (
            "bunqueues://db1?ca_file=/etc/ca.pem&verify=false",
            Target("db1", tls=TlsOptions(ca_file="/etc/ca.pem", verify=False)),
        ),
        (
            "bunqueue://h?pool_size=8&pipelining=false&ping_interval=0",
            Target("h", options={"pool_size": 8, "pipelining": False, "ping_interval": 0}),
        ),
        ("bunqueue://t@one:1,two,[::1]:3", Target("one", 1, "t", others=(("two", 6789), ("::1", 3)))),
    ],
)
def test_urls(url: str, target: Target) -> None:
    assert parse_url(url) == target


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "url: it is no address of a server (the value is not shown); give bunqueue://HOST:PORT"),
        ("db1:6789", "url: it is no address of a server"),
        ("redis://s3cret@db1", "url: it is no address of a server"),
        ("bunqueue://s3cret@", "url: it is no address of a server"),
        (
            "bunqueue://s3cret@one,,two",
            "url: an address between commas is missing; give bunqueue://HOST:PORT",
        ),
        ("bunqueue://s3cret@one,", "url: an address between commas is missing"),
        ("bunqueue://s3cret@one,two:99999", "url: Port out of range 0-65535; give"),
        ("bunqueue://s3cret@one,ada@two", "url: one token in front of the first address holds for all"),
        ("bunqueue://s3cret@h:99999", "url: Port out of range 0-65535; give"),
        ("bunqueue://s3cret@h:x", "url: Port could not be cast"),
        ("bunqueue://h/emails", "url: nothing may stand between the port and the options"),
        ("bunqueue://ada:s3cret@h", "url: there are no users, only a token; write bunqueue://TOKEN@HOST"),
        ("bunqueue://h?poolsize=8", "url: there is no option 'poolsize'; there are pool_size, pipelining"),
        ("bunqueue://h?pool_size=8&pool_size=9", "url: pool_size is given twice"),
        ("bunqueue://h?pool_size=many", "url: pool_size: 'many' is not allowed; give a whole number"),
        ("bunqueue://h?pool_size=0", "url: pool_size must be a whole number from 1 on, not 0"),
        ("bunqueue://h?pipelining=1", "url: pipelining: '1' is not allowed; give true or false"),
        ("bunqueue://h?ca_file=x", "url: ca_file: only with TLS; write bunqueues://"),
        (5, "url: 5 is not allowed; give bunqueue://HOST:PORT"),
    ],
)
def test_what_is_no_url_is_refused_without_showing_a_token(url: Any, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_url(url)
    assert str(caught.value).startswith(text)
    assert "s3cret" not in str(caught.value)


def where(environ: dict[str, str], **arguments: Any) -> tuple[str, int, str | None]:
    found = endpoint(**arguments, environ=environ)
    return found.host, found.port, found.token


URL = {"BUNQUEUE_URL": "bunqueue://u@db1:7000", "BUNQUEUE_TOKEN": "t"}
TOKEN = {"BUNQUEUE_TOKEN": "t"}


@pytest.mark.parametrize(
    ("environ", "arguments", "expected"),
    [
        ({}, {}, ("127.0.0.1", 6789, None)),
        (TOKEN, {}, ("127.0.0.1", 6789, "t")),
        (URL, {}, ("db1", 7000, "u")),
        ({**URL, "BUNQUEUE_URL": "bunqueue://db1"}, {}, ("db1", 6789, "t")),
        ({"BUNQUEUE_URL": ""}, {}, ("127.0.0.1", 6789, None)),
        (URL, {"token": "mine"}, ("db1", 7000, "mine")),
        (URL, {"host": "db2"}, ("db2", 6789, None)),  # the token is db1's
        (URL, {"port": 7001}, ("127.0.0.1", 7001, None)),
        (URL, {"url": "bunqueue://db2"}, ("db2", 6789, None)),
        ({}, {"url": "bunqueue://u@db2", "token": "mine"}, ("db2", 6789, "mine")),
        # What a server and Kubernetes have in the environment is not meant for clients.
        ({"BUNQUEUE_HOST": "0.0.0.0", "BUNQUEUE_PORT": "tcp://10.0.0.1:1"}, {}, ("127.0.0.1", 6789, None)),
    ],
)
def test_the_environment_counts_where_the_program_names_no_server(
    environ: dict[str, str], arguments: dict[str, Any], expected: tuple[str, int, str | None]
) -> None:
    assert where(environ, **arguments) == expected


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(OptionError, match=r"^variable BUNQUEUE_URL: it is no address of a server"):
        endpoint(environ={"BUNQUEUE_URL": "db1:6789"})


def test_embedded_queues_take_no_notice_of_the_environment() -> None:
    assert endpoint(embedded=True, environ=URL).embedded


def test_options_of_a_url_beat_those_of_the_program() -> None:
    given = ConnectionOptions(pool_size=2, max_in_flight=7)
    options = endpoint(url="bunqueue://h?pool_size=8", connection=given).options
    assert (options.pool_size, options.max_in_flight) == (8, 7)


def test_a_server_beside_a_client_takes_no_offence_at_its_variables(tmp_path: Path) -> None:
    assert set(URL) <= OTHER_VARIABLES
    resolve_settings({"data_dir": str(tmp_path)}, {**URL, "HOME": str(tmp_path)})
