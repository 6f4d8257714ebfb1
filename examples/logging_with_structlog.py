"""Logs that say which job they are about, from any depth of the program.

pip install 'bunqueue[structlog]'
python examples/logging_with_structlog.py
"""

import asyncio

import structlog

from bunqueue import ActiveJob, AsyncQueue, Worker
from bunqueue.integrations.structlog import JobContext

structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.JSONRenderer(sort_keys=True),
    ]
)
log = structlog.get_logger()


def connect(host: str) -> None:
    log.info("connecting", host=host)  # knows nothing of jobs


def send(job: ActiveJob) -> None:
    connect("mail.example.com")
    log.info("sent", to=job.data["to"])


async def main() -> None:
    done = asyncio.Event()
    worker = Worker(
        "emails",
        send,
        embedded=True,
        middleware=[JobContext(bind={"tenant": "x-tenant"})],
        on_completed=lambda job, result: done.set(),
    )
    async with AsyncQueue("emails", embedded=True) as emails, worker:
        await emails.add("welcome", {"to": "ada@example.com"}, headers={"x-tenant": "acme"})
        await done.wait()


asyncio.run(main())
