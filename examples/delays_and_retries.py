"""Jobs that run later, attempts that fail and are retried, and what happens to jobs that never succeed."""

import asyncio
from datetime import timedelta

from bunqueue import Backoff, Bunqueue, JobFailed, Postpone, current_job

app = Bunqueue("deliveries", embedded=True)


class WrongAddress(Exception):
    pass


@app.job(max_attempts=3, backoff=Backoff(timedelta(milliseconds=10), "fixed"), unrecoverable=[WrongAddress])
async def deliver(to: str) -> str:
    attempt = current_job().attempts + 1
    if to == "nowhere":
        raise WrongAddress(to)  # another attempt would not help
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt} met a closed door")
    return f"delivered to {to} in attempt {attempt}"


seen = 0


@app.job(max_attempts=1)
async def check_in_later() -> str:
    global seen
    seen += 1
    if seen < 3:
        raise Postpone(10)  # ms; uses no attempt
    return f"looked {seen} times, {current_job().attempts} attempts used"


async def main() -> None:
    async with app:
        late = await deliver.options(delay=500).add_async("ada")
        print(await late.state())
        print(await late.result(timeout=10_000))

        lost = await deliver.add_async("nowhere")
        try:
            await lost.result(timeout=10_000)
        except JobFailed as error:
            print("failed:", error.error)

        print(await (await check_in_later.add_async()).result(timeout=10_000))

        dead = await app.async_queue.dlq()
        print("dead letters:", [job.data for job in dead])
        print("given all their attempts again:", await app.async_queue.retry_dlq())


asyncio.run(main())

# Output:
# delayed
# delivered to ada in attempt 3
# failed: WrongAddress: nowhere
# looked 3 times, 0 attempts used
# dead letters: [{'to': 'nowhere'}]
# given all their attempts again: 1
