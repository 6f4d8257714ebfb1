"""Cancel a job from anywhere, even while it runs: its worker is notified at once."""

import asyncio
import time

from bunqueue import Bunqueue, JobCancelled, current_job

app = Bunqueue("renders", embedded=True)


@app.job
async def render(scene: str) -> None:
    await current_job().progress(1)
    try:
        await asyncio.sleep(60)  # a coroutine is cancelled where it waits
    finally:
        print(f"{scene}: cleaned up")


@app.job
def compute(scene: str) -> None:
    current_job().progress(1)
    while True:  # a plain function, in a thread, checks now and then
        current_job().raise_if_cancelled()
        time.sleep(0.01)


async def main() -> None:
    async with app, app.events_async(types="progress") as events:
        handles = [await render.add_async("castle"), await compute.add_async("forest")]
        for _ in handles:
            await events.next()  # until both run
        for handle in handles:
            await handle.cancel(reason="no longer wanted", grace=10_000)
            try:
                await handle.result(timeout=10_000)
            except JobCancelled as error:
                print(await handle.state(), "-", error.reason)

        waiting = await render.options(delay=60_000).add_async("never")
        await waiting.cancel()  # a job that has not started is removed at once
        print(await waiting.state())


asyncio.run(main())

# Output:
# castle: cleaned up
# cancelled - no longer wanted
# cancelled - no longer wanted
# cancelled
