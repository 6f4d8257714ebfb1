"""A handler that takes many jobs at once, for example rows for one insert."""

import asyncio
import sqlite3

from bunqueue import ActiveJob, Bunqueue

app = Bunqueue("visits", embedded=True)
database = sqlite3.connect(":memory:")
database.execute("create table visits (page text)")
sizes: list[int] = []


@app.batch("visit", size=100, max_wait=500)
async def insert(jobs: list[ActiveJob]) -> list[object]:
    sizes.append(len(jobs))
    good = [job for job in jobs if job.data]
    database.executemany("insert into visits values (?)", [(job.data["page"],) for job in good])
    return [None if job.data else ValueError("no data") for job in jobs]  # an exception fails that job alone


@app.batch("alarm", size=50, min_size=3, max_wait=60_000)  # at once when there are 3, else after a minute
async def page(jobs: list[ActiveJob]) -> None:
    print(f"one message with {len(jobs)} alarms")


async def main() -> None:
    handles = await app.async_queue.add_bulk([("visit", {"page": f"/{number}"}) for number in range(250)])
    bad = await app.add_async("visit", max_attempts=1)
    alarms = await app.async_queue.add_bulk([("alarm", text) for text in ("disk", "memory", "fire")])
    async with app:
        await asyncio.gather(*[handle.result(timeout=30_000) for handle in alarms])
        await asyncio.gather(*[handle.result(timeout=30_000) for handle in handles])
        outcome = await bad.wait(timeout=30_000)
    (rows,) = database.execute("select count(*) from visits").fetchone()
    print(f"{rows} rows, at most {max(sizes)} at a time")
    print(outcome.state, outcome.error)


asyncio.run(main())

# Output:
# one message with 3 alarms
# 250 rows, at most 100 at a time
# failed ValueError: no data
