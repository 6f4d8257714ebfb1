"""Code that runs around every job, so that handlers need not repeat it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from bunqueue import ActiveJob, Bunqueue, CallNext, Middleware, NewJob

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


class Tenant(Middleware):
    """Carries the tenant from the program that adds a job to the worker that runs it."""

    @contextmanager
    def adding(self, job: NewJob) -> Iterator[None]:
        job.options["headers"] = {"tenant": tenant.get()}
        yield

    async def running(self, job: ActiveJob, call_next: CallNext) -> Any:
        tenant.set(job.job().headers.get("tenant", "nobody"))
        return await call_next(job)


app = Bunqueue("mails", middleware=[Tenant()], embedded=True)


@app.use
async def timing(job: ActiveJob, call_next: CallNext) -> Any:
    start = time.perf_counter()
    try:
        return await call_next(job)
    finally:
        print(f"{job.name} took less than a second: {time.perf_counter() - start < 1}")


@app.job
async def send(to: str) -> str:
    return f"to {to}, for {tenant.get()}"


async def main() -> None:
    tenant.set("acme")
    async with app:
        print(await (await send.add_async("ada")).result(timeout=10_000))


asyncio.run(main())

# Output:
# send took less than a second: True
# to ada, for acme
