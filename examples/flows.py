"""Jobs that wait for each other, across queues: two fetches, then a report of both."""

import asyncio

from bunqueue import Bunqueue

app = Bunqueue("reports", embedded=True)


@app.job(queue="fetches", max_attempts=1)
async def fetch(source: str) -> int:
    if source == "c":
        raise ConnectionError("c is down")
    return len(source) * 100


@app.job
async def report(month: str) -> str:
    numbers = await app.async_flows.children_results(int)  # of the current job, in the order of its children
    missing = await app.async_flows.failed_children()
    return f"{month}: {sum(numbers)} from {len(numbers)} sources, {len(missing)} missing"


@app.job
async def publish() -> str:
    (text,) = await app.async_flows.children_results(str)
    return f"published '{text}'"


async def main() -> None:
    async with app:
        optional = fetch.job("c").if_it_fails("ignore")
        flow = report.job("May").after(fetch.job("a"), fetch.job("bb"), optional)
        node = await app.async_flows.add(publish.job().after(flow))
        print(await node.job.result(timeout=10_000))
        tree = await app.async_flows.get_flow(node.job.id)
        for each in tree.walk():
            print(each.job.queue, each.job.name, each.job.state)


asyncio.run(main())

# Output:
# published 'May: 300 from 2 sources, 1 missing'
# reports publish completed
# reports report completed
# fetches fetch completed
# fetches fetch completed
# fetches fetch failed
