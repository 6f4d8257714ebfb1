"""``bunqueue restore --namespace``: what is in it, and nothing else."""

from __future__ import annotations

from pathlib import Path

from server.test_namespaces import QUEUE, TENANTS, Tenants, fill, stable
from support.cli import Cli
from support.server import dispose

from bunqueue.cli.framework import exits

OTHERS = b"beta"  # in all names and values that do not belong to acme


async def test_a_namespace_is_restored_without_the_others(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path, routers=1)
    server, target = tenants.server, str(tmp_path / "target")
    try:
        server.start()
        async with tenants.wires(*TENANTS, "root") as (acme, beta, root):
            await fill(acme, "word-of-acme")
            await fill(beta, "word-of-beta")
            await root.ok("PUSH", queue="of-beta", data="of-beta", jobId="of-beta", idempotencyKey="of-beta")
            await root.ok("SetDlqConfig", queue="unused-beta", config={"maxEntries": 5})
            await root.ok("AddWebhook", url="http://127.0.0.1:9/beta", events=["job.completed"])
            await root.ok("Obliterate", queue="of-beta")
            before = await stable(acme)
        cli = Cli(server)
        cli("backup", "create", target, "--data-dir", str(server.data_dir))
        server.stop()
        new = tmp_path / "new"
        asked = ("restore", target, "--data-dir", str(new), "--namespace")
        assert "--namespace: 'A/b' is no name" in cli(*asked, "A/b", status=exits.USAGE).err
        refused = cli(*asked, "acme", "--queues", "none", status=exits.FAILED).err
        assert "no queue in the namespace acme is like 'none': nothing was restored" in refused
        some = ("restore", target, "--data-dir", str(tmp_path / "some"), "--namespace", "acme")
        dropped = cli.json(*some, "--queues", "other", "--shards", "4")["dropped"]
        assert {f"acme/{QUEUE}", "acme/ended", "beta/other"} <= set(dropped)
        assert "acme/other" not in dropped
        said = cli.json(*asked, "acme")
        assert {f"beta/{QUEUE}", "beta/other", "beta/ended", "unused-beta"} <= set(said["dropped"])
        assert not [name for name in said["dropped"] if name.startswith("acme/")]
        for file in new.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert OTHERS not in content, (file, content.count(OTHERS))
        server.data_dir = new
        server.start()
        async with tenants.wires("acme", "beta", "root") as (acme, beta, root):
            after = await stable(acme)
            assert not (await beta.ok("ListQueues"))["queues"]
            assert {name.partition("/")[0] for name in (await root.ok("ListQueues"))["queues"]} == {"acme"}
            assert len((await root.ok("ListWebhooks"))["data"]["webhooks"]) == 1
            for name, reply in before.items():  # the active job waits for its worker, or again
                assert after[name] == reply or name in {"GetState active", "GetBounds", "GetJobCounts"}, name
    finally:
        dispose(server)
