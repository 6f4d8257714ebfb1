"""The last hour, which the gateway notes by itself."""

from __future__ import annotations

from support.server import Server, StartServer, quiet_port
from support.waiting import eventually
from support.web import client, fresh_queue


async def test_points_gather_before_anybody_asks(web_server: Server) -> None:
    queue = fresh_queue()
    async with client(web_server) as web:
        await web.post(f"/queues/{queue}/jobs/bulk", json={"jobs": [{"data": n} for n in range(50)]})

        async def noted() -> bool:
            data = (await web.get("/history")).json()["data"]
            points = [dict(zip(data["names"], values, strict=True)) for values in data["points"]]
            return any(point["added"] for point in points) and points[-1]["waiting"] >= 50

        await eventually(noted, "the jobs are noted")
        points = (await web.get("/history")).json()["data"]["points"]
        last = points[-1][0]
        later = (await web.get("/history", params={"after": points[0][0]})).json()["data"]["points"]
        assert [point[0] for point in later[: len(points) - 1]] == [point[0] for point in points[1:]]
        assert all(
            point[0] > last for point in (await web.get(f"/history?after={last}")).json()["data"]["points"]
        )
        refused = await web.get("/history", params={"after": "noon"})
        assert (refused.status_code, "after must be a moment" in refused.json()["error"]) == (422, True)


async def test_who_may_read_it(make_server: StartServer) -> None:
    flags = ("--auth-token", "key", "--read-only-token", "look")
    server = make_server(*flags, shards=1, http_port=quiet_port())
    server.start()
    async with client(server) as nobody, client(server, "look") as reader:
        assert (await nobody.get("/history")).status_code == 401
        assert (await reader.get("/history")).json()["ok"] is True
