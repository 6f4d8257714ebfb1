"""The file of identities: what it may say, how it is changed, and who presents a token or certificate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget import budget
from support.table import table

from bunqueue.model.quota import Quota
from bunqueue.model.rights import ROLES, Identity, Verb
from bunqueue.server.identities import edit
from bunqueue.server.identities.directory import (
    FULL,
    Directory,
    Entry,
    StoredToken,
    made_id,
    names_of_certificate,
)
from bunqueue.server.identities.identity_file import IdentitiesError, IdentityRow, TokenRow, load, parse
from bunqueue.server.identities.people import NO_PEOPLE, People, ProxyRow, is_in

HASH = "0" * 32 + "$" + "1" * 64
TOKEN = f'{{ id = "12345678", hash = "{HASH}" }}'

MISTAKES = [
    ("[identities.a]\nrole = 5\n", "line 2: a: expected `str`, got `int` - at `role`"),
    ("[identities.a]\n", "line 1: a: missing required field `role`"),
    ('[identities.a]\nrole = "worker"\nquotas = []\n', "line 3: a: contains unknown field `quotas`"),
    ('[identities.a]\nrole = "worker"\nqueues = []\n', "line 3: a: expected `array` of length >= 1"),
    ('[identities.a]\nrole = "worker"\nqueues = ["a b"]\n', "line 3: a: 'a b' is no pattern"),
    ("[namespaces.acme]\ncommands = 0\n", "line 2: acme: expected `int` >= 1"),
    ("[namespaces.acme]\nconections = 5\n", "line 2: acme: contains unknown field `conections`"),
    ("[namespaces.Acme]\ncommands = 5\n", "line 1: 'Acme' is no name for a namespace"),
    ('[identities.a]\nrole = "admin"\nnamespace = "A/b"\n', "line 3: a: expected `str` matching regex"),
    ('\n\n[identities.a]\nrole = "wroker"\n', "line 4: there is no role 'wroker'; did you mean worker?"),
    ('[identities.a]\nrole = "admin"\nexpires = 2027-01-01\n', "line 3: a: expected a moment such as 2027"),
    (
        '[identities.a]\nrole = "admin"\nexpires = 2027-01-01T00:00:00\n',
        "line 3: a: expected a moment with its time zone, such as 2027",
    ),
    ('[identities.a]\nrole = "admin"\ntokens = ["x"]\n', "line 3: a: expected `object`, got `str`"),
    ('[identities."a b"]\nrole = "admin"\n', "line 1: 'a b' is no name"),
    ('[identities.auth_token]\nrole = "admin"\n', "line 1: 'auth_token' is no name"),
    ('[roles]\nadmin = ["add"]\n', "line 2: the role 'admin' exists already"),
    ('[roles]\nmine = "add"\n', "line 2: the role 'mine' must be a list of verbs: add, run"),
    ('[roles]\nmine = ["add", "destory"]\n', "line 2: there is no verb 'destory'; did you mean destroy?"),
    ("\n[identites.a]\nx = 1\n", "line 2: identites: there are only"),
    ("[identities.a]\nrole = \n", "line 2: is not valid TOML"),
    (
        "".join(f'[identities.{name}]\nrole = "admin"\ntokens = [{TOKEN}]\n' for name in "ab"),
        "line 6: the token 12345678 of b is also that of a",
    ),
    (
        '[identities.a]\nrole = "admin"\ncertificate = ["x", "x"]\n',
        "line 3: the certificate 'x' of a is also that of a",
    ),
    ('[groups]\nops = "king"\n', "line 2: there is no role 'king'"),
    (
        '[groups]\nops = "admin"\n[oidc]\nissuer = "http://x"\n',
        "line 3: [oidc]: missing required field `client_id`",
    ),
    (
        '[groups]\nops = "admin"\n[oidc]\nclient_id = "c"\nurl = "https://q"\nissuer = "http://login.example"\n',
        "line 6: [oidc]: `issuer` must begin with https://",
    ),
    (
        '[groups]\nops = "admin"\n[oidc]\nissuer = "https://x"\nrealm = "y"\n',
        "line 5: [oidc]: contains unknown field",
    ),
    ('[proxy]\naddresses = ["10.0.0.1"]\n', "line 1: [proxy]: give [groups], too"),
    (
        '[groups]\nops = "admin"\n[proxy]\naddresses = ["10.0.0"]\n',
        "line 3: [proxy]: '10.0.0' does not appear to be an IPv4 or IPv6 network",
    ),
]


@table("text, words", MISTAKES)
def test_a_mistake_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(IdentitiesError) as refused:
        parse(text, "/etc/identities.toml")
    assert str(refused.value).startswith(f"/etc/identities.toml, {words}"), str(refused.value)


def test_what_a_file_means(tmp_path: Path) -> None:
    file = tmp_path / "identities.toml"
    (tmp_path / "secret").write_text("s" * 32 + "\nmore\n")
    file.write_text(
        '[roles]\nlooks = ["see"]\n'
        f'[identities.a]\nrole = "looks"\nexpires = 2027-01-01T00:00:00Z\ntokens = [{TOKEN}]\n'
        '[identities.b]\nrole = "worker"\nnamespace = "acme"\n'
        'certificate = "b.example"\ntoken_file = "secret"\n'
        "[namespaces.acme]\ncommands = 100\npayload = 65536\njobs = 7\nwebhooks = 1\n"
    )
    stored = StoredToken(bytes(16), bytes.fromhex("1" * 64))
    end = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    entries, people, quotas = load(str(file))
    assert people == NO_PEOPLE
    assert quotas == {"acme": Quota(commands=100, payload=65_536, jobs=7, webhooks=1)}
    assert entries == [
        Entry(Identity("a", Verb.SEE | Verb.SCRAPE), end, {"12345678": stored}),
        Entry(Identity("b", Verb.RUN, namespace="acme"), inf, {}, ("s" * 32,), ("b.example",)),
    ]
    (tmp_path / "more").write_text(file.read_text() + '[identities.c]\nrole = "worker"\nqueues = ["q.*"]\n')
    limited = load(str(tmp_path / "more"))[0][-1].identity
    assert limited == Identity("c", Verb.RUN, ("q.*",), elsewhere=("acme",))
    (tmp_path / "secret").write_text("short\n")
    with pytest.raises(IdentitiesError, match="has 5 characters; give at least 32"):
        load(str(file))
    (tmp_path / "secret").unlink()
    with pytest.raises(IdentitiesError, match="the token_file of b is missing"):
        load(str(file))
    with pytest.raises(IdentitiesError, match="cannot be read: No such file"):
        load(str(tmp_path / "nothing"))


def test_a_credential_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "grafana").write_text("c" * 40)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    file = tmp_path / "identities.toml"
    file.write_text('[identities.grafana]\nrole = "scraper"\ntoken_file = "grafana"\n')
    assert load(str(file))[0][0].plain == ("c" * 40,)


def test_a_change_leaves_everything_else_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "identities.toml")
    before = (
        "# Ours.\n\n[identities.first] # the first\nrole = 'worker' # and no more\n\n"
        "# The second.\n[identities.second]\nrole = 'admin'\n\n# The end.\n"
    )
    Path(path).write_text(before)
    Path(path).chmod(0o640)
    edit.change(path, "third", lambda _: IdentityRow("viewer", certificate="x"))
    text = Path(path).read_text()
    assert text.startswith(before)
    edit.change(path, "second", lambda _: IdentityRow("reader"))
    assert '# The second.\n[identities.second]\nrole = "reader"\n\n# The end.\n' in Path(path).read_text()
    edit.change(path, "third", lambda _: None)
    edit.change(path, "second", lambda _: None)
    left = Path(path).read_text()
    assert left.startswith(before[: before.index("[identities.second]")])
    assert parse(left, path).rows.keys() == {"first"}
    assert Path(path).stat().st_mode & 0o777 == 0o640
    Path(path).write_text("identities = { inline = { role = 'admin' } }\n")
    with pytest.raises(IdentitiesError, match="in an unusual way: change it by hand"):
        edit.change(path, "inline", lambda _: IdentityRow("reader"))
    assert Path(path).read_text() == "identities = { inline = { role = 'admin' } }\n"


MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))
ROWS = st.builds(
    IdentityRow,
    st.sampled_from(list(ROLES)),
    st.none() | MOMENTS,
    st.lists(st.text(min_size=1), max_size=2, unique=True),
    st.text(max_size=5),
)


@settings(max_examples=budget(30, 500))
@given(ROWS)
def test_any_table_is_read_as_it_was_written(row: IdentityRow) -> None:
    made = edit.make_token()
    row.tokens = [made.row, TokenRow("12345678", HASH, datetime(2027, 1, 1, tzinfo=UTC))]
    assert parse(edit.table("some-name_1", row), "x").rows == {"some-name_1": row}


def directory(row: TokenRow, expires: float = inf) -> tuple[Directory, Identity]:
    identity = Identity("a", Verb.RUN)
    salt, _, digest = row.hash.partition("$")
    until = inf if row.until is None else row.until.timestamp()
    stored = StoredToken(bytes.fromhex(salt), bytes.fromhex(digest), until)
    return Directory([Entry(identity, expires, {row.id: stored}, ("plain",), ("cn",))], b"k"), identity


def test_who_presents_what() -> None:
    made = edit.make_token()
    found, identity = directory(made.row)
    for grant in (
        found.of_token(made.text, 0),
        found.of_token("plain", 0),
        found.of_certificate(["x", "cn"], 0),
    ):
        assert grant is not None
        assert grant.identity == identity
        assert found.holds(grant, 0)
    other = edit.make_token()
    for wrong in ("", "plai", made.text + "x", made.text[:-1], other.text, f"bq_{made.row.id}_", "\udc80"):
        assert found.of_token(wrong, 0) is None
    assert found.of_certificate([], 0) is None
    assert not found.holds(FULL, 0)
    assert Directory(is_open=True).holds(FULL, 0)
    assert len({edit.make_token().text for _ in range(100)}) == 100
    assert made_id(made.text) == made.row.id


def test_a_grant_ends_with_its_token_its_identity_and_its_rights() -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    made = edit.make_token()
    row = TokenRow(made.row.id, made.row.hash, now + timedelta(seconds=10))
    found, _ = directory(row, now.timestamp() + 20)
    at = now.timestamp()
    token, plain = found.of_token(made.text, at), found.of_token("plain", at)
    assert token is not None
    assert plain is not None
    assert found.next_end(at) == at + 10
    assert [found.holds(token, at + s) for s in (9, 10)] == [True, False]
    assert [found.holds(plain, at + s) for s in (19, 20)] == [True, False]
    assert found.of_token(made.text, at + 10) is None
    same, _ = directory(row)
    assert same.holds(token, at)
    assert same.holds(plain, at)
    assert not Directory([Entry(Identity("a", Verb.ADD), plain=("plain",))]).holds(plain, at)
    assert not Directory([Entry(Identity("a", Verb.RUN), plain=("another",))]).holds(plain, at)
    assert found.next_end(at + 30) == inf


def test_the_names_of_a_certificate() -> None:
    shown = {
        "subject": ((("countryName", "DE"),), (("commonName", "the.cn"),)),
        "subjectAltName": (("DNS", "a.example"), ("URI", "spiffe://x/y")),
    }
    assert names_of_certificate(shown) == ["a.example", "spiffe://x/y", "the.cn"]
    assert names_of_certificate({}) == names_of_certificate(None) == []


def test_how_many_have_ended_or_soon_will() -> None:
    stored = StoredToken(b"", b"", 50.0)
    found = Directory(
        [
            Entry(Identity("lasts", Verb.RUN), plain=("x",)),
            Entry(Identity("has-a-new-token", Verb.RUN), inf, {"a": stored, "b": StoredToken(b"", b"")}),
            Entry(Identity("has-old-tokens", Verb.RUN), inf, {"c": stored}),
            Entry(Identity("expired", Verb.RUN), 5.0, {"d": stored}, certificates=("x",)),
            Entry(Identity("has-nothing", Verb.RUN)),
        ]
    )
    assert found.by_time_left(10.0) == {"ended": 2, "ending": 1, "valid": 2}
    assert found.by_time_left(60.0) == {"ended": 3, "ending": 0, "valid": 2}


def test_people_have_the_roles_of_their_groups() -> None:
    people = People({"ops": Verb.OPERATE, "staff": Verb.SEE}, proxy=ProxyRow(["10.0.0.0/8"]))
    found = Directory(people=people)
    both = found.of_person("proxy", "pat", ["staff", "ops", "others"])
    assert both is not None
    assert both.identity == Identity("proxy:pat", Verb.SEE | Verb.OPERATE)
    assert found.holds(both, 0)
    for way, name, groups in (
        ("proxy", "pat", ["others"]),
        ("proxy", "", ["ops"]),
        ("proxy", "a\nb", ["ops"]),
        ("proxy", "x" * 129, ["ops"]),
        ("oidc", "pat", ["ops"]),
    ):
        assert found.of_person(way, name, groups) is None
    changed = people._replace(groups={"ops": Verb.OPERATE})
    for other in (changed, people._replace(proxy=None), NO_PEOPLE):
        assert not Directory(people=other).holds(both, 0)
    assert [
        is_in(each, people.networks) for each in ("10.1.2.3", "::ffff:10.1.2.3", "11.0.0.1", "x", "")
    ] == [
        True,
        True,
        False,
        False,
        False,
    ]
