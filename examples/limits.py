"""Limits of rate and concurrency, for a queue and for each group of jobs in it."""

import asyncio
import time

from bunqueue import Bunqueue, RateLimit

app = Bunqueue("calls", concurrency=20, rate_limit=RateLimit(5, per=300), embedded=True)
tenants = Bunqueue("tenants", concurrency=20, group_concurrency=2, embedded=True)

at_once: dict[str, int] = {}
most: dict[str, int] = {}


@app.job
async def call(number: int) -> float:
    return time.monotonic()


@tenants.job(group=lambda tenant: tenant)
async def work(tenant: str) -> None:
    at_once[tenant] = at_once.get(tenant, 0) + 1
    most[tenant] = max(most.get(tenant, 0), at_once[tenant])
    await asyncio.sleep(0.005)
    at_once[tenant] -= 1


async def main() -> None:
    async with app:
        handles = await app.add_bulk_async(call.job(number) for number in range(12))
        times = sorted([await handle.result(timeout=30_000) for handle in handles])
        print("twelve calls, five in 300 ms, took at least 300 ms:", times[-1] - times[0] > 0.3)

    async with tenants:  # groups take turns, and two jobs of each run at a time, however many are added
        jobs = [work.job(tenant) for tenant in ("acme", "zeta") for _ in range(10)]
        for handle in await tenants.add_bulk_async(jobs):
            await handle.result(timeout=30_000)
        print(most)


asyncio.run(main())

# Output:
# twelve calls, five in 300 ms, took at least 300 ms: True
# {'acme': 2, 'zeta': 2}
