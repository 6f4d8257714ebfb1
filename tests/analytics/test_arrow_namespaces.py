"""Tables of a server with namespaces."""

from __future__ import annotations

from pathlib import Path

from support.server import Server, dispose
from support.wire import Wire

from bunqueue import arrow
from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow
from bunqueue.spark.read.tables import NAMESPACE, TABLES

IN_IT = {"acme/mail": "acme", "mail": None}


async def test_rows_with_a_queue_have_its_namespace(tmp_path: Path) -> None:
    path = str(tmp_path / "identities.toml")
    server = Server(tmp_path / "data", "--identities", path)
    tokens = {}
    for name, namespace in (("root", ""), ("app", "acme")):
        made = edit.make_token()
        row = IdentityRow("admin", tokens=[made.row], namespace=namespace)
        edit.change(path, name, lambda _, row=row: row)
        tokens[name] = made.text
    try:
        server.start()
        for token in tokens.values():
            await use(server, token)
        server.stop()
        for name, table in TABLES.items():
            has_queue = table.column("queue") is not None
            assert (table.column(NAMESPACE) is not None) == has_queue, name
            if has_queue and name != "audit":
                rows = arrow.table(name, tmp_path / "data", columns=["queue", NAMESPACE]).to_pylist()
                assert {row["queue"]: row[NAMESPACE] for row in rows} == IN_IT, name
                alone = arrow.table(name, tmp_path / "data", columns=[NAMESPACE]).to_pylist()
                assert sorted(map(str, alone)) == sorted(str({NAMESPACE: row[NAMESPACE]}) for row in rows)
        trail = arrow.audit(tmp_path / "data", columns=["who", "queue", NAMESPACE]).to_pylist()
        assert {(row["who"], row["queue"], row[NAMESPACE]) for row in trail} == {
            ("root", "mail", None),
            ("app", "mail", "acme"),
        }
    finally:
        dispose(server)


async def use(server: Server, token: str) -> None:
    """A job that completes, one that fails and one that has a step; and a schedule."""
    wire = await Wire.open(server.address)
    try:
        await wire.ok("Auth", token=token)
        for _ in range(3):
            await wire.ok("PUSH", queue="mail", data=1, maxAttempts=1)
        jobs = [await wire.ok("PULL", queue="mail", owner="w", lockTtl=10**7) for _ in range(3)]
        await wire.ok("ACK", id=jobs[0]["job"]["id"], token=jobs[0]["token"])
        await wire.ok("FAIL", id=jobs[1]["job"]["id"], token=jobs[1]["token"], error="no")
        step = {"id": jobs[2]["job"]["id"], "token": jobs[2]["token"], "name": "s", "number": 1}
        await wire.ok("RecordSteps", queue="mail", steps=[step])
        await wire.ok("Cron", name="nightly", queue="mail", repeatEvery=10**9)
    finally:
        await wire.close()
