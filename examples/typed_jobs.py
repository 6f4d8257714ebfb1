"""Functions as jobs: the arguments are checked, by your type checker and when they are added."""

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from bunqueue import ArgumentsError, Bunqueue

app = Bunqueue("invoices", embedded=True)


class Invoice(Struct):
    number: int
    cents: Annotated[int, Meta(ge=0)]


@app.job(max_attempts=5)
async def charge(invoice: Invoice, currency: str = "EUR") -> str:
    return f"charged {invoice.cents / 100:.2f} {currency}"


async def main() -> None:
    print(await charge(Invoice(1, 250)))  # an ordinary call

    async with app:  # a worker, as long as this block lasts
        handle = await charge.add_async(Invoice(2, 999), currency="CHF")
        print(await handle.result(timeout=10_000))  # mypy knows that it is a str

        plain = await app.add_async("charge", {"invoice": {"number": 3, "cents": 100}})  # from any language
        print(await plain.result(timeout=10_000))

    try:
        await charge.add_async(Invoice(4, -1))
    except ArgumentsError as error:
        print(error)
    await app.close_async()


asyncio.run(main())

# Output:
# charged 2.50 EUR
# charged 9.99 CHF
# charged 1.00 EUR
# job 'charge': argument invoice.cents: -1 is not allowed: Expected `int` >= 0
