"""This project's asynchronous client; its worker is that of the blocking one."""

from __future__ import annotations

import uvloop
from harness import BATCH, DATA, main
from ours import Ours

from bunqueue import AsyncQueue


class OursAsync(Ours):
    def single(self, jobs: int) -> None:
        async def add() -> None:
            async with AsyncQueue("bench", port=self._port) as queue:
                for _ in range(jobs):
                    await queue.add("noop", DATA)

        uvloop.run(add())

    def bulk(self, jobs: int) -> None:
        async def add() -> None:
            async with AsyncQueue("bench", port=self._port) as queue:
                for start in range(0, jobs, BATCH):
                    await queue.add_bulk([("noop", DATA)] * min(BATCH, jobs - start))

        uvloop.run(add())


if __name__ == "__main__":
    main(OursAsync)
