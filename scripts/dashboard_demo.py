"""Puts the load of a small shop on a running server, so that the dashboard has something to show.

    python scripts/dashboard_demo.py --port 6789

Adds jobs, runs them, lets some of them fail, and continues until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal

from bunqueue import ActiveJob, AsyncQueue, AsyncWorkflow, Bunqueue, Flow, Retry, Undo, Worker

RATES = {"emails": 10, "thumbnails": 4, "invoices": 4, "search-index": 20, "exports": 0.15}  # jobs a second
FAILING = {"emails": 0.03, "thumbnails": 0.02, "invoices": 0.12, "search-index": 0.0, "exports": 0.1}
WORK_S = {"emails": 0.25, "thumbnails": 0.5, "invoices": 0.4, "search-index": 0.04, "exports": 6.0}
PLACES = {"emails": 6, "thumbnails": 4, "invoices": 4, "search-index": 3, "exports": 2}
ERRORS = {
    "emails": "SMTPServerDisconnected: connection to smtp.example.com:587 was closed",
    "thumbnails": "UnidentifiedImageError: cannot identify image file 'upload.heic'",
    "invoices": "HTTPError: 503 from the tax service for country IT",
    "exports": "MemoryError: result set of 1,204,331 rows does not fit",
}


class Trouble(Exception):
    """A failure of the shop's services."""


def data_for(queue: str, number: int) -> dict[str, object]:
    """The data of a job of that queue."""
    customer = f"customer-{number % 40}"
    kinds: dict[str, dict[str, object]] = {
        "emails": {"to": f"{customer}@example.com", "template": "order-confirmed", "order": 10_000 + number},
        "thumbnails": {"image": f"uploads/{number:06}.jpg", "sizes": [64, 256, 1024], "crop": True},
        "invoices": {"order": 10_000 + number, "customer": customer, "total": round(number % 500 * 1.19, 2)},
        "search-index": {"product": number % 9000, "fields": ["title", "price", "stock"]},
        "exports": {"report": "orders", "month": f"2026-{1 + number % 12:02}", "format": "parquet"},
    }
    return kinds[queue]


async def handle(job: ActiveJob) -> dict[str, object]:
    """Take a while, and sometimes fail."""
    queue = job.queue
    await job.log(f"began with {len(str(job.data))} characters of data")
    steps = 4 if queue == "exports" else 1
    for step in range(steps):
        await asyncio.sleep(random.expovariate(steps / WORK_S[queue]))
        if steps > 1:
            await job.progress(100 * (step + 1) / steps, f"part {step + 1} of {steps}")
    if random.random() < FAILING[queue]:
        await job.log("giving up", "error")
        raise Trouble(ERRORS[queue])
    return {"done": True, "queue": queue}


async def feed(queue: AsyncQueue, name: str) -> None:
    """Add jobs at the queue's rate, in bursts."""
    number = random.randrange(10_000)
    while True:
        for _ in range(random.choice([1, 1, 1, 1, 2, 5])):
            number += 1
            delay = random.choice([0] * 12 + [20_000, 90_000])
            group = f"tenant-{number % 12}" if name == "thumbnails" else None
            await queue.add(
                f"{name}-job", data_for(name, number), max_attempts=3, backoff=800, delay=delay, group=group
            )
        await asyncio.sleep(random.expovariate(RATES[name]))


async def brief() -> None:
    await asyncio.sleep(random.expovariate(4))


async def pay(number: int) -> dict[str, object]:
    await brief()
    return {"charge": f"ch_{number}", "cents": 100 * (number % 90) + 99}


async def refund(charge: dict[str, object]) -> None:
    await brief()
    if random.random() < 0.3:
        raise Trouble("the bank answers 503")


async def ship(parcels: list[str]) -> str:
    await brief()
    if random.random() < 0.5:
        raise Trouble("the carrier does not answer")
    return f"shipment of {len(parcels)} parcels"


def workflows(app: Bunqueue) -> AsyncWorkflow[[int], str]:
    """An order: checks, a payment that can be undone, an approval, parcels, a shipment."""

    @app.job(queue="packing")
    async def pack(item: str) -> str:
        await brief()
        return f"parcel with {item}"

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, number: int) -> str:
        await flow.gather(flow.step("check stock", brief), flow.step("check address", brief))
        await flow.step("charge", pay, number, undo=Undo(refund, retry=2))
        await flow.sleep("cooling-off", seconds=1 + number % 4)
        flow.state = {"order": number, "phase": "approval"}
        await flow.wait_for("approval", bool, key=f"order-{number}")
        parcels = await flow.gather(*(flow.run(pack, f"item {item}") for item in range(1 + number % 9)))
        return await flow.step("ship", ship, parcels, retry=Retry(500, max_attempts=3))

    return order


async def orders(app: Bunqueue) -> None:
    """Run orders, start one now and then, and approve most of them."""
    order = workflows(app)
    number = random.randrange(10_000)
    async with app:
        while True:
            number += 1
            handle = await order.start_async(number, id=f"order-{number}")
            if number % 5:
                await handle.signal("approval", True)
            await asyncio.sleep(random.expovariate(0.3))


async def schedules(queue: AsyncQueue) -> None:
    """A few schedules."""
    await queue.upsert_cron("nightly-report", schedule="0 2 * * *", timezone="Europe/Rome")
    await queue.upsert_cron("digest", schedule="0 9 * * mon-fri", timezone="America/New_York")
    await queue.upsert_cron("cleanup", every=600_000)


async def main() -> None:
    """Until SIGINT or SIGTERM."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=6789)
    options = parser.parse_args()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    where = {"host": options.host, "port": options.port}
    queues = {name: AsyncQueue(name, **where) for name in RATES}
    workers = [Worker(name, handle, concurrency=PLACES[name], **where) for name in RATES]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    running += [asyncio.create_task(feed(queue, name)) for name, queue in queues.items()]
    running.append(asyncio.create_task(schedules(queues["exports"])))
    running.append(asyncio.create_task(orders(Bunqueue("orders", **where))))
    over = asyncio.create_task(stop.wait())
    while not stop.is_set():
        done, _ = await asyncio.wait([over, *running], return_when=asyncio.FIRST_COMPLETED)
        running = [task for task in running if task not in done]
        for task in done - {over}:
            task.result()  # an error ends the program
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
