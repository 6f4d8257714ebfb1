"""An order as a workflow: each step runs once, and if the order fails, the finished steps are undone."""

import asyncio
from dataclasses import dataclass

from bunqueue import Bunqueue, Flow, JobFailed, Retry, Unrecoverable

app = Bunqueue("orders", embedded=True)


@dataclass
class Order:
    id: str
    items: list[str]
    cents: int


async def reserve(items: list[str]) -> str:
    return f"{len(items)} reserved"


async def release(reservation: str) -> None:
    print("released:", reservation)


async def pay(order: Order) -> str:
    return f"charge of {order.cents}"  # a real one sends flow.key to the bank


async def refund(charge: str) -> None:
    print("refunded:", charge)


@app.job(queue="packing")
async def pack(item: str) -> str:
    return f"parcel with {item}"


async def ship(parcels: list[str]) -> str:
    if "parcel with piano" in parcels:
        raise Unrecoverable("nobody carries a piano")  # other exceptions are retried
    return f"{len(parcels)} on their way"


@app.workflow
async def order(flow: Flow, order: Order) -> str:
    await flow.step("reserve", reserve, order.items, undo=release)
    charge = await flow.step("charge", pay, order, undo=refund, retry=Retry(500, max_attempts=5))
    parcels = await flow.gather(*(flow.run(pack, item) for item in order.items))
    shipped = await flow.step("ship", ship, parcels, retry=Retry(500, max_attempts=10))
    return f"{charge}, {shipped}"


async def main() -> None:
    async with app:
        good = await order.start_async(Order("7", ["lamp", "book"], 4_200), id="order-7")
        print(await good.result(timeout=20_000))
        bad = await order.start_async(Order("8", ["lamp", "piano"], 9_900), id="order-8")
        try:
            await bad.result(timeout=20_000)
        except JobFailed as error:
            print(error.error.splitlines()[0] if error.error else error)
        print(*(f"{step.name} {step.status}" for step in await bad.history()), sep="\n")


asyncio.run(main())

# Output:
# charge of 4200, 2 on their way
# refunded: charge of 9900
# released: 2 reserved
# StepFailed: step 'ship' failed: Unrecoverable: nobody carries a piano
# reserve completed
# charge completed
# pack completed
# pack#2 completed
# ship retrying
# undo:charge completed
# undo:reserve completed
