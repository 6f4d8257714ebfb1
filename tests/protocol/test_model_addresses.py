"""Which URLs a webhook may have: every spelling of an address means that address."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table import table

from bunqueue.model.addresses import is_forbidden_address, url_problem, without_password

MALFORMED = "Invalid URL format"

LOOPBACK = (
    "127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7F.1 0177.0.0.1 0177.1 017700000001 127.0.0.1. "
    "127.0.0.1.. localhost LOCALHOST LocalHost localhost. localhost.localdomain "
    "a.localhost a.b.localhost. ip6-localhost [::1] [0:0:0:0:0:0:0:1] [::0001] "
    "user@127.0.0.1 user:password@localhost example.com@127.0.0.1 "
    "127.0.0.%31 %6cocalhost \uff11\uff12\uff17.0.0.1 \u2460\u2461\u2466.0.0.1 "
    "127\u30020\u30020\u30021 lo\u00adcalhost localhost\uff0e "
).split()

OTHER_LOOPBACK = (
    "127.8.8.8 127.255.255.254 [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] "
    "[64:ff9b::7f00:1] [2002:7f00:1::] [2001:0:5ef5:79fd:0:0:80ff:fffe]"
).split()


@table("host", LOOPBACK + OTHER_LOOPBACK)
@table("form", ["http://{}", "https://{}/", "HTTP://{}:8080/path?query#fragment"])
def test_every_spelling_of_this_machine_is_refused(host: str, form: str) -> None:
    place = "localhost" if host in LOOPBACK else "loopback IP"
    assert url_problem(form.format(host)) == f"Webhook URL cannot point to {place}"


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("10.0.0.0", "private IP"),
        ("10.255.255.255", "private IP"),
        ("172.16.0.0", "private IP"),
        ("172.31.255.255", "private IP"),
        ("192.168.1", "private IP"),
        ("100.64.0.1", "private IP"),
        ("100.127.255.255", "private IP"),
        ("010.0.0.1", "private IP"),  # 8.0.0.1 to those who read it as octal
        ("012.0.0.1", "private IP"),  # 10.0.0.1 to those
        ("169.254.169.254", "link-local IP"),
        ("0xa9fea9fe", "link-local IP"),
        ("[fe80::1]", "link-local IP"),
        ("[febf::1]", "link-local IP"),
        ("0", "unspecified IP"),
        ("0.0.0.0", "unspecified IP"),
        ("0.255.0.1", "unspecified IP"),
        ("[::]", "unspecified IP"),
        ("[fc00::1]", "private (ULA) IP"),
        ("[fdff::1]", "private (ULA) IP"),
        ("[fec0::1]", "private (site-local) IP"),
        ("[::ffff:192.168.0.1]", "private IP"),
        ("[2002:c0a8:1::]", "private IP"),
        ("224.0.0.1", "multicast IP"),
        ("[ff02::1]", "multicast IP"),
        ("240.0.0.1", "reserved IP"),
        ("255.255.255.255", "reserved IP"),
        ("192.0.0.1", "reserved IP"),
        ("198.19.0.1", "reserved IP"),
        ("100.100.100.200", "cloud metadata endpoints"),
        ("168.63.129.16", "cloud metadata endpoints"),
        ("metadata.google.internal", "cloud metadata endpoints"),
        ("METADATA.google.internal.", "cloud metadata endpoints"),
        ("metadata", "cloud metadata endpoints"),
        ("instance-data", "cloud metadata endpoints"),
        ("host.docker.internal", "cloud metadata endpoints"),
        ("db.prod.internal", "cloud metadata endpoints"),
        ("internal", "cloud metadata endpoints"),
        *(
            (host, "a private host name")
            for host in (
                "postgres",
                "postgres.",
                "printer.local",
                "nas.LAN",
                "api.default.svc",
                "api.default.svc.cluster.local",
                "router.home.arpa",
                "wiki.corp",
                "wiki.intranet",
                "tv.home",
                "x.localdomain",
            )
        ),
    ],
)
def test_what_lies_inside_is_refused(host: str, place: str) -> None:
    assert url_problem(f"http://{host}/") == f"Webhook URL cannot point to {place}"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "HTTPS://EXAMPLE.com:8443/hook?x=1#y",
        "http://172.15.255.255/",
        "http://172.32.0.1/",
        "http://11.0.0.1/",
        "http://9.255.255.255/",
        "http://192.169.0.1/",
        "http://169.253.0.1/",
        "http://100.63.255.255/",
        "http://100.128.0.1/",
        "http://126.255.255.255/",
        "http://128.0.0.1/",
        "http://223.255.255.255/",
        "http://16843009/",
        "http://[2606:4700::1111]/",
        "http://10.0.0.1@example.com/",
        "http://example.com/?next=http://127.0.0.1/",
        "http://example.com/#@127.0.0.1/",
        "http://m\u00fcnchen.example/",
        "http://a_b.example.com/",
        "http://localhost.example.com/",
        "http://notlocalhost.com/",
        "http://internal.example.com/",
        "http://notinternal.example/",
        "http://lan.example/",
        "http://10.example.com/",
    ],
)
def test_what_lies_outside_is_allowed(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "http:",
        "http://",
        "http:///path",
        "//example.com/",
        "http://:80/",
        "http://example.com:99999/",
        "http://example.com:x/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://1.2.3.256/",
        "http://4294967296/",
        "http://99999999999999999999999/",
        "http://0x100000000/",
        "http://a..b/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com\n.evil.example/",
        "http://127.0.0.1\\@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://[::1",
        "http://::1/",
        "http://[1.2.3.4]/",
        "http://[v1.x]/",
        "http://[::1%25eth0]/",
        "http://[12345::]/",
        "http://exa\u2100mple.com/",  # becomes a slash when normalised
        "http://%zz/",
        "http://%ff/",
        f"http://{'a' * 64}.example/",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    assert url_problem(url) == MALFORMED


def test_the_other_refusals() -> None:
    assert url_problem("") == "Webhook URL is required"
    assert url_problem("ftp://example.com/") == "Webhook URL must use http or https protocol"
    assert url_problem("javascript://example.com/") == "Webhook URL must use http or https protocol"
    assert url_problem("https://example.com/".ljust(2048, "x")) is None
    too_long = "Webhook URL too long (max 2048 characters)"
    assert url_problem("https://example.com/".ljust(2049, "x")) == too_long


PRIVATE = [IPv4Network(n) for n in ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]


BASES = st.sampled_from(["", "0x", "0"])


@given(st.sampled_from(PRIVATE), st.integers(0, 2**32 - 1), BASES, st.integers(1, 4))
def test_no_spelling_of_a_private_address_gets_through(
    network: IPv4Network, offset: int, base: str, parts: int
) -> None:
    address = int(network.network_address) + offset % network.num_addresses
    render = {"": str, "0x": hex, "0": lambda number: f"0{number:o}"}[base]
    numbers = [address >> 24 - 8 * place & 255 for place in range(parts - 1)]
    numbers.append(address & (1 << 32 - 8 * (parts - 1)) - 1)
    host = ".".join(map(render, numbers))
    assert "cannot point to" in str(url_problem(f"http://{host}/"))
    mapped = IPv6Address((0xFFFF << 32) + address)
    assert "cannot point to" in str(url_problem(f"http://[{mapped}]/"))
    assert is_forbidden_address(str(IPv4Address(address)))
    assert is_forbidden_address(str(mapped))


@given(st.text(max_size=40))
def test_any_text_is_judged(text: str) -> None:
    for url in (text, f"http://{text}", f"http://{text}/", f"http://[{text}]/"):
        problem = url_problem(url)
        assert problem is None or problem.startswith(("Invalid URL", "Webhook URL"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://example.com/a:b@c?d=e:f@g", "https://example.com/a:b@c?d=e:f@g"),
        ("https://ada@example.com/", "https://ada@example.com/"),
        ("https://ada:hush@example.com:8443/a?b#c", "https://ada:***@example.com:8443/a?b#c"),
        ("https://:hush@[2606::1]/", "https://:***@[2606::1]/"),
        ("http://ada:a:b@c@example.com", "http://ada:***@example.com"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
