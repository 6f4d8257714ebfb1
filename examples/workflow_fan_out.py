"""Thousands of thumbnails, and one line when the last of them is done. All of them are one wait."""

import asyncio

from bunqueue import Bunqueue, Flow

app = Bunqueue("albums", embedded=True, concurrency=100)


@app.job(queue="thumbnails", max_attempts=5, never_on=[ValueError])
async def thumbnail(picture: int) -> int:
    if picture % 400 == 0:
        raise ValueError(f"{picture} is no picture")
    return picture % 100  # its size


@app.workflow
async def album(flow: Flow, pictures: int) -> str:
    sizes = await flow.map(thumbnail, range(1, pictures + 1), return_exceptions=True)
    good = [size for size in sizes if isinstance(size, int)]
    return f"{len(good)} thumbnails of {sum(good)} KB, {len(sizes) - len(good)} failed"


async def main() -> None:
    async with app:
        handle = await album.start_async(1_000)  # the maximum is 100,000
        print(await handle.result(timeout=100_000))


asyncio.run(main())

# Output:
# 998 thumbnails of 49500 KB, 2 failed
