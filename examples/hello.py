"""Add a job, have a worker run it, read the result.

Everything is in this process, in memory. To use a server, omit `embedded=True` and start one with
`bunqueue start`; the worker may then be another process, on another machine.
"""

import asyncio

from bunqueue import ActiveJob, AsyncQueue, Worker


async def greet(job: ActiveJob) -> str:
    return f"hello {job.data['name']}"


async def main() -> None:
    async with AsyncQueue("greetings", embedded=True) as queue:
        handle = await queue.add("greet", {"name": "Ada"})
        print(await handle.state())
        async with Worker("greetings", greet, embedded=True):
            print(await handle.result(timeout=10_000))
        print(await handle.state())


asyncio.run(main())

# Output:
# waiting
# hello Ada
# completed
