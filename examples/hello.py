"""Add a job, have a worker run it, read the result.

Everything is in this process, in memory. To have it on a server, leave out `embedded=True` and start one with
`bunqueue start`; the worker may then be another process, on another machine.
"""

import asyncio

from bunqueue import ActiveJob, AsyncQueue, Worker


async def greet(job: ActiveJob) -> str:
    print(f"attempt {job.attempts + 1} of {job.name}")
    return f"hello {job.data['name']}"


async def main() -> None:
    done = asyncio.Event()
    async with AsyncQueue("greetings", embedded=True) as queue:
        handle = await queue.add("greet", {"name": "Ada"})
        print(await handle.state())
        async with Worker("greetings", greet, embedded=True, on_completed=lambda job, result: done.set()):
            await done.wait()
        print(await handle.state())
        print(await handle.result())


asyncio.run(main())

# Output:
# waiting
# attempt 1 of greet
# completed
# hello Ada
