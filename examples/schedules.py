"""Scheduled jobs. The server keeps the schedules; declaring them again changes nothing."""

import asyncio
from datetime import timedelta

from bunqueue import Bunqueue

app = Bunqueue("upkeep", embedded=True)
swept = asyncio.Event()


@app.cron("0 9 * * mon-fri", tz="Europe/Rome")
async def digest() -> None:
    print("good morning")


@app.cron(every=timedelta(hours=1), immediately=True, data={"days": 30})
@app.job
async def sweep(days: int) -> int:
    print(f"removing what is older than {days} days")
    swept.set()
    return days


app.add_schedule(sweep.job(365), "@weekly", name="sweep-all", prevent_overlap=True)


async def main() -> None:
    async with app:
        await asyncio.wait_for(swept.wait(), 10)
        for schedule in await app.async_queue.list_crons():
            print(schedule.name, schedule.schedule or f"every {schedule.repeat_every} ms", schedule.timezone)


asyncio.run(main())

# Output:
# removing what is older than 30 days
# sweep-all @weekly None
# upkeep:digest 0 9 * * mon-fri Europe/Rome
# upkeep:sweep every 3600000 ms None
