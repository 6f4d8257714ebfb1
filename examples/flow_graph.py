"""A diamond: one fetch, two halves that need it, and a total of both. It grows while it runs."""

import asyncio

from bunqueue import Bunqueue

app = Bunqueue("sums", embedded=True)


@app.job
async def fetch() -> int:
    return 100


@app.job
async def half(n: int) -> float:
    return await app.async_flows.result_of("fetch", int) / 2 + n


@app.job
async def total() -> float:
    halves = await app.async_flows.results()  # by name: {"left": ..., "right": ...}
    return sum(halves.values())


async def main() -> None:
    async with app:
        graph = await app.async_flows.add_graph(
            {
                "fetch": fetch.job(),
                "left": half.job(1).after("fetch"),
                "right": half.job(2).after("fetch"),
                "total": total.job().after("left", "right"),
            },
            flow_id="diamond",
        )
        print(await graph.jobs["total"].result(timeout=10_000))
        await graph.add({"again": half.job(3).after("fetch")})
        print(await graph.jobs["again"].result(timeout=10_000))
        info = await graph.info()
        print(info.state)
        for node in sorted(info.nodes, key=lambda node: node.name):
            print(node.name, node.state, "after", node.after)


asyncio.run(main())

# Output:
# 103.0
# 53.0
# completed
# again completed after ['fetch']
# fetch completed after []
# left completed after ['fetch']
# right completed after ['fetch']
# total completed after ['left', 'right']
