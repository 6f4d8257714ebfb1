"""Events of a queue, delivered to any listener as they happen."""

import asyncio

from bunqueue import Bunqueue, current_job

app = Bunqueue("prints", embedded=True)


@app.job(max_attempts=2, backoff=10)
async def print_pages(pages: int) -> int:
    if current_job().attempts == 0:
        raise OSError("out of paper")
    await current_job().progress(50, "half of it")
    return pages


async def main() -> None:
    async with app, app.events_async() as events:
        handle = await print_pages.add_async(3)
        async for event in events:
            details = [event.error, event.message, event.data if event.type == "completed" else None]
            print(event.type, *[detail for detail in details if detail is not None])
            if event.type == "completed" and event.job_id == handle.id:
                break


asyncio.run(main())

# Output:
# pushed
# pulled
# failed OSError: out of paper
# retried
# pulled
# progress half of it
# completed 3
