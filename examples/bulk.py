"""Thousands of jobs added in one call, and run fifty at a time. A bulk is added as a whole or not at all."""

from bunqueue import Bunqueue, NewJob

app = Bunqueue("squares", concurrency=50, embedded=True)


@app.job(remove_on_complete=False)
async def square(number: int) -> int:
    return number**2


async def main() -> None:
    handles = await app.add_bulk_async(square.job(number) for number in range(2_000))
    counts = await app.async_queue.counts()
    print(f"{len(handles)} added, {counts.waiting} waiting")

    async with app:
        results = await asyncio.gather(*[handle.result(timeout=60_000) for handle in handles])
        print(sum(results))

        # The same without types: names and data, as other programs would add them.
        plain = await app.async_queue.add_bulk(
            [NewJob("square", {"number": 7}, priority=9), ("square", {"number": 8})]
        )
        print([await handle.result(timeout=10_000) for handle in plain])


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())

# Output:
# 2000 added, 2000 waiting
# 2664667000
# [49, 64]
