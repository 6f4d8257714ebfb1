"""`bunqueue identity`: the file that it makes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

from support.cli import Cli
from support.server import StartServer
from support.waiting import wait_until

from bunqueue.cli.framework import exits


def file(folder: Path) -> tuple[str, str]:
    return "--file", str(folder / "identities.toml")


def test_from_add_to_revoke(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server("--identities", str(tmp_path / "identities.toml"), shards=1)
    boss = Cli(server)("identity", "add", "boss", "--role", "admin", *file(tmp_path)).value
    server.start()
    cli = Cli(server)
    made = cli.json(
        "identity",
        "add",
        "ci",
        "--role",
        "producer",
        "--namespace",
        "acme",
        "--expires",
        "90d",
        *file(tmp_path),
    )
    assert made.keys() == {"name", "role", "token", "tokenId"}
    assert made["token"] not in (tmp_path / "identities.toml").read_text()
    wait_until(lambda: pushes(cli, made["token"]), "the token works")
    assert "it needs the verb" in cli("queue", "list", "--token", made["token"], status=exits.FAILED).err
    (row,) = [row for row in cli.json("identity", "list", *shown(tmp_path)) if row["name"] == "ci"]
    assert (row["role"], row["verbs"], row["from"]) == ("producer", "add", "127.0.0.1")
    assert (row["namespace"], row["queues"]) == ("acme", "*")
    assert cli.json("queue", "list", "--token", boss)[0]["name"] == "acme/q"
    assert row["expires"].endswith("Z")
    assert row["lastUsed"] is not None
    new = cli.json("identity", "rotate", "ci", "--keep", "0", *file(tmp_path))
    wait_until(lambda: pushes(cli, new["token"]), "the new token works")
    assert not pushes(cli, made["token"])
    cli("identity", "revoke", "ci", *file(tmp_path))
    wait_until(lambda: not pushes(cli, new["token"]), "the identity is gone")
    assert pushes(cli, boss)


def shown(folder: Path) -> tuple[str, ...]:
    return (*file(folder), "--data-dir", str(folder / "data"))


def pushes(cli: Cli, token: str) -> bool:
    return cli("push", "q", "1", "--token", token, status=None).status == exits.DONE


def test_refusals_change_nothing(tmp_path: Path, make_server: StartServer) -> None:
    cli = Cli(make_server())
    bad = exits.USAGE
    assert "which file of identities?" in cli("identity", "list", status=bad).err
    cli("identity", "add", "ci", "--role", "producer", *file(tmp_path))
    before = (tmp_path / "identities.toml").read_text()
    for words, said in (
        (("add", "ci", "--role", "admin"), "the identity ci exists already"),
        (("add", "a b", "--role", "admin"), "is no name for an identity"),
        (("add", "x", "--role", "admn"), "--role: there is no role 'admn'; did you mean admin?"),
        (("add", "x", "--role", "admin", "--namespace", "A/b"), "--namespace: 'A/b' is no name"),
        (("add", "x", "--role", "admin", "--expires", "soon"), "'soon' is no span of time"),
        (("rotate", "nobody"), "there is no identity nobody"),
        (("rotate", "ci", "--keep", "x"), "'x' is no span of time"),
        (("revoke", "nobody"), "there is no identity nobody"),
        (("revoke", "ci", "--token-id", "0"), "ci has no token 0"),
    ):
        assert said in cli("identity", *words, *file(tmp_path), status=bad).err
        assert (tmp_path / "identities.toml").read_text() == before
    (tmp_path / "identities.toml").write_text(before + "[x]\n")
    assert "there are only [roles]" in cli("identity", "list", *file(tmp_path), status=bad).err


def test_two_tokens_while_one_is_rotated_and_one_revoked(tmp_path: Path, make_server: StartServer) -> None:
    cli = Cli(make_server())
    first = cli.json("identity", "add", "ci", "--role", "producer", *file(tmp_path))
    second = cli.json("identity", "rotate", "ci", "--keep", "2h", *file(tmp_path))
    (row,) = cli.json("identity", "list", *file(tmp_path))
    assert f"token {first['tokenId']} (until " in row["proof"]
    assert f"token {second['tokenId']}" in row["proof"]
    cli("identity", "revoke", "ci", "--token-id", first["tokenId"], *file(tmp_path))
    (row,) = cli.json("identity", "list", *file(tmp_path))
    assert row["proof"] == f"token {second['tokenId']}"
    cli("identity", "add", "batch", "--role", "worker", "--certificate", "batch.example", *file(tmp_path))
    assert cli.json("identity", "list", *file(tmp_path))[1]["proof"] == "certificate batch.example"
