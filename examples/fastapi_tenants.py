"""A FastAPI application with Pydantic models, and a queue in which tenants take turns.

    pip install 'bunqueue[fastapi,pydantic]' uvicorn
    uvicorn examples.fastapi_tenants:web

With a server, omit `embedded=True`, remove `jobs` from the lifespan, and run the worker in a process of
its own: `bunqueue worker examples.fastapi_tenants:jobs`.
"""

import asyncio
from decimal import Decimal

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from bunqueue import Bunqueue, JobNotFound, ResultTimeout
from bunqueue.integrations.fastapi import Lifespan

# At most two jobs of a tenant run at a time. Acme pays for it, and gets twice as many turns as the others.
jobs = Bunqueue("invoices", embedded=True, concurrency=2, group_concurrency=2, group_weights={"acme": 2})
web = FastAPI(lifespan=Lifespan(jobs))


class Order(BaseModel):
    tenant: str = Field(min_length=1, max_length=50)
    number: int
    total: Decimal = Field(gt=0)


class Invoice(BaseModel):
    number: int
    text: str


written: list[str] = []


@jobs.job(group=lambda order: order.tenant, max_attempts=5)
async def write_invoice(order: Order) -> Invoice:
    await asyncio.sleep(0.01)  # the work
    written.append(order.tenant)
    return Invoice(number=order.number, text=f"{order.tenant} owes {order.total} EUR")


@web.post("/orders", status_code=202)
async def place(orders: list[Order]) -> list[str]:
    """The ids of the jobs; FastAPI has checked the orders, and they arrive in the job as orders."""
    handles = await jobs.add_bulk_async([write_invoice.job(order) for order in orders])
    return [handle.id for handle in handles]


@web.get("/invoices/{job_id}")
async def invoice(job_id: str) -> Invoice:
    """The job's result; waits up to ten seconds for it."""
    try:
        return await write_invoice.handle_async(job_id).result(timeout=10_000)
    except JobNotFound:
        raise HTTPException(404, "there is no such invoice") from None
    except ResultTimeout:
        raise HTTPException(425, "it is not written yet") from None


if __name__ == "__main__":  # a few requests without an HTTP server
    from fastapi.testclient import TestClient

    with TestClient(web) as client:
        many = [{"tenant": "acme", "number": number, "total": "9.90"} for number in range(1000)]
        client.post("/orders", json=many)
        (mine,) = client.post("/orders", json=[{"tenant": "globex", "number": 1, "total": "20"}]).json()
        print(client.get(f"/invoices/{mine}").json())
        print("acme had most of its 1000 still to come:", written.index("globex") < 500)
        print(client.post("/orders", json=[{"tenant": "acme", "number": 2, "total": "-1"}]).status_code)
        print(client.get("/invoices/none").status_code)
